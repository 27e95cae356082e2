// Attention of the MLX backend, with its paged cache, against f64 loops over whole sequences.
#ifdef VERBUND_MLX_BUILT
#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "compute/backend.h"
#include "compute/memory_source.h"
#include "compute/mlx_module.h"
#include "mlx/compare.h"
#include "mlx/module_functions.h"

namespace verbund::compute {
namespace {

using testing::random_values;

struct Shape {
  size_t heads, kv_heads, dim;
  std::vector<uint32_t> kv_of_head;
  size_t window = 0;
  RopeMode mode = RopeMode::half;
  size_t pairs = 0;
  bool norms = false;
  KvType type = KvType::f32;
  double factor = 1.1;  // of attention; 1 is what MLX's own rotation can do
  size_t columns() const { return (heads + 2 * kv_heads) * dim; }
};

RopeTable make_table(size_t pairs, size_t positions, double factor = 1.1) {
  RopeTable table;
  table.pairs = pairs;
  for (size_t p = 0; p < positions; ++p)
    for (size_t i = 0; i < pairs; ++i) {
      const double angle = double(p) * std::pow(10000.0, -double(i) / double(pairs));
      table.cos.push_back(static_cast<float>(factor * std::cos(angle)));
      table.sin.push_back(static_cast<float>(factor * std::sin(angle)));
    }
  return table;
}

// One sequence's rows of qkv from position 0 on, and what attention makes of each.
class Reference {
 public:
  Reference(const Shape& shape, const RopeTable& table, std::vector<float> q_norm, std::vector<float> k_norm)
      : s_(shape), table_(table), q_norm_(std::move(q_norm)), k_norm_(std::move(k_norm)) {}

  std::vector<double> outputs(std::span<const float> qkv, size_t rows) const {
    std::vector<double> out;
    for (size_t i = 0; i < rows; ++i)
      for (size_t h = 0; h < s_.heads; ++h) {
        const auto q = head(qkv, i, h, &q_norm_);
        const size_t kv = s_.kv_of_head[h], first = s_.window != 0 && i + 1 > s_.window ? i + 1 - s_.window : 0;
        std::vector<double> weights, result(s_.dim, 0.0);
        double total = 0;
        for (size_t j = first; j <= i; ++j) {
          const auto k = stored(head(qkv, j, s_.heads + kv, &k_norm_));
          double score = 0;
          for (size_t d = 0; d < s_.dim; ++d) score += q[d] * k[d];
          weights.push_back(std::exp(score * 0.2));
          total += weights.back();
        }
        for (size_t j = first; j <= i; ++j) {
          const auto v = stored(head(qkv, j, s_.heads + s_.kv_heads + kv, nullptr));
          for (size_t d = 0; d < s_.dim; ++d) result[d] += weights[j - first] / total * v[d];
        }
        out.insert(out.end(), result.begin(), result.end());
      }
    return out;
  }

 private:
  std::vector<double> stored(std::vector<double> v) const {
    if (s_.type == KvType::f16)
      for (auto& x : v) x = formats::f16_to_f32(formats::f32_to_f16(static_cast<float>(x)));
    return v;
  }
  std::vector<double> head(std::span<const float> qkv, size_t row, size_t h, const std::vector<float>* norm) const {
    const float* at = qkv.data() + row * s_.columns() + h * s_.dim;
    std::vector<double> x(at, at + s_.dim);
    if (norm == nullptr) return x;  // a value: neither normed nor rotated
    if (s_.norms) {
      double sum = 0;
      for (const double v : x) sum += v * v;
      for (size_t d = 0; d < s_.dim; ++d) x[d] = x[d] / std::sqrt(sum / double(s_.dim) + 1e-5) * (*norm)[d];
    }
    if (s_.mode == RopeMode::none) return x;
    for (size_t i = 0; i < s_.pairs; ++i) {
      double& a = x[s_.mode == RopeMode::half ? i : 2 * i];
      double& b = x[s_.mode == RopeMode::half ? i + s_.pairs : 2 * i + 1];
      const double c = table_.cos[row * s_.pairs + i], n = table_.sin[row * s_.pairs + i], first = a;
      a = first * c - b * n;
      b = b * c + first * n;
    }
    return x;
  }

  const Shape& s_;
  const RopeTable& table_;
  std::vector<float> q_norm_, k_norm_;
};

struct Chunk {
  size_t sequence, rows;
};

// Runs steps of chunks (each step a list of them) on two layers and compares every row of every sequence.
void run_on(Backend* backend, const Shape& shape, const std::vector<size_t>& lengths, const std::vector<std::vector<Chunk>>& steps,
            double half_tolerance) {
  const RopeTable table = make_table(shape.pairs, 256, shape.factor);
  const auto q_norm = random_values(shape.dim, 20), k_norm = random_values(shape.dim, 21);
  const auto q_vector = backend->load_vector(q_norm), k_vector = backend->load_vector(k_norm);
  const Reference reference(shape, table, q_norm, k_norm);
  const auto cache = backend->make_kv_cache({2, shape.kv_heads, shape.dim, 16, shape.type});
  EXPECT_EQ(cache->bytes, cache->layout.bytes());

  std::vector<std::vector<uint32_t>> blocks(lengths.size());  // handed out backwards and interleaved, as a pool would after a while
  uint32_t next = 16;
  for (size_t block = 0; block < 4; ++block)
    for (size_t s = 0; s < lengths.size(); ++s)
      if (block * kKvBlock < lengths[s]) blocks[s].push_back(--next);

  std::map<std::pair<size_t, size_t>, std::vector<float>> qkv, got;  // by (layer, sequence)
  for (size_t layer = 0; layer < 2; ++layer)
    for (size_t s = 0; s < lengths.size(); ++s)
      qkv[{layer, s}] = random_values(lengths[s] * shape.columns(), unsigned(100 + 10 * s + layer));

  std::vector<size_t> done(lengths.size(), 0);
  for (const auto& step : steps) {
    backend->begin_step();
    std::vector<Segment> segments;
    uint32_t rows = 0;
    for (const Chunk& c : step) {
      segments.push_back({rows, uint32_t(c.rows), uint32_t(done[c.sequence]), blocks[c.sequence]});
      rows += uint32_t(c.rows);
    }
    for (size_t layer = 0; layer < 2; ++layer) {
      std::vector<float> x;
      for (const Chunk& c : step) {
        const auto& all = qkv[{layer, c.sequence}];
        const auto begin = all.begin() + ptrdiff_t(done[c.sequence] * shape.columns());
        x.insert(x.end(), begin, begin + ptrdiff_t(c.rows * shape.columns()));
      }
      AttentionParams params{};
      params.layer = layer;
      params.heads = shape.heads;
      params.kv_heads = shape.kv_heads;
      params.head_dim = shape.dim;
      params.kv_of_head = shape.kv_of_head;
      params.scale = 0.2f;
      params.window = shape.window;
      params.rope_mode = shape.mode;
      params.rope = &table;
      params.q_norm = shape.norms ? q_vector.get() : nullptr;
      params.k_norm = shape.norms ? k_vector.get() : nullptr;
      params.norm_eps = 1e-5f;
      const Tensor out = backend->attention(backend->from_host(rows, shape.columns(), x), *cache, params, segments);
      std::vector<float> values(rows * shape.heads * shape.dim);
      if (step.size() % 2 == 0 || layer == 1) {  // sometimes nobody looks: the cache must be written all the same
        backend->to_host(out, values);
        const float* at = values.data();
        for (const Chunk& c : step) {
          auto& to = got[{layer, c.sequence}];
          to.resize(done[c.sequence] * shape.heads * shape.dim, NAN);
          to.insert(to.end(), at, at + c.rows * shape.heads * shape.dim);
          at += c.rows * shape.heads * shape.dim;
        }
      }
    }
    backend->end_step();
    for (const Chunk& c : step) done[c.sequence] += c.rows;
  }
  for (auto& [key, values] : got) {
    SCOPED_TRACE("layer " + std::to_string(key.first) + " sequence " + std::to_string(key.second));
    auto want = reference.outputs(qkv[key], lengths[key.second]);
    values.resize(want.size(), NAN);
    size_t compared = 0;
    for (size_t i = 0; i < want.size(); ++i)
      if (std::isnan(values[i]))
        values[i] = float(want[i]);
      else
        ++compared;
    EXPECT_GT(compared, 0u);
    // Rounding to f16 at the edge of a step may differ between the two: then one key differs by 2^-11.
    test::expect_close(values, want, shape.type == KvType::f16 ? half_tolerance : 2e-5);
  }
}

// As written for the CPU, and as written for a GPU, which attends in the type of the cache.
void run(const Shape& shape, const std::vector<size_t>& lengths, const std::vector<std::vector<Chunk>>& steps) {
  run_on(make_mlx_backend().get(), shape, lengths, steps, 5e-4);
  SCOPED_TRACE("in the form of a GPU");
  run_on(test::make_gpu_form().get(), shape, lengths, steps, 5e-3);
}

TEST(MlxAttention, PrefillChunksAndDecode) {
  run({4, 2, 16, {0, 0, 1, 1}, 0, RopeMode::half, 8}, {70}, {{{0, 40}}, {{0, 1}}, {{0, 28}}, {{0, 1}}});
}

TEST(MlxAttention, MixedStepOfSeveralSequences) {
  run({4, 2, 16, {0, 0, 1, 1}, 0, RopeMode::half, 8}, {70, 35, 33},
      {{{0, 64}, {1, 33}}, {{0, 1}, {2, 31}, {1, 1}}, {{2, 1}, {0, 5}}, {{1, 1}, {2, 1}}});
}

TEST(MlxAttention, KvHeadsHeldAtTheBorderOfAShare) {
  run({5, 2, 16, {0, 1, 1, 1, 1}, 0, RopeMode::half, 8}, {40}, {{{0, 33}}, {{0, 6}}, {{0, 1}}});
  run({3, 2, 16, {0, 0, 1}, 0, RopeMode::half, 8}, {40}, {{{0, 39}}, {{0, 1}}});
}

TEST(MlxAttention, Windows) {
  for (const size_t window : {1u, 7u, 32u, 33u, 64u})
    run({2, 1, 16, {0, 0}, window, RopeMode::half, 8}, {100, 50}, {{{0, 50}}, {{1, 20}, {0, 33}}, {{0, 1}, {1, 1}}, {{1, 29}, {0, 16}}});
}

TEST(MlxAttention, RotationsAndNorms) {
  for (const RopeMode mode : {RopeMode::half, RopeMode::interleaved})
    for (const size_t pairs : {8u, 4u})
      for (const bool norms : {false, true})
        for (const double factor : {1.0, 1.1})
          run({2, 2, 16, {0, 1}, 0, mode, pairs, norms, KvType::f32, factor}, {20, 9},
              {{{0, 12}}, {{0, 1}, {1, 8}}, {{0, 6}}, {{1, 1}, {0, 1}}});
  run({2, 2, 16, {0, 1}, 0, RopeMode::none, 8, true}, {20}, {{{0, 12}}, {{0, 8}}});
}

TEST(MlxAttention, HalfPrecisionCache) {
  run({4, 2, 16, {0, 0, 1, 1}, 0, RopeMode::half, 8, true, KvType::f16}, {70}, {{{0, 40}}, {{0, 1}}, {{0, 29}}});
}

// A prefill step whose output nobody reads cannot report an overflow (end_step() does not throw): the sequence fails when
// it is read out later, and the other sequence of that step does not.
TEST(MlxAttention, OverflowInAnUnreadStepFailsTheSequenceLater) {
  const auto backend = make_mlx_backend();
  const auto solo = mesh::make_solo_mesh();
  const Deadline deadline = Deadline::after(std::chrono::seconds(10));
  const auto cache = backend->make_kv_cache({1, 1, 16, 4, KvType::f16});
  testing::MemorySource source;
  source.add("small", testing::random_matrix(testing::dense(formats::DType::f32), 8, 16, 1));
  auto large = source.matrix("small");
  for (size_t i = 0; i < 8 * 16; ++i)
    testing::put(large.codes.data() + i * 4, formats::DType::f32, 1e4f * formats::to_f32(large.codes.data() + i * 4, formats::DType::f32));
  source.add("large", std::move(large));
  const auto load = [&](const char* name) {
    const WeightPart part{name, {0, 8}, {0, 16}};
    return backend->load(source, std::span(&part, 1), 16);
  };
  const auto small_weight = load("small"), large_weight = load("large");
  const std::vector<uint32_t> kv_of_head{0}, first{3}, second{1};
  AttentionParams params{};
  params.heads = 1, params.kv_heads = 1, params.head_dim = 16, params.kv_of_head = kv_of_head, params.scale = 0.1f,
  params.rope_mode = RopeMode::none;
  const auto layer = [&](const std::vector<float>& qkv, const Weight& w, const std::vector<Segment>& segments) {
    const Tensor x = backend->attention(backend->from_host(qkv.size() / 48, 48, qkv), *cache, params, segments);
    return backend->add_reduced(backend->zero_partial(x.rows(), 8).sums, backend->linear_partial(x, w), nullptr, *solo, deadline);
  };
  auto qkv = random_values(3 * 48, 2);
  for (size_t d = 32; d < 48; ++d) qkv[1 * 48 + d] = 1000.0f;  // fine by itself, too large behind the large weight
  backend->begin_step();
  layer(qkv, *large_weight, {{0, 2, 0, first}, {2, 1, 0, second}});
  backend->end_step();

  const auto one = random_values(48, 3);
  std::vector<float> out(8);
  backend->begin_step();
  EXPECT_NO_THROW(backend->to_host(layer(one, *small_weight, {{0, 1, 1, second}}), out));
  backend->end_step();
  backend->begin_step();
  try {
    backend->to_host(layer(one, *small_weight, {{0, 1, 2, first}}), out);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.lost(), Lost::request);
    EXPECT_EQ(e.parts().where, "rows 0");
  }
  backend->end_step();
}

// Sequences whose blocks are scattered are gathered together, padded and masked. What lies in the masked slots is left from
// whoever had the blocks before, and may be NaN.
TEST(MlxAttention, LeftoversInMaskedSlotsDoNotMatter) {
  const auto backend = make_mlx_backend();
  const auto cache = backend->make_kv_cache({1, 1, 16, 8, KvType::f16});
  const std::vector<uint32_t> kv_of_head{0}, spoiled{4, 2}, a{6, 4}, b{3, 7, 2};
  AttentionParams params{};
  params.heads = 1, params.kv_heads = 1, params.head_dim = 16, params.kv_of_head = kv_of_head, params.scale = 0.1f,
  params.rope_mode = RopeMode::none;
  const auto attend = [&](const std::vector<float>& qkv, const std::vector<Segment>& segments) {
    const size_t rows = qkv.size() / 48;
    std::vector<float> out(rows * 16);
    backend->begin_step();
    backend->to_host(backend->attention(backend->from_host(rows, 48, qkv), *cache, params, segments), out);
    backend->end_step();
    return out;
  };
  attend(std::vector<float>(64 * 48, NAN), {{0, 64, 0, spoiled}});
  const auto prompt = random_values((34 + 65) * 48, 4);
  attend(prompt, {{0, 34, 0, a}, {34, 65, 0, b}});
  for (const float v : attend(random_values(2 * 48, 5), {{0, 1, 34, a}, {1, 1, 65, b}})) EXPECT_TRUE(std::isfinite(v));
}

TEST(MlxAttention, RefusesWhatDoesNotFit) {
  const auto backend = make_mlx_backend();
  const auto cache = backend->make_kv_cache({1, 1, 16, 4, KvType::f16});
  const RopeTable table = make_table(8, 64);
  const std::vector<uint32_t> kv_of_head{0}, blocks{3}, outside{4}, bad_head{1};
  AttentionParams params{};
  params.layer = 0, params.heads = 1, params.kv_heads = 1, params.head_dim = 16;
  params.kv_of_head = kv_of_head, params.scale = 1, params.rope = &table;
  const auto attempt = [&](AttentionParams p, Segment s) {
    backend->begin_step();
    const auto x = random_values(2 * 48, 1);
    backend->attention(backend->from_host(2, 48, x), *cache, p, std::span(&s, 1));
    backend->end_step();
  };
  EXPECT_NO_THROW(attempt(params, {0, 2, 0, blocks}));
  EXPECT_THROW(attempt(params, {0, 2, 31, blocks}), Error);  // needs a second block
  EXPECT_THROW(attempt(params, {0, 2, 0, outside}), Error);
  EXPECT_THROW(attempt(params, {0, 1, 0, blocks}), Error);  // a row without a segment
  AttentionParams other = params;
  other.layer = 1;
  EXPECT_THROW(attempt(other, {0, 2, 0, blocks}), Error);
  other = params;
  other.kv_of_head = bad_head;
  EXPECT_THROW(attempt(other, {0, 2, 0, blocks}), Error);
}

}  // namespace
}  // namespace verbund::compute
#endif
