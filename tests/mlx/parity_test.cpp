// The two backends against one another, on the cases of compute: what the scalar native backend computes, MLX computes too.
// Native quantises activations to int8 for quantised weights and MLX does not, so those products agree as far as that.
#ifdef VERBUND_MLX_BUILT
#include "compute/backend_fixture.h"
#include "compute/mlx_module.h"
#include "mlx/compare.h"

namespace verbund::compute::testing {
namespace {

struct Backends {
  std::unique_ptr<Backend> native = make_native_backend("scalar", 1);
  std::unique_ptr<Backend> mlx = make_mlx_backend();
};

std::vector<double> widened(const std::vector<float>& v) { return {v.begin(), v.end()}; }

TEST(MlxParity, Products) {
  const Backends b;
  for (const ProductCase& c : product_cases()) {
    SCOPED_TRACE(c.name);
    MemorySource source;
    source.add("w", random_matrix(c.format, c.out, c.cols, 1));
    const auto x = random_values(c.rows * c.cols, 2);
    const WeightPart part{"w", {0, c.out}, {0, c.cols}};
    const auto results = [&](Backend& backend) {
      backend.begin_step();
      const auto column = backend.load(source, {&part, 1}, 0), row = backend.load(source, {&part, 1}, c.unit);
      auto y = host(backend, backend.linear(backend.from_host(c.rows, c.cols, x), *column, nullptr));
      const auto sums = reduced(backend, backend.linear_partial(backend.from_host(c.rows, c.cols, x), *row));
      y.insert(y.end(), sums.begin(), sums.end());
      backend.end_step();
      return y;
    };
    const auto native = widened(results(*b.native));
    const auto mlx = results(*b.mlx);
    if (c.format.coding == Coding::dense)
      test::expect_close(mlx, native, 1e-5);
    else
      EXPECT_GT(test::cosine(mlx, native), 0.999);
  }
}

TEST(MlxParity, Attention) {
  const Backends b;
  for (const AttentionCase& c : attention_cases()) {
    if (c.type == KvType::q8) continue;  // refused by the mlx backend
    SCOPED_TRACE(c.name);
    const size_t heads = c.kv_of_head.size(), columns = (heads + 2 * c.kv_heads) * c.head_dim;
    RopeTable rope;
    rope.pairs = c.pairs;
    for (size_t i = 0; i < 512 * c.pairs; ++i) {
      const double angle = double(i / c.pairs) * std::pow(0.01, double(i % c.pairs) / double(c.pairs));
      rope.cos.push_back(float(std::cos(angle))), rope.sin.push_back(float(std::sin(angle)));
    }
    const auto q_norm = random_values(c.head_dim, 3), k_norm = random_values(c.head_dim, 4);
    const auto results = [&](Backend& backend) {
      const auto cache = backend.make_kv_cache({1, c.kv_heads, c.head_dim, 32, c.type});
      const auto qn = backend.load_vector(q_norm), kn = backend.load_vector(k_norm);
      AttentionParams params{};
      params.heads = heads, params.kv_heads = c.kv_heads, params.head_dim = c.head_dim, params.kv_of_head = c.kv_of_head;
      params.scale = 1.0f / std::sqrt(float(c.head_dim)), params.window = c.window, params.rope_mode = c.rope, params.rope = &rope;
      if (c.norms) params.q_norm = qn.get(), params.k_norm = kn.get();
      params.norm_eps = 1e-6f;
      std::vector<std::vector<uint32_t>> blocks(c.sequences.size());
      uint32_t next = 0;
      for (size_t s = 0; s < blocks.size(); ++s)
        for (size_t p = 0; p < c.sequences[s].cached + c.sequences[s].fresh; p += kKvBlock) blocks[s].push_back(next++);
      const auto step = [&](bool fresh) {  // first everything that is to be cached, then the new tokens of all
        std::vector<Segment> segments;
        uint32_t rows = 0;
        for (size_t s = 0; s < blocks.size(); ++s) {
          const auto n = static_cast<uint32_t>(fresh ? c.sequences[s].fresh : c.sequences[s].cached);
          if (n > 0) segments.push_back({rows, n, fresh ? uint32_t(c.sequences[s].cached) : 0, blocks[s]});
          rows += n;
        }
        if (rows == 0) return std::vector<float>();
        backend.begin_step();
        auto out = host(backend, backend.attention(backend.from_host(rows, columns, random_values(rows * columns, fresh ? 5 : 6)), *cache,
                                                   params, segments));
        backend.end_step();
        return out;
      };
      auto out = step(false);
      const auto more = step(true);
      out.insert(out.end(), more.begin(), more.end());
      return out;
    };
    test::expect_close(results(*b.mlx), widened(results(*b.native)), c.type == KvType::f16 ? 5e-4 : 2e-5);
  }
}

TEST(MlxParity, ElementwiseAndEmbedding) {
  const Backends b;
  MemorySource source;
  source.add("e", random_matrix(symmetric(6, 16, 32, DType::f32), 12, 96, 7));
  const auto x = random_values(5 * 96, 8, 4.0f), w = random_values(96, 9);
  const auto results = [&](Backend& backend) {
    std::vector<float> all;
    const auto add = [&](const Tensor& t) {
      const auto y = host(backend, t);
      all.insert(all.end(), y.begin(), y.end());
    };
    const WeightPart part{"e", {2, 10}, {0, 96}};
    const auto table = backend.load(source, {&part, 1}, 0);
    const auto norm = backend.load_vector(w);
    backend.begin_step();
    const Tensor t = backend.from_host(5, 96, x);
    add(backend.rms_norm(t, *norm, 1e-5f));
    add(backend.gated(t, Activation::silu));
    add(backend.gated(t, Activation::gelu_tanh));
    add(backend.take_rows(t, std::vector<uint32_t>{4, 0}));
    add(backend.embed(*table, std::vector<int32_t>{2, 9, 10, 1}, 2));
    backend.end_step();
    return all;
  };
  test::expect_close(results(*b.mlx), widened(results(*b.native)), 1e-5);
}

}  // namespace
}  // namespace verbund::compute::testing
#endif
