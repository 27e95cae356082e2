// Operations of the native backend alone: matrix products and attention, in the shapes of the demo model and of an 8B model.
//
//   bench_kernels [--isa avx512] [--shapes demo,8b] [--formats q4_1,bf16] [--fast-dense] [--rows 1,64] [--benchmark_filter=...]
//
// Inside the timed window: one operation of the Backend, its quantisation of activations included (a fresh input tensor
// each time); outside: loading. Weights go round through copies that together exceed the caches, as the layers of a model do.
// Reported: weight bytes read a second, multiply-adds a second, and roof_%: the larger of both as a share of what one core of
// this machine can do, measured at the start (a product is bound by memory with few rows and by arithmetic with many).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "compute/backend.h"
#include "compute/ops_cases.h"
#include "roof.h"

namespace {

using namespace verbund;
using namespace verbund::compute;
using namespace verbund::compute::testing;

constexpr uint64_t kColdBytes = uint64_t{256} << 20;
constexpr double kRoofSeconds = 0.3;

struct Shape {
  const char *model, *name;
  size_t out, cols, unit;  // unit: columns summed before fixed point in row-parallel use, 0: column-parallel
};
constexpr Shape kShapes[] = {{"demo", "qkv", 960, 576, 0},     {"demo", "o", 576, 576, 192},      {"demo", "gate_up", 3072, 576, 0},
                             {"demo", "down", 576, 1536, 192}, {"demo", "head", 49152, 576, 0},   {"8b", "qkv", 6144, 4096, 0},
                             {"8b", "o", 4096, 4096, 512},     {"8b", "gate_up", 28672, 4096, 0}, {"8b", "down", 4096, 14336, 512}};
const std::pair<const char*, WeightFormat> kFormats[] = {{"q4_1", affine(4, 32)},
                                                         {"q4_0", symmetric(4, 32, 8)},
                                                         {"q8_0", symmetric(8, 32, 128)},
                                                         {"q6_k", symmetric(6, 16, 32, DType::f32)},
                                                         {"mlx4", affine(4, 64, DType::bf16)},
                                                         {"mxfp4", mxfp4()},
                                                         {"f16", dense(DType::f16)},
                                                         {"bf16", dense(DType::bf16)}};

struct Roofs {
  double bytes_per_s = 0;
  std::vector<bench::Peak> peaks;

  // The best instruction for these weights that the set may use: amx includes avx512, avx512 includes avx2.
  double multiply_adds(const std::string& isa, bool dense, bool fast) const {
    double best = 0;
    for (const bench::Peak& p : peaks) {
      if (fast && dense && isa == "amx" && p.name == "bf16 AMX") return p.per_s;
      const bool kind = p.name.rfind(dense ? "f32" : "int8", 0) == 0;
      const bool may = p.isa == isa || (isa == "amx" && p.isa == "avx512") || (isa.rfind("avx512", 0) == 0 && p.isa == "avx2") ||
                       (isa == "avx512bw" && dense && p.isa == "avx512");
      if (kind && may) best = std::max(best, p.per_s);
    }
    return best;
  }
};
Roofs roofs;
bool fast_dense = false;

// The copies of one matrix, kept for the rows and iteration counts of the same benchmark.
struct Copies {
  std::string key;
  std::unique_ptr<Backend> backend;
  std::vector<std::unique_ptr<Weight>> weights;
  uint64_t bytes = 0;
};

Copies& copies_of(const std::string& isa, const Shape& shape, const char* name, const WeightFormat& format) {
  static Copies kept;
  const std::string key = isa + "/" + shape.model + "/" + shape.name + "/" + name;
  if (kept.key == key) return kept;
  kept.weights.clear();
  kept = {key, make_native_backend(isa, 1, fast_dense), {}, 0};
  MemorySource source;
  source.add("w", random_matrix(format, shape.out, shape.cols, 1));
  const WeightPart part{"w", {0, shape.out}, {0, shape.cols}};
  do {
    kept.weights.push_back(kept.backend->load(source, {&part, 1}, shape.unit));
    kept.bytes = kept.weights.front()->bytes;
  } while (kept.weights.size() * kept.bytes < kColdBytes);
  return kept;
}

void linear(benchmark::State& state, const std::string& isa, const Shape& shape, const char* name, const WeightFormat& format,
            size_t rows) {
  const Copies& copies = copies_of(isa, shape, name, format);
  Backend& backend = *copies.backend;
  const std::vector<float> x = random_values(rows * shape.cols, 2);
  size_t i = 0;
  for (auto _ : state) {
    const Tensor input = backend.from_host(rows, shape.cols, x);
    const Weight& w = *copies.weights[i++ % copies.weights.size()];
    if (shape.unit > 0)
      benchmark::DoNotOptimize(backend.linear_partial(input, w));
    else
      benchmark::DoNotOptimize(backend.linear(input, w, nullptr));
  }
  using benchmark::Counter;
  const auto bytes = static_cast<double>(copies.bytes), multiply_adds = static_cast<double>(rows * shape.out * shape.cols);
  const double peak = roofs.multiply_adds(isa, format.coding == Coding::dense, fast_dense);
  const double least_s = std::max(bytes / roofs.bytes_per_s, peak > 0 ? multiply_adds / peak : 0);  // nothing can be faster
  const auto times = static_cast<double>(state.iterations());
  state.counters["bytes/s"] = Counter(times * bytes, Counter::kIsRate);
  state.counters["madds/s"] = Counter(times * multiply_adds, Counter::kIsRate);
  state.counters["roof_%"] = Counter(100 * times * least_s, Counter::kIsRate);
}

// The demo model's attention: 9 heads on 3 KV heads of 64, `rows` new tokens after `cached` ones.
void attention(benchmark::State& state, const std::string& isa, size_t rows, size_t cached, KvType type) {
  const auto backend = make_native_backend(isa, 1);
  const size_t count = ceil_div(cached + rows, kKvBlock);
  const auto cache = backend->make_kv_cache({1, 3, 64, count, type});
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
  const std::vector<float> values = random_values(rows * 960, 1);
  const Tensor qkv = backend->from_host(rows, 960, values);
  for (auto _ : state) benchmark::DoNotOptimize(backend->attention(qkv, *cache, params, {&segment, 1}));
  // A query reads the keys and values up to itself, each once for scores and once for the sum.
  const double keys = static_cast<double>(rows) * (static_cast<double>(cached) + static_cast<double>(rows + 1) / 2);
  state.counters["rows/s"] = benchmark::Counter(static_cast<double>(state.iterations() * rows), benchmark::Counter::kIsRate);
  state.counters["madds/s"] = benchmark::Counter(static_cast<double>(state.iterations()) * keys * 9 * 64 * 2, benchmark::Counter::kIsRate);
}

struct Options {
  std::vector<std::string> isas{native_isas().front()}, shapes{"demo"}, formats, rows{"1", "4", "16", "64", "512"};
};

bool chosen(const std::vector<std::string>& list, const std::string& word) {
  return list.empty() || std::find(list.begin(), list.end(), word) != list.end();
}

void add_all(const Options& o) {
  for (const std::string& isa : o.isas) {
    for (const auto& [name, format] : kFormats)
      for (const Shape& shape : kShapes)
        for (const std::string& rows : o.rows) {
          if (!chosen(o.formats, name) || !chosen(o.shapes, shape.model)) continue;
          const std::string title = "linear/" + isa + "/" + name + "/" + shape.model + "/" + shape.name + "/rows:" + rows;
          benchmark::RegisterBenchmark(title.c_str(), linear, isa, shape, name, format, std::stoul(rows));
        }
    if (!chosen(o.shapes, "demo")) continue;
    for (const auto& [kv, type] : {std::pair{"f16", KvType::f16}, std::pair{"q8", KvType::q8}})
      for (const auto& [rows, cached] : {std::pair<size_t, size_t>{1, 0}, {1, 512}, {1, 1024}, {1, 2048}, {512, 0}, {512, 1536}}) {
        const std::string title = "attention/" + isa + "/" + kv + "/rows:" + std::to_string(rows) + "/cached:" + std::to_string(cached);
        benchmark::RegisterBenchmark(title.c_str(), attention, isa, rows, cached, type);
      }
  }
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, ',');) words.push_back(word);
  return words;
}

constexpr const char* kHelp =
    "Operations of the native backend alone: GB/s of weights, multiply-adds/s, and the share of this machine's roof.\n"
    "  --isa NAMES      instruction sets, or all (default: the best one here)\n"
    "  --shapes NAMES   demo (SmolLM2-135M), 8b (a Llama-3-8B layer) (default: demo)\n"
    "  --formats NAMES  q4_1, q4_0, q8_0, q6_k, mlx4, mxfp4, f16, bf16 (default: all)\n"
    "  --fast-dense     dense weights in pairs of bf16, as in `verbund run`\n"
    "  --rows NUMBERS   tokens of a step (default: 1,4,16,64,512)\n"
    "Names are separated by commas. Every flag of Google Benchmark works too, for example --benchmark_filter=gate_up,\n"
    "--benchmark_min_time=0.1, --benchmark_format=json.\n";

// Takes our flags out of argv and leaves Google Benchmark's.
bool parse(int& argc, char** argv, Options& o) {
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    std::vector<std::string>* list = flag == "--isa"       ? &o.isas
                                     : flag == "--shapes"  ? &o.shapes
                                     : flag == "--formats" ? &o.formats
                                     : flag == "--rows"    ? &o.rows
                                                           : nullptr;
    if (flag == "--help") return false;
    if (flag == "--fast-dense") {
      fast_dense = true;
      continue;
    }
    if (!list)
      argv[kept++] = argv[i];
    else if (++i < argc)
      *list = split(argv[i]);
    else
      return false;
  }
  argc = kept;
  if (o.isas == std::vector<std::string>{"all"}) o.isas = native_isas(), std::erase(o.isas, "scalar");
  return std::all_of(o.rows.begin(), o.rows.end(), [](const std::string& r) {
    return !r.empty() && r.size() < 6 && r.find_first_not_of("0123456789") == std::string::npos && std::stoul(r) > 0;
  });
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    std::fputs(kHelp, stderr);
    return argc > 1 && std::string(argv[1]) == "--help" ? 0 : 2;
  }
  add_all(options);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  roofs = {bench::read_bandwidth(kColdBytes, 1, kRoofSeconds).best(), bench::peaks(1, kRoofSeconds)};
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
