// Attention: against a double-precision definition, every instruction set against the scalar one, and whatever must not
// matter (chunks of a prompt, other sequences, where the blocks lie, threads).
#include <numeric>

#include "compute/backend_fixture.h"
#include "compute/bits.h"
#include "compute/native/backend.h"
#include "compute/numerics.h"

namespace verbund::compute::testing {
namespace {

using native::choose_isa;
using native::NativeBackend;

struct Layout {
  std::vector<size_t> chunks;  // tokens of each step; the last may be shorter
  bool shuffled_blocks = false;
  bool together = true;  // all sequences in one step, or one after another
};

RopeTable rope_table(const AttentionCase& c, size_t positions) {
  RopeTable table;
  table.pairs = c.pairs;
  for (size_t p = 0; p < positions; ++p)
    for (size_t i = 0; i < c.pairs; ++i) {
      double sin = 0, cos = 0;
      exact_sincos(static_cast<double>(p) * exact_pow(10000.0, -2.0 * static_cast<double>(i) / (2.0 * static_cast<double>(c.pairs))), sin,
                   cos);
      table.cos.push_back(static_cast<float>(cos));
      table.sin.push_back(static_cast<float>(sin));
    }
  return table;
}

// Everything one case needs: projections of all positions of every sequence, and the tables.
struct Scene {
  explicit Scene(const AttentionCase& attention_case) : c(attention_case), cols((c.kv_of_head.size() + 2 * c.kv_heads) * c.head_dim) {
    for (size_t s = 0; s < c.sequences.size(); ++s) {
      lengths.push_back(c.sequences[s].cached + c.sequences[s].fresh);
      qkv.push_back(random_values(lengths[s] * cols, 10 + s));
      longest = std::max(longest, lengths[s]);
    }
    rope = rope_table(c, longest);
    q_norm = random_values(c.head_dim, 20);
    k_norm = random_values(c.head_dim, 21);
  }

  const AttentionCase& c;
  size_t cols;
  std::vector<size_t> lengths;
  std::vector<std::vector<float>> qkv;
  size_t longest = 0;
  RopeTable rope;
  std::vector<float> q_norm, k_norm;
};

// Attention outputs of all positions of every sequence.
std::vector<std::vector<float>> run(Backend& backend, const Scene& s, const Layout& layout) {
  const size_t per_sequence = ceil_div(s.longest, kKvBlock), count = s.lengths.size();
  std::vector<uint32_t> ids(per_sequence * count);
  std::iota(ids.begin(), ids.end(), 0u);
  if (layout.shuffled_blocks) std::shuffle(ids.begin(), ids.end(), std::mt19937(3));
  const auto cache = backend.make_kv_cache({2, s.c.kv_heads, s.c.head_dim, ids.size(), s.c.type});
  const auto q_norm = backend.load_vector(s.q_norm), k_norm = backend.load_vector(s.k_norm);
  AttentionParams params{};
  params.layer = 1;
  params.heads = s.c.kv_of_head.size();
  params.kv_heads = s.c.kv_heads;
  params.head_dim = s.c.head_dim;
  params.kv_of_head = s.c.kv_of_head;
  params.scale = 1.0f / std::sqrt(static_cast<float>(s.c.head_dim));
  params.window = s.c.window;
  params.rope_mode = s.c.rope;
  params.rope = &s.rope;
  params.norm_eps = 1e-5f;
  if (s.c.norms) {
    params.q_norm = q_norm.get();
    params.k_norm = k_norm.get();
  }

  std::vector<std::vector<float>> out(count);
  std::vector<size_t> done(count, 0);
  const auto step = [&](const std::vector<size_t>& members, size_t chunk) {
    std::vector<Segment> segments;
    std::vector<float> x;
    uint32_t rows = 0;
    for (size_t i : members) {
      const size_t n = std::min(chunk, s.lengths[i] - done[i]);
      if (n == 0) continue;
      segments.push_back(
          {rows, static_cast<uint32_t>(n), static_cast<uint32_t>(done[i]), std::span(ids).subspan(i * per_sequence, per_sequence)});
      x.insert(x.end(), s.qkv[i].begin() + done[i] * s.cols, s.qkv[i].begin() + (done[i] + n) * s.cols);
      rows += static_cast<uint32_t>(n);
    }
    backend.begin_step();
    const auto y = host(backend, backend.attention(backend.from_host(rows, s.cols, x), *cache, params, segments));
    backend.end_step();
    const size_t width = params.heads * s.c.head_dim;
    for (size_t k = 0, next = 0; k < members.size(); ++k) {
      const size_t i = members[k], n = std::min(chunk, s.lengths[i] - done[i]);
      out[i].insert(out[i].end(), y.begin() + next * width, y.begin() + (next + n) * width);
      done[i] += n;
      next += n;
    }
  };
  std::vector<size_t> all(count);
  std::iota(all.begin(), all.end(), 0u);
  for (size_t turn = 0; !std::equal(done.begin(), done.end(), s.lengths.begin()); ++turn) {
    const size_t chunk = layout.chunks[std::min(turn, layout.chunks.size() - 1)];
    if (layout.together)
      step(all, chunk);
    else
      for (size_t i : all) step({i}, chunk);
  }
  return out;
}

// The definition in double precision, over all positions at once.
std::vector<double> exact(const Scene& s, size_t sequence) {
  const AttentionCase& c = s.c;
  const size_t dim = c.head_dim, heads = c.kv_of_head.size(), n = s.lengths[sequence];
  const auto prepared = [&](size_t p, size_t head, bool key) {
    const float* x = s.qkv[sequence].data() + p * s.cols + head * dim;
    std::vector<double> v(x, x + dim);
    if (c.norms) {
      double squares = 0;
      for (double e : v) squares += e * e;
      for (size_t d = 0; d < dim; ++d) v[d] *= (key ? s.k_norm : s.q_norm)[d] / std::sqrt(squares / static_cast<double>(dim) + 1e-5);
    }
    for (size_t i = 0; i < c.pairs; ++i) {
      const size_t a = c.rope == RopeMode::half ? i : 2 * i, b = c.rope == RopeMode::half ? i + c.pairs : 2 * i + 1;
      const double cos = s.rope.cos[p * c.pairs + i], sin = s.rope.sin[p * c.pairs + i], x1 = v[a], x2 = v[b];
      v[a] = x1 * cos - x2 * sin;
      v[b] = x2 * cos + x1 * sin;
    }
    return v;
  };
  std::vector<double> out;
  for (size_t p = 0; p < n; ++p)
    for (size_t h = 0; h < heads; ++h) {
      const auto q = prepared(p, h, false);
      std::vector<double> o(dim), weights;
      double sum = 0, largest = -INFINITY;
      const size_t first = c.window == 0 || p < c.window ? 0 : p - c.window + 1;
      for (size_t j = first; j <= p; ++j) {
        const auto k = prepared(j, heads + c.kv_of_head[h], true);
        double dot = 0;
        for (size_t d = 0; d < dim; ++d) dot += q[d] * k[d];
        weights.push_back(dot / std::sqrt(static_cast<double>(dim)));
        largest = std::max(largest, weights.back());
      }
      for (double& w : weights) sum += w = std::exp(w - largest);
      for (size_t j = first; j <= p; ++j)
        for (size_t d = 0; d < dim; ++d)
          o[d] += weights[j - first] / sum * s.qkv[sequence][j * s.cols + (heads + c.kv_heads + c.kv_of_head[h]) * dim + d];
      out.insert(out.end(), o.begin(), o.end());
    }
  return out;
}

class Attention : public ::testing::TestWithParam<AttentionCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, Attention, ::testing::ValuesIn(attention_cases()), [](const auto& info) { return info.param.name; });

TEST_P(Attention, IsCloseToTheDefinition) {
  const Scene s(GetParam());
  const auto backend = make_native_backend("scalar", 1);
  const auto y = run(*backend, s, {{1000}});
  for (size_t i = 0; i < y.size(); ++i) {
    const auto expected = exact(s, i);
    ASSERT_EQ(y[i].size(), expected.size());
    const double tolerance = s.c.type == KvType::q8 ? 4e-2 : s.c.type == KvType::f16 ? 4e-3 : 2e-5;
    for (size_t k = 0; k < expected.size(); ++k) ASSERT_NEAR(y[i][k], expected[k], tolerance) << "sequence " << i << ", value " << k;
  }
}

TEST_P(Attention, HasTheSameBitsHoweverItIsRun) {
  const Scene s(GetParam());
  const auto reference = make_native_backend("scalar", 1);
  const auto expected = run(*reference, s, {{1000}});
  for (size_t i = 0; i < expected.size(); ++i) note_bits("attention/" + s.c.name + "/" + std::to_string(i), expected[i]);
  for (const std::string& isa : native_isas())
    for (unsigned threads : {1u, 3u}) {
      const auto backend = make_native_backend(isa, threads);
      for (const Layout& layout : {Layout{{1000}}, Layout{{1}}, Layout{{7}, true, false}, Layout{{31, 2, 64}, true},
                                   Layout{{32}, false, false}, Layout{{33, 1, 5}}}) {
        const auto y = run(*backend, s, layout);
        for (size_t i = 0; i < y.size(); ++i)
          ASSERT_TRUE(same_bits(y[i], expected[i])) << isa << ", sequence " << i << ", first chunk " << layout.chunks[0];
      }
    }
}

// Contexts around and beyond the borders of partitions; with several threads few tiles are cut into partitions.
class AttentionPartitions : public ::testing::TestWithParam<AttentionCase> {};
INSTANTIATE_TEST_SUITE_P(
    Cases, AttentionPartitions,
    ::testing::Values(
        AttentionCase{"borders", 16, {0, 0}, 1, KvType::f16, 0, RopeMode::none, 0, false, {{0, 1000}, {0, 1023}, {0, 1024}, {0, 1025}}},
        AttentionCase{"three", 20, {0, 1}, 2, KvType::f16, 0, RopeMode::half, 5, true, {{0, 3000}}},
        AttentionCase{"just_three", 16, {0}, 1, KvType::f32, 0, RopeMode::none, 0, false, {{0, 2049}}},
        AttentionCase{"two_q8", 16, {0, 0, 0}, 1, KvType::q8, 0, RopeMode::none, 0, false, {{0, 2048}}},
        AttentionCase{"window_over_a_border", 16, {0, 0}, 1, KvType::q8, 1100, RopeMode::none, 0, false, {{0, 2300}}},
        AttentionCase{"small_window", 16, {0, 0, 0, 0, 0}, 1, KvType::f16, 40, RopeMode::half, 8, false, {{0, 2100}}}),
    [](const auto& info) { return info.param.name; });

TEST_P(AttentionPartitions, HaveTheSameBitsHoweverTheyAreShared) {
  const Scene s(GetParam());
  const auto expected = run(*make_native_backend("scalar", 1), s, {{4000}});
  for (size_t i = 0; i < expected.size(); ++i) note_bits("attention partitions/" + s.c.name + "/" + std::to_string(i), expected[i]);
  for (const std::string& isa : native_isas())
    for (unsigned threads : {1u, 2u, 4u}) {
      const auto backend = make_native_backend(isa, threads);
      // The last steps have few rows: their tiles are shared.
      for (const Layout& layout : {Layout{{4000}}, Layout{{990, 9, 1, 1, 22, 2, 960, 60, 3, 5, 900, 1}, true, false}}) {
        const auto y = run(*backend, s, layout);
        for (size_t i = 0; i < y.size(); ++i)
          ASSERT_TRUE(same_bits(y[i], expected[i]))
              << isa << ", " << threads << " threads, sequence " << i << ", first chunk " << layout.chunks[0];
      }
    }
}

TEST_P(AttentionPartitions, AreCloseToTheDefinition) {
  const Scene s(GetParam());
  const auto y = run(*make_native_backend("auto", 2), s, {{1500, 200, 1}});
  for (size_t i = 0; i < y.size(); ++i) {
    const auto expected = exact(s, i);
    const double tolerance = s.c.type == KvType::q8 ? 4e-2 : s.c.type == KvType::f16 ? 4e-3 : 2e-5;
    ASSERT_EQ(y[i].size(), expected.size());
    for (size_t k = 0; k < expected.size(); ++k) ASSERT_NEAR(y[i][k], expected[k], tolerance) << "sequence " << i << ", value " << k;
  }
}

// One partition is attended as ever: the contract of short contexts does not know of partitions.
TEST(AttentionPartitionsMemory, IsAnnounced) {
  NativeBackend backend(choose_isa("auto"), 2);
  EXPECT_EQ(backend.attention_bytes(1024, 64), 0u);
  EXPECT_GT(backend.attention_bytes(1025, 64), 0u);
  EXPECT_EQ(NativeBackend(choose_isa("auto"), 1).attention_bytes(100'000, 64), 0u);  // nobody to share with
  const AttentionCase c{"", 64, {0, 0, 0, 1, 1, 1}, 2, KvType::f16, 0, RopeMode::none, 0, false, {{0, 3001}}};
  const Scene s(c);
  run(backend, s, {{3000, 1}});
  const size_t rows = 3000, qkv = s.cols;
  EXPECT_LE(backend.step_bytes_peak(), backend.step_bytes(rows, 2 * qkv, qkv) + backend.attention_bytes(3001, 64));
}

// Later tokens that are no numbers must not reach earlier ones, not even through a factor of 0.
TEST(AttentionPoison, StaysWithTheTokensThatSeeIt) {
  const AttentionCase c{"", 32, {0, 0}, 1, KvType::f16, 0, RopeMode::none, 0, false, {{0, 50}}};
  Scene s(c);
  const auto clean = run(*make_native_backend("scalar", 1), s, {{1000}});
  for (size_t d = 0; d < s.cols; ++d) s.qkv[0][40 * s.cols + d] = std::nanf("");
  for (const std::string& isa : native_isas()) {
    const auto y = run(*make_native_backend(isa, 1), s, {{1000}});
    const size_t width = 2 * c.head_dim;
    EXPECT_TRUE(same_bits(slice(y[0], 0, 40 * width), slice(clean[0], 0, 40 * width))) << isa;
    for (size_t i = 40 * width; i < 50 * width; ++i) ASSERT_TRUE(std::isnan(y[0][i])) << isa << " " << i;
  }
}

TEST(AttentionErrors, ShapesAreChecked) {
  const auto backend = make_native_backend("auto", 1);
  const auto cache = backend->make_kv_cache({1, 1, 32, 2, KvType::f16});
  EXPECT_EQ(cache->bytes, 1u * 2 * 32 * 32 * 2 * 2);
  const std::vector<uint32_t> kv_of_head{0}, blocks{0, 1}, wrong{0, 2};
  AttentionParams params{};
  params.heads = params.kv_heads = 1;
  params.head_dim = 32;
  params.kv_of_head = kv_of_head;
  params.scale = 1;
  params.rope_mode = RopeMode::none;
  const Tensor x = backend->from_host(2, 96, random_values(192, 1));
  const auto attend = [&](uint32_t position, const std::vector<uint32_t>& ids) {
    const Segment segment{0, 2, position, ids};
    backend->attention(x, *cache, params, {&segment, 1});
  };
  EXPECT_NO_THROW(attend(62, blocks));
  EXPECT_THROW(attend(63, blocks), Error);  // one position past the blocks
  EXPECT_THROW(attend(40, wrong), Error);   // no such block
  params.head_dim = 16;
  EXPECT_THROW(attend(0, blocks), Error);
}

}  // namespace
}  // namespace verbund::compute::testing
