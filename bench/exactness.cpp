// What exactness costs: the matrix products of a step of the demo model, once as the engine does them (row-parallel products
// rounded to 64-bit fixed point, summed, turned back and added to the residual) and once with the same kernels without it (plain
// f32 products, f32 addition to the residual). Same weights, same order, every layer with its own copy, as in a model.
//
//   bench_exactness [--isa avx512] [--threads 1] [--rows 1,16,512] [--repeat 15] [--json]
//
// Both forms take turns; the smallest time of each counts, for a disturbance only ever adds. Attention is left out, so the share
// is of the products alone and larger than that of a whole step. One rank: what int64 instead of f32 costs on the wire shows in
// `verbund bench link` (twice the bytes).
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "compute/memory_source.h"
#include "compute/native/tensors.h"
#include "machine.h"

namespace verbund::bench {
namespace {

using namespace compute;
using namespace compute::testing;
using Clock = std::chrono::steady_clock;

// SmolLM2-135M.
constexpr size_t kLayers = 30, kHidden = 576, kQkv = 960, kMlp = 1536, kUnit = 192;
constexpr float kEps = 1e-5f;

struct Options {
  std::string isa = "auto";
  unsigned threads = 1;
  std::vector<size_t> rows{1, 16, 512};
  int repeat = 15;
  bool json = false;
};

struct Layer {
  std::unique_ptr<Weight> qkv, gate_up, o_exact, o_plain, down_exact, down_plain;
};

// residual += x, row by row, with as wide vectors as the compiler finds.
#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#endif
void add_rows(float* residual, const float* x, size_t n) {
  for (size_t i = 0; i < n; ++i) residual[i] += x[i];
}

class ExactnessBench {
 public:
  explicit ExactnessBench(const Options& o) : o_(o), backend_(make_native_backend(o.isa, o.threads)), mesh_(mesh::make_solo_mesh()) {
    MemorySource source;
    const auto add = [&](const char* name, size_t rows, size_t cols) { source.add(name, random_matrix(affine(4, 32), rows, cols, 1)); };
    add("qkv", kQkv, kHidden), add("o", kHidden, kHidden), add("gate_up", 2 * kMlp, kHidden), add("down", kHidden, kMlp);
    const auto load = [&](const char* name, size_t unit) {
      const WeightMatrix& m = source.matrix(name);
      const WeightPart part{name, {0, m.rows}, {0, m.cols}};
      return backend_->load(source, {&part, 1}, unit);
    };
    for (size_t i = 0; i < kLayers; ++i)
      layers_.push_back({load("qkv", 0), load("gate_up", 0), load("o", kUnit), load("o", 0), load("down", kUnit), load("down", 0)});
    norm_ = backend_->load_vector(std::vector<float>(kHidden, 1.0f));
  }

  nlohmann::json run() {
    nlohmann::json out{{"machine", machine()}, {"backend", backend_->description()}, {"rows", nlohmann::json::array()}};
    for (const size_t rows : o_.rows) {
      const std::vector<float> x = random_values(rows * kHidden, 2), attended = random_values(rows * kHidden, 3);
      double exact = 1e9, plain = 1e9;
      for (int i = -2; i < o_.repeat; ++i) {
        const double a = step(rows, x, attended, true), b = step(rows, x, attended, false);
        if (i >= 0) exact = std::min(exact, a), plain = std::min(plain, b);
      }
      out["rows"].push_back({{"rows", rows}, {"exact_s", exact}, {"plain_s", plain}, {"cost", exact / plain - 1}});
    }
    return out;
  }

 private:
  double step(size_t rows, const std::vector<float>& x, const std::vector<float>& attended, bool exact) {
    std::vector<Tensor> inputs;  // what attention would give; made outside of the timed window, never quantised before
    for (size_t i = 0; i < kLayers; ++i) inputs.push_back(backend_->from_host(rows, kHidden, attended));
    Tensor h = backend_->from_host(rows, kHidden, x);
    const auto begun = Clock::now();
    backend_->begin_step();
    for (size_t i = 0; i < kLayers; ++i) {
      const Layer& l = layers_[i];
      backend_->norm_linear(h, *norm_, kEps, *l.qkv, nullptr);
      h = add_product(h, inputs[i], exact ? *l.o_exact : *l.o_plain, exact);
      const Tensor gated = backend_->gated(backend_->norm_linear(h, *norm_, kEps, *l.gate_up, nullptr), Activation::silu);
      h = add_product(h, gated, exact ? *l.down_exact : *l.down_plain, exact);
    }
    backend_->end_step();
    return std::chrono::duration<double>(Clock::now() - begun).count();
  }

  Tensor add_product(const Tensor& h, const Tensor& x, const Weight& w, bool exact) {
    if (exact) return backend_->add_reduced(h, backend_->linear_partial(x, w), nullptr, *mesh_, Deadline::after(std::chrono::seconds(60)));
    const Tensor y = backend_->linear(x, w, nullptr);
    native::FloatTensor &into = native::floats(y, "bench"), &residual = native::floats(h, "bench");
    add_rows(into.row(0), residual.row(0), into.rows * into.stride());
    return y;
  }

  const Options& o_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<mesh::Mesh> mesh_;
  std::vector<Layer> layers_;
  std::unique_ptr<Vector> norm_;
};

void print(const nlohmann::json& out) {
  std::printf("%s\n%s\n\n%6s %12s %12s %8s\n", describe(out["machine"]).c_str(), out["backend"].get<std::string>().c_str(), "rows",
              "exact, ms", "plain, ms", "cost");
  for (const auto& r : out["rows"])
    std::printf("%6zu %12.3f %12.3f %+7.1f%%\n", r["rows"].get<size_t>(), 1e3 * r["exact_s"].get<double>(),
                1e3 * r["plain_s"].get<double>(), 100 * r["cost"].get<double>());
}

}  // namespace
}  // namespace verbund::bench

int main(int argc, char** argv) {
  using namespace verbund;
  bench::Options options;
  CLI::App app{"What exactness costs: the products of a step with and without the fixed-point reduction"};
  app.add_option("--isa", options.isa, "instruction set of the kernels, as in `verbund run`")->capture_default_str();
  app.add_option("--threads", options.threads, "threads of the backend")->check(CLI::Range(1, 1024))->capture_default_str();
  app.add_option("--rows", options.rows, "tokens of a step")->delimiter(',')->check(CLI::Range(1, 65536))->capture_default_str();
  app.add_option("--repeat", options.repeat, "steps of each form")->check(CLI::Range(1, 10000))->capture_default_str();
  app.add_flag("--json", options.json, "print one JSON object");
  CLI11_PARSE(app, argc, argv);
  try {
    const nlohmann::json out = bench::ExactnessBench(options).run();
    if (options.json)
      std::printf("%s\n", out.dump(2).c_str());
    else
      bench::print(out);
    return 0;
  } catch (const Error& e) {
    std::fprintf(stderr, "bench_exactness: %s\n", e.what());
    return mapping(e.code()).exit_code;
  }
}
