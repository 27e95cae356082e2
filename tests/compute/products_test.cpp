// Matrix products: against the definition, every instruction set against the scalar one, and whatever must not matter.
#include "compute/backend_fixture.h"
#include "compute/bits.h"
#include "compute/numerics.h"

namespace verbund::compute::testing {
namespace {

struct Made {
  MemorySource source;
  std::vector<float> x;
};

Made make(const ProductCase& c, uint64_t seed) {
  Made made;
  made.source.add("w", random_matrix(c.format, c.out, c.cols, seed));
  made.x = random_values(c.rows * c.cols, seed + 1);
  return made;
}

WeightPart whole(const ProductCase& c) { return {"w", {0, c.out}, {0, c.cols}}; }

std::vector<float> linear(Backend& backend, const Made& made, const ProductCase& c, const Vector* bias = nullptr) {
  const WeightPart part = whole(c);
  const auto w = backend.load(made.source, {&part, 1}, 0);
  return host(backend, backend.linear(backend.from_host(c.rows, c.cols, made.x), *w, bias));
}

std::vector<float> partial(Backend& backend, const Made& made, const ProductCase& c) {
  const WeightPart part = whole(c);
  const auto w = backend.load(made.source, {&part, 1}, c.unit);
  return reduced(backend, backend.linear_partial(backend.from_host(c.rows, c.cols, made.x), *w));
}

std::vector<double> exact_product(const Made& made, const ProductCase& c) {
  std::vector<double> y(c.rows * c.out);
  std::vector<float> row(c.cols);
  for (size_t o = 0; o < c.out; ++o) {
    formats::dequantise_row(made.source.matrix("w"), o, row.data());
    for (size_t r = 0; r < c.rows; ++r)
      for (size_t k = 0; k < c.cols; ++k) y[r * c.out + o] += double(row[k]) * made.x[r * c.cols + k];
  }
  return y;
}

double error(const std::vector<float>& y, const std::vector<double>& exact) {
  double squares = 0;
  for (size_t i = 0; i < y.size(); ++i) squares += (y[i] - exact[i]) * (y[i] - exact[i]);
  return std::sqrt(squares);
}

// What the products of random vectors of these lengths would amount to: the error of quantised activations is in proportion to
// it, whatever a product happens to be.
double typical_size(const Made& made, const ProductCase& c) {
  double weights = 0, activations = 0;
  std::vector<float> row(c.cols);
  for (size_t o = 0; o < c.out; ++o) {
    formats::dequantise_row(made.source.matrix("w"), o, row.data());
    for (float v : row) weights += double(v) * v;
  }
  for (float v : made.x) activations += double(v) * v;
  return std::sqrt(weights * activations / static_cast<double>(c.cols));
}

// numerics.h point 3, from the stored codes: independent of packing and kernels.
float contract_product(const WeightMatrix& m, size_t output, const float* x, Range cols) {
  const size_t group = static_cast<size_t>(m.format.group), block = std::max<size_t>(32, group);
  std::vector<int> q(m.cols);
  std::vector<float> s(m.cols / block);
  for (size_t b = 0; b < s.size(); ++b) {
    float largest = 0;
    for (size_t k = b * block; k < (b + 1) * block; ++k) largest = std::max(largest, std::fabs(x[k]));
    s[b] = largest / 127.0f;
    for (size_t k = b * block; k < (b + 1) * block; ++k) q[k] = static_cast<int>(std::nearbyint(x[k] * (127.0f / largest)));
  }
  constexpr int kTwiceE2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  const bool mx = m.format.coding == Coding::mxfp4;
  float acc = 0;
  for (size_t g = cols.begin / group; g < cols.end / group; ++g) {
    int d = 0, sum = 0;
    for (size_t k = g * group; k < (g + 1) * group; ++k) {
      const int code = static_cast<int>(stored_code(m, output, k));
      d += q[k] * (mx ? kTwiceE2M1[code] : code - m.format.zero.value_or(0));
      sum += q[k];
    }
    const size_t at = output * (m.cols / group) + g, element = mx ? 1 : formats::size_of(m.format.dtype);
    const float scale =
        mx ? std::ldexp(1.0f, static_cast<int>(m.scales[at]) - 128) : formats::to_f32(m.scales.data() + at * element, m.format.dtype);
    const float factor = s[g * group / block];
    acc = std::fma(scale * factor, static_cast<float>(d), acc);
    if (!m.biases.empty())
      acc = std::fma(formats::to_f32(m.biases.data() + at * element, m.format.dtype), factor * static_cast<float>(sum), acc);
  }
  return acc;
}

class Product : public ::testing::TestWithParam<ProductCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, Product, ::testing::ValuesIn(product_cases()), [](const auto& info) { return info.param.name; });

TEST_P(Product, IsCloseToTheExactProduct) {
  const ProductCase& c = GetParam();
  const Made made = make(c, 1);
  const std::vector<double> exact = exact_product(made, c);
  const double size = typical_size(made, c);
  for (const std::string& isa : native_isas()) {
    const auto backend = make_native_backend(isa, 1);
    for (const auto& y : {linear(*backend, made, c), partial(*backend, made, c)}) {
      // Codes of activations are off by 0.3 of a 127th of their block's largest, evenly: 0.8 % of a usual one.
      EXPECT_LT(error(y, exact), size * (c.format.coding == Coding::dense ? 1e-6 : 2.5e-2)) << isa;
    }
  }
}

TEST_P(Product, FollowsTheContract) {
  const ProductCase& c = GetParam();
  if (c.format.coding == Coding::dense) return;
  const Made made = make(c, 2);
  std::vector<float> expected, expected_partial;
  for (size_t r = 0; r < c.rows; ++r)
    for (size_t o = 0; o < c.out; ++o) {
      const float* x = made.x.data() + r * c.cols;
      expected.push_back(contract_product(made.source.matrix("w"), o, x, {0, c.cols}));
      int64_t sum = 0;
      bool poisoned = false;
      for (size_t k = 0; k < c.cols; k += c.unit)
        sum += to_fixed(contract_product(made.source.matrix("w"), o, x, {k, k + c.unit}), poisoned);
      expected_partial.push_back(from_fixed(sum));
    }
  const auto backend = make_native_backend("scalar", 1);
  EXPECT_TRUE(same_bits(linear(*backend, made, c), expected));
  EXPECT_TRUE(same_bits(partial(*backend, made, c), expected_partial));
}

TEST_P(Product, HasTheSameBitsOnEveryInstructionSetAndThreadCount) {
  const ProductCase& c = GetParam();
  const Made made = make(c, 3);
  const auto reference = make_native_backend("scalar", 1);
  const auto bias_of = [&](Backend& b) { return b.load_vector(random_values(c.out, 4)); };
  const auto plain = linear(*reference, made, c), biased = linear(*reference, made, c, bias_of(*reference).get()),
             sums = partial(*reference, made, c);
  note_bits("product/" + c.name, plain);
  note_bits("product/" + c.name + "/bias", biased);
  note_bits("product/" + c.name + "/partial", sums);
  for (const std::string& isa : native_isas())
    for (unsigned threads : {1u, 2u, 3u}) {
      const auto backend = make_native_backend(isa, threads);
      EXPECT_TRUE(same_bits(linear(*backend, made, c), plain)) << isa;
      EXPECT_TRUE(same_bits(linear(*backend, made, c, bias_of(*backend).get()), biased)) << isa;
      EXPECT_TRUE(same_bits(partial(*backend, made, c), sums)) << isa;
    }
}

TEST_P(Product, OccupiesWhatWasAnnounced) {
  const ProductCase& c = GetParam();
  const Made made = make(c, 3);
  const auto backend = make_native_backend("auto", 1);
  const WeightPart part = whole(c);
  const auto w = backend->load(made.source, {&part, 1}, 0);
  EXPECT_EQ(w->bytes, backend->weight_bytes(made.source, {&part, 1}));
  EXPECT_EQ(w->rows, c.out);
  EXPECT_EQ(w->cols, c.cols);
}

TEST_P(Product, EmbedsTheRowsOfTheTable) {
  const ProductCase& c = GetParam();
  const Made made = make(c, 5);
  const auto backend = make_native_backend("auto", 2);
  const WeightPart part = whole(c);
  const auto w = backend->load(made.source, {&part, 1}, 0);
  const int32_t last = static_cast<int32_t>(100 + c.out - 1);
  const std::vector<int32_t> ids{100, last, 99, last + 1, -1, 100};
  const std::vector<float> y = host(*backend, backend->embed(*w, ids, 100));
  note_bits("embed/" + c.name, y);
  std::vector<float> row(c.cols);
  for (size_t i = 0; i < ids.size(); ++i) {
    std::fill(row.begin(), row.end(), 0.0f);
    if (ids[i] >= 100 && ids[i] <= last) formats::dequantise_row(made.source.matrix("w"), static_cast<size_t>(ids[i] - 100), row.data());
    for (size_t k = 0; k < c.cols; ++k) ASSERT_EQ(y[i * c.cols + k], row[k]) << i << " " << k;  // == : mxfp4 has a -0
  }
}

// Rows of a batch do not see each other, however many there are: each count takes other tiles.
TEST(ProductBatch, RowsAreAsIfAlone) {
  for (const WeightFormat& format : {affine(4, 32), symmetric(6, 16, 32, DType::f32), affine(8, 64), dense(DType::bf16)}) {
    const ProductCase c{"", format, 40, 50, 256, 64};
    const Made made = make(c, 6);
    for (const std::string& isa : native_isas()) {
      const auto backend = make_native_backend(isa, 1);
      const WeightPart part = whole(c);
      const auto w = backend->load(made.source, {&part, 1}, 0);
      const auto w_units = backend->load(made.source, {&part, 1}, c.unit);
      std::vector<float> alone, alone_sums;
      for (size_t r = 0; r < c.rows; ++r) {
        const Tensor x = backend->from_host(1, c.cols, slice(made.x, r * c.cols, c.cols));
        for (float v : host(*backend, backend->linear(x, *w, nullptr))) alone.push_back(v);
        for (float v : reduced(*backend, backend->linear_partial(x, *w_units))) alone_sums.push_back(v);
      }
      for (size_t rows = 1; rows <= c.rows; ++rows) {
        const Tensor x = backend->from_host(rows, c.cols, slice(made.x, 0, rows * c.cols));
        ASSERT_TRUE(same_bits(host(*backend, backend->linear(x, *w, nullptr)), slice(alone, 0, rows * c.out))) << isa << " " << rows;
        ASSERT_TRUE(same_bits(reduced(*backend, backend->linear_partial(x, *w_units)), slice(alone_sums, 0, rows * c.out)))
            << isa << " " << rows;
      }
    }
  }
}

// Many rows: several passes over the weights, and tasks of one block.
TEST(ProductBatch, ManyRowsOfAWideMatrix) {
  for (const WeightFormat& format : {affine(4, 32), dense(DType::f16)}) {
    const ProductCase c{"", format, 300, 33, 2048, 2048};
    const Made made = make(c, 7);
    const auto one = make_native_backend("auto", 1), three = make_native_backend("auto", 3);
    const auto y = linear(*one, made, c);
    EXPECT_TRUE(same_bits(y, linear(*three, made, c)));
    const ProductCase last{"", format, 1, 33, 2048, 2048};
    Made made_last{made.source, slice(made.x, 299 * c.cols, c.cols)};
    EXPECT_TRUE(same_bits(slice(y, 299 * c.out, c.out), linear(*one, made_last, last)));
  }
}

}  // namespace
}  // namespace verbund::compute::testing
