// --fast-dense (numerics.h point 1): dense products in pairs of bf16, against the definition and on every instruction set; the code
// for tiles runs here on tiles made of loops, so that it is tested on machines without AMX.
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "compute/backend_fixture.h"
#include "compute/bits.h"
#include "compute/native/backend.h"
#include "compute/native/pair_tiles.h"
#include "compute/native/row_chunks.h"
#include "compute/numerics.h"

namespace verbund::compute::testing {
namespace {

// The bfloat16 nearest to v, by the rules of IEEE-754 in double precision.
float nearest_bf16(float v) {
  if (!std::isfinite(v) || v == 0) return v;
  int exponent;
  std::frexp(v, &exponent);
  const float rounded = static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(double(v), 8 - exponent)), exponent - 8));
  return std::fabs(rounded) < 0x1p-56f ? 0.0f : rounded;
}

float contract(const std::vector<float>& x, const std::vector<float>& w, Range columns) {
  float acc = 0;
  for (size_t begin = columns.begin; begin < columns.end; begin += 32) {
    float even = 0, odd = 0;
    for (size_t k = begin; k < std::min(begin + 32, columns.end); ++k) {
      float& chain = k % 2 == 0 ? even : odd;
      chain = std::fma(nearest_bf16(x[k]), nearest_bf16(w[k]), chain);
    }
    acc += even + odd;
  }
  return acc;
}

struct Case {
  std::string name;
  WeightFormat format;
  size_t rows, out, cols, unit;
};

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const auto& [name, type] : {std::pair("f32", DType::f32), {"f16", DType::f16}, {"bf16", DType::bf16}}) {
    list.push_back({name + std::string("_few"), dense(type), 3, 37, 384, 128});
    list.push_back({name + std::string("_one"), dense(type), 1, 1, 5, 32});
    list.push_back({name + std::string("_odd"), dense(type), 9, 19, 77, 32});
    list.push_back({name + std::string("_tiles"), dense(type), 73, 70, 160, 64});
    list.push_back({name + std::string("_wide"), dense(type), 26, 33, 2500, 1024});
  }
  return list;
}

class FastDense : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const Case& c = GetParam();
    source_.add("w", random_matrix(c.format, c.out, c.cols, 1));
    x_ = random_values(c.rows * c.cols, 2);
  }
  std::unique_ptr<Weight> load(Backend& backend, size_t unit) const {
    const WeightPart part{"w", {0, GetParam().out}, {0, GetParam().cols}};
    return backend.load(source_, {&part, 1}, unit);
  }
  std::vector<float> linear(Backend& backend, size_t rows) const {
    const Case& c = GetParam();
    const auto bias = backend.load_vector(random_values(c.out, 3));
    return host(backend, backend.linear(backend.from_host(rows, c.cols, slice(x_, 0, rows * c.cols)), *load(backend, 0), bias.get()));
  }
  std::vector<float> partial(Backend& backend, size_t rows) const {
    const Case& c = GetParam();
    return reduced(backend, backend.linear_partial(backend.from_host(rows, c.cols, slice(x_, 0, rows * c.cols)), *load(backend, c.unit)));
  }
  MemorySource source_;
  std::vector<float> x_;
};

INSTANTIATE_TEST_SUITE_P(Cases, FastDense, ::testing::ValuesIn(cases()), [](const auto& info) { return info.param.name; });

TEST_P(FastDense, FollowsTheContract) {
  const Case& c = GetParam();
  const std::vector<float> bias = random_values(c.out, 3);
  std::vector<float> want, want_sums;
  std::vector<float> w(c.cols);
  for (size_t r = 0; r < c.rows; ++r)
    for (size_t o = 0; o < c.out; ++o) {
      formats::dequantise_row(source_.matrix("w"), o, w.data());
      const std::vector<float> x = slice(x_, r * c.cols, c.cols);
      want.push_back(contract(x, w, {0, c.cols}) + bias[o]);
      int64_t sum = 0;
      bool poisoned = false;
      for (size_t k = 0; k < c.cols; k += c.unit) sum += to_fixed(contract(x, w, {k, std::min(k + c.unit, c.cols)}), poisoned);
      want_sums.push_back(from_fixed(sum));
    }
  note_bits("fast_dense/" + c.name, want);
  note_bits("fast_dense/" + c.name + "/partial", want_sums);
  for (const std::string& isa : native_isas())
    for (const unsigned threads : {1u, 3u}) {
      const auto backend = make_native_backend(isa, threads, true);
      EXPECT_TRUE(same_bits(linear(*backend, c.rows), want)) << isa << ", " << threads << " threads";
      EXPECT_TRUE(same_bits(partial(*backend, c.rows), want_sums)) << isa << ", " << threads << " threads";
    }
}

TEST_P(FastDense, RowsAreAsIfAlone) {
  const Case& c = GetParam();
  for (const std::string& isa : native_isas()) {
    const auto backend = make_native_backend(isa, 1, true);
    const std::vector<float> all = linear(*backend, c.rows), sums = partial(*backend, c.rows);
    for (size_t rows = 1; rows < c.rows; rows += 1 + rows / 8) {
      EXPECT_TRUE(same_bits(linear(*backend, rows), slice(all, 0, rows * c.out))) << isa << " " << rows;
      EXPECT_TRUE(same_bits(partial(*backend, rows), slice(sums, 0, rows * c.out))) << isa << " " << rows;
    }
  }
}

TEST_P(FastDense, OccupiesWhatWasAnnouncedAndEmbedsRoundedRows) {
  const Case& c = GetParam();
  const auto backend = make_native_backend("auto", 1, true);
  const WeightPart part{"w", {0, c.out}, {0, c.cols}};
  const auto w = load(*backend, 0);
  EXPECT_EQ(w->bytes, backend->weight_bytes(source_, {&part, 1}));
  EXPECT_EQ(w->bytes, round_up(c.out, 16) * round_up(c.cols, 32) * 2);
  const std::vector<int32_t> ids{static_cast<int32_t>(c.out) - 1, 0};
  std::vector<float> want, row(c.cols);
  for (const int32_t id : ids) {
    formats::dequantise_row(source_.matrix("w"), static_cast<size_t>(id), row.data());
    for (const float v : row) want.push_back(nearest_bf16(v));
  }
  EXPECT_TRUE(same_bits(host(*backend, backend->embed(*w, ids, 0)), want));
}

// A tile processor of loops, in the order of the one in the processors' manual.
struct LoopTiles {
  static inline uint16_t rows[2][16][32];
  static inline uint16_t weights[2][16][16][2];
  static inline float sums[2][2][16][16];

  template <int i>
  static void load_rows(const uint16_t* halves, size_t stride) {
    for (size_t r = 0; r < 16; ++r) std::memcpy(rows[i][r], halves + r * stride / 2, 64);
  }
  template <int j>
  static void load_weights(const std::byte* pairs) {
    std::memcpy(weights[j], pairs, 1024);
  }
  template <int i, int j>
  static void multiply() {
    for (size_t m = 0; m < 16; ++m)
      for (size_t n = 0; n < 16; ++n) {
        float chains[2] = {};
        for (size_t k = 0; k < 16; ++k)
          for (size_t half = 0; half < 2; ++half)
            chains[half] = std::fma(from_half_of_pair(rows[i][m][2 * k + half]), from_half_of_pair(weights[j][k][n][half]), chains[half]);
        sums[i][j][m][n] = sums[i][j][m][n] + (chains[0] + chains[1]);
      }
  }
  template <int i, int j>
  static void clear() {
    std::memset(sums[i][j], 0, sizeof sums[i][j]);
  }
  template <int i, int j>
  static void store(float* to) {
    std::memcpy(to, sums[i][j], sizeof sums[i][j]);
  }
};

TEST_P(FastDense, TilesGiveTheBitsOfTheScalarProducts) {
  const Case& c = GetParam();
  native::Kernels kernels = native::kernels_of(native::Isa::scalar);
  kernels.product_pair_tiles = [](const native::Piece&, const native::PairRows&, Range, Range, const native::ProductOut&) {};  // halves
  const auto backend = make_native_backend("scalar", 1, true);
  for (const size_t unit : {size_t{0}, c.unit}) {
    const auto weight = load(*backend, unit);
    const native::Piece& piece = native::packed(*weight).pieces.front();
    std::vector<std::byte> memory(native::pair_bytes(kernels, c.rows, c.cols));
    const native::PairRows x = native::pairs_in(kernels, memory.data(), c.rows, c.cols);
    native::clear_last_block(x, c.rows);
    for (size_t r = 0; r < c.rows; ++r) kernels.round_row(x_.data() + r * c.cols, x, r);
    const size_t step = unit == 0 ? c.cols : unit, units = ceil_div(c.cols, step);
    // What each unit's sums should be: products of these columns alone.
    std::vector<std::vector<float>> sums(c.rows * c.out);
    native::product_by_pair_tiles<LoopTiles>(piece, x, {0, c.rows}, {0, piece.blocks()}, step,
                                             [&](const native::TileSums& tile, size_t row, size_t count, size_t block) {
                                               ASSERT_LE(row + count, c.rows);
                                               for (size_t r = 0; r < count; ++r)
                                                 for (size_t l = 0; l < 16 && block * 16 + l < c.out; ++l)
                                                   sums[(row + r) * c.out + block * 16 + l].push_back(tile.at[r][l]);
                                             });
    std::vector<float> w(c.cols);
    for (size_t r = 0; r < c.rows; ++r)
      for (size_t o = 0; o < c.out; ++o) {
        formats::dequantise_row(source_.matrix("w"), o, w.data());
        std::vector<float> want;
        for (size_t u = 0; u < units; ++u)
          want.push_back(contract(slice(x_, r * c.cols, c.cols), w, {u * step, std::min((u + 1) * step, c.cols)}));
        ASSERT_TRUE(same_bits(sums[r * c.out + o], want)) << "row " << r << ", output " << o;
      }
  }
}

TEST(FastDenseValues, RoundToNearestEven) {
  for (uint32_t i = 0; i < 2'000'000; ++i) {
    const float v = std::bit_cast<float>(i * 2147u + (i << 21));
    const float got = from_half_of_pair(to_half_of_pair(v));
    if (std::isnan(v)) {
      ASSERT_TRUE(std::isnan(got));
      continue;
    }
    const float want = nearest_bf16(v);
    ASSERT_TRUE(got == want) << v << ": " << got << ", not " << want;
  }
  EXPECT_EQ(from_half_of_pair(to_half_of_pair(0x1p-56f)), 0x1p-56f);
  EXPECT_EQ(from_half_of_pair(to_half_of_pair(0x1.fdp-57f)), 0.0f);
  EXPECT_TRUE(std::isinf(from_half_of_pair(to_half_of_pair(3.4e38f))));
}

#if defined(__x86_64__)
// The promise that tiles, which know no denormals, rest on: sums of the smallest values that count are none.
TEST(FastDenseValues, NothingIsADenormal) {
  constexpr size_t kCols = 256;
  std::vector<float> small(kCols), w(kCols);
  for (size_t k = 0; k < kCols; ++k) {
    small[k] = std::ldexp(1.0f + static_cast<float>(k % 128) / 128.0f, -56 + static_cast<int>(k % 3)) * (k % 5 < 2 ? -1 : 1);
    w[k] = std::ldexp(1.0f + static_cast<float>(k * 37 % 128) / 128.0f, -56 + static_cast<int>(k % 2)) * (k % 3 < 1 ? -1 : 1);
  }
  const float want = contract(small, w, {0, kCols});
  const unsigned state = _mm_getcsr();
  _mm_setcsr(state | 0x8040);  // denormal inputs and results count as 0
  const float got = contract(small, w, {0, kCols});
  _mm_setcsr(state);
  EXPECT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(want));
  EXPECT_NE(want, 0.0f);
}
#endif

TEST(FastDenseErrors, ValuesOutOfRangePoisonTheirRowOnly) {
  MemorySource source;
  source.add("w", random_matrix(dense(DType::bf16), 20, 64, 1));
  const WeightPart part{"w", {0, 20}, {0, 64}};
  for (const float bad : {std::nanf(""), INFINITY, 3.4e38f})
    for (const std::string& isa : native_isas())
      for (const size_t rows : {size_t{3}, size_t{40}}) {
        const auto backend = make_native_backend(isa, 1, true);
        std::vector<float> x = random_values(rows * 64, 2);
        x[64 + 5] = bad;
        const auto w = backend->load(source, {&part, 1}, 32);
        try {
          reduced(*backend, backend->linear_partial(backend->from_host(rows, 64, x), *w));
          FAIL() << isa;
        } catch (const Error& e) { EXPECT_EQ(e.parts().where, "rows 1") << isa; }
      }
}

TEST(FastDenseErrors, UnitsMustBeWholeBlocks) {
  MemorySource source;
  source.add("w", random_matrix(dense(DType::f16), 8, 96, 1));
  const WeightPart part{"w", {0, 8}, {0, 96}};
  try {
    make_native_backend("auto", 1, true)->load(source, {&part, 1}, 48);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::unimplemented);
    EXPECT_NE(std::string(e.what()).find("--fast-dense"), std::string::npos);
  }
}

// Quantised weights are not touched by it.
TEST(FastDenseErrors, QuantisedWeightsStayAsTheyAre) {
  MemorySource source;
  source.add("w", random_matrix(affine(4, 32), 20, 64, 1));
  const WeightPart part{"w", {0, 20}, {0, 64}};
  const std::vector<float> x = random_values(3 * 64, 2);
  std::vector<std::vector<float>> results;
  for (const bool fast : {false, true}) {
    const auto backend = make_native_backend("auto", 1, fast);
    results.push_back(host(*backend, backend->linear(backend->from_host(3, 64, x), *backend->load(source, {&part, 1}, 0), nullptr)));
  }
  EXPECT_TRUE(same_bits(results[0], results[1]));
}

}  // namespace
}  // namespace verbund::compute::testing
