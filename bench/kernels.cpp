// Kernels of the native backend, alone: matrix products in the shapes of the demo model and decode attention.
//
//   bench_kernels [--benchmark_filter=...]     e.g. 'linear/avx512/.*/rows:1/'
//
// Inside the timed window: one operation of the Backend, its quantisation of activations included (a fresh input tensor
// each time); outside: loading. Weights go round through copies that together exceed the caches (256 MiB), so one row
// measures memory as a decode step sees it. Reported: bytes of weights read a second, and multiply-adds a second.
#include <benchmark/benchmark.h>

#include "compute/backend.h"
#include "compute/ops_cases.h"

namespace {

using namespace verbund;
using namespace verbund::compute;
using namespace verbund::compute::testing;

constexpr uint64_t kColdBytes = uint64_t{256} << 20;

struct Shape {
  const char* name;
  size_t out, cols;
  bool row_parallel;
};
constexpr Shape kShapes[] = {
    {"qkv", 960, 576, false}, {"o", 576, 576, true}, {"gate_up", 3072, 576, false}, {"down", 576, 1536, true}, {"head", 49152, 576, false}};

void linear(benchmark::State& state, const std::string& isa, const Shape& shape, const WeightFormat& format, size_t rows,
            unsigned threads) {
  const auto backend = make_native_backend(isa, threads);
  MemorySource source;
  source.add("w", random_matrix(format, shape.out, shape.cols, 1));
  const WeightPart part{"w", {0, shape.out}, {0, shape.cols}};
  std::vector<std::unique_ptr<Weight>> copies;
  const uint64_t bytes = backend->weight_bytes(source, {&part, 1});
  const size_t count = rows == 1 ? std::max<uint64_t>(1, kColdBytes / bytes) : 1;
  while (copies.size() < count) copies.push_back(backend->load(source, {&part, 1}, shape.row_parallel ? 192 : 0));
  const std::vector<float> x = random_values(rows * shape.cols, 2);
  size_t i = 0;
  for (auto _ : state) {
    const Tensor input = backend->from_host(rows, shape.cols, x);
    const Weight& w = *copies[i++ % count];
    if (shape.row_parallel)
      benchmark::DoNotOptimize(backend->linear_partial(input, w));
    else
      benchmark::DoNotOptimize(backend->linear(input, w, nullptr));
  }
  const auto times = static_cast<double>(state.iterations());
  state.counters["weights/s"] =
      benchmark::Counter(times * static_cast<double>(bytes), benchmark::Counter::kIsRate, benchmark::Counter::kIs1000);
  state.counters["macs/s"] = benchmark::Counter(times * static_cast<double>(rows * shape.out * shape.cols), benchmark::Counter::kIsRate,
                                                benchmark::Counter::kIs1000);
}

// The demo model's attention: 9 heads on 3 KV heads of 64, `rows` new tokens after `cached` ones.
void attention(benchmark::State& state, const std::string& isa, size_t rows, size_t cached) {
  const auto backend = make_native_backend(isa, 1);
  const size_t count = ceil_div(cached + rows, kKvBlock);
  const auto cache = backend->make_kv_cache({1, 3, 64, count, KvType::f16});
  std::vector<uint32_t> blocks(count);
  for (uint32_t b = 0; b < count; ++b) blocks[b] = b;
  const std::vector<uint32_t> kv_of_head{0, 0, 0, 1, 1, 1, 2, 2, 2};
  AttentionParams params{};
  params.heads = 9;
  params.kv_heads = 3;
  params.head_dim = 64;
  params.kv_of_head = kv_of_head;
  params.scale = 0.125f;
  params.rope_mode = RopeMode::none;
  const Segment segment{0, static_cast<uint32_t>(rows), static_cast<uint32_t>(cached), blocks};
  const Tensor qkv = backend->from_host(rows, 960, random_values(rows * 960, 1));
  for (auto _ : state) benchmark::DoNotOptimize(backend->attention(qkv, *cache, params, {&segment, 1}));
  state.counters["rows/s"] = benchmark::Counter(static_cast<double>(state.iterations() * rows), benchmark::Counter::kIsRate);
}

void add_all() {
  const std::vector<std::pair<std::string, WeightFormat>> formats{
      {"q4_1", affine(4, 32)}, {"q4_0", symmetric(4, 32, 8)}, {"q8_0", symmetric(8, 32, 128)}, {"bf16", dense(DType::bf16)}};
  for (const std::string& isa : native_isas()) {
    if (isa == "scalar") continue;
    for (const auto& [name, format] : formats)
      for (const Shape& shape : kShapes)
        for (const size_t rows : {1, 8, 64, 512}) {
          if (rows > 64 && shape.out > 10000) continue;
          const std::string title = "linear/" + isa + "/" + name + "/" + shape.name + "/rows:" + std::to_string(rows);
          benchmark::RegisterBenchmark(title.c_str(), linear, isa, shape, format, rows, 1u);
        }
    for (const auto& [rows, cached] : {std::pair<size_t, size_t>{1, 0}, {1, 512}, {1, 1024}, {512, 0}, {512, 1536}}) {
      const std::string title = "attention/" + isa + "/rows:" + std::to_string(rows) + "/cached:" + std::to_string(cached);
      benchmark::RegisterBenchmark(title.c_str(), attention, isa, rows, cached);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  add_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
