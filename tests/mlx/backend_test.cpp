// Each operation of the MLX backend against plain f64 loops. Weights are dequantised by formats::dequantise_row; MLX does
// not quantise activations, so quantised products are as close to it as dense ones.
#ifdef VERBUND_MLX_BUILT
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>

#include "base/error.h"
#include "compute/backend.h"
#include "compute/memory_source.h"
#include "compute/mlx_module.h"
#include "mlx/compare.h"

namespace verbund::compute {
namespace {

using formats::Coding;
using formats::DType;
using formats::WeightFormat;
using test::expect_close;
using testing::MemorySource;
using testing::random_matrix;
using testing::random_values;

const Deadline kSoon = Deadline::after(std::chrono::seconds(60));

class MlxBackend : public ::testing::Test {
 protected:
  std::vector<float> fetch(const Tensor& t) {
    std::vector<float> values(t.rows() * t.cols());
    backend_->to_host(t, values);
    return values;
  }
  void SetUp() override { backend_->begin_step(); }
  std::unique_ptr<Backend> backend_ = make_mlx_backend();
  std::unique_ptr<mesh::Mesh> solo_ = mesh::make_solo_mesh();
};

std::vector<double> product(std::span<const float> x, size_t rows, const formats::WeightMatrix& w, Range out, Range in) {
  std::vector<double> y;
  std::vector<float> weights(w.cols);
  y.resize(rows * out.size());
  for (size_t o = 0; o < out.size(); ++o) {
    formats::dequantise_row(w, out.begin + o, weights.data());
    for (size_t r = 0; r < rows; ++r)
      for (size_t i = 0; i < in.size(); ++i) y[r * out.size() + o] += double(x[r * in.size() + i]) * weights[in.begin + i];
  }
  return y;
}

std::vector<WeightFormat> all_formats() {
  std::vector<WeightFormat> formats;
  for (const DType t : {DType::f32, DType::f16, DType::bf16}) formats.push_back({Coding::dense, t, 0, 0, {}});
  for (const int bits : {2, 3, 4, 5, 6, 8})
    for (const int group : {16, 32, 64, 128}) {
      const int zero = 1 << (bits - 1);
      formats.push_back({Coding::affine, DType::f16, bits, group, {}});
      formats.push_back({Coding::affine, DType::f32, bits, group, zero});
      if (group == 32) {
        formats.push_back({Coding::affine, DType::f16, bits, group, zero});
        formats.push_back({Coding::affine, DType::bf16, bits, group, {}});
        formats.push_back({Coding::affine, DType::bf16, bits, group, 1});
        formats.push_back({Coding::affine, DType::f16, bits, group, 3});  // not a power of two: f32 biases
      }
    }
  formats.push_back({Coding::mxfp4, DType::f32, 4, 32, {}});
  return formats;
}

TEST_F(MlxBackend, LinearInEveryFormat) {
  constexpr size_t kRows = 3, kOut = 40, kIn = 256;
  const auto x = random_values(kRows * kIn, 1);
  const auto bias = random_values(kOut, 2);
  const auto bias_vector = backend_->load_vector(bias);
  for (const WeightFormat& format : all_formats()) {
    SCOPED_TRACE(format.name());
    MemorySource source;
    source.add("w", random_matrix(format, kOut, kIn, 3));
    const WeightPart part{"w", {0, kOut}, {0, kIn}};
    const auto w = backend_->load(source, std::span(&part, 1), 0);
    EXPECT_EQ(w->rows, kOut);
    EXPECT_EQ(w->cols, kIn);
    EXPECT_EQ(w->bytes, backend_->weight_bytes(source, std::span(&part, 1)));
    auto want = product(x, kRows, source.matrix("w"), {0, kOut}, {0, kIn});
    for (size_t i = 0; i < want.size(); ++i) want[i] += bias[i % kOut];
    const auto got = fetch(backend_->linear(backend_->from_host(kRows, kIn, x), *w, bias_vector.get()));
    const bool dense = format.coding == Coding::dense;
    expect_close(got, want, dense ? 1e-5 : 1e-4);
    EXPECT_GT(test::cosine(got, want), 0.9999999);
  }
}

TEST_F(MlxBackend, BytesOfEachLayout) {
  const auto bytes = [&](const WeightFormat& format) {
    MemorySource source;
    source.add("w", random_matrix(format, 8, 128, 3));
    const WeightPart part{"w", {0, 8}, {0, 128}};
    return backend_->weight_bytes(source, std::span(&part, 1));
  };
  EXPECT_EQ(bytes({Coding::dense, DType::bf16, 0, 0, {}}), 8u * 128 * 2);
  EXPECT_EQ(bytes({Coding::affine, DType::f16, 4, 32, {}}), 8u * (64 + 4 * 2 * 2));
  EXPECT_EQ(bytes({Coding::affine, DType::f16, 4, 32, 8}), 8u * (64 + 4 * 2 * 2));
  EXPECT_EQ(bytes({Coding::affine, DType::f16, 4, 32, 3}), 8u * (64 + 4 * (2 + 4)));
  EXPECT_EQ(bytes({Coding::affine, DType::f32, 6, 16, 32}), 8u * 128 * 4);  // widened
  EXPECT_EQ(bytes({Coding::mxfp4, DType::f32, 4, 32, {}}), 8u * (64 + 4));
}

// q and k in 4 bits, v in 6 bits with groups of 16, each a slice of its tensor, as a rank of a mixed file has it.
TEST_F(MlxBackend, PartsOfSeveralFormatsAndSlices) {
  MemorySource source;
  source.add("q", random_matrix({Coding::affine, DType::f16, 4, 32, 8}, 64, 192, 4));
  source.add("k", random_matrix({Coding::affine, DType::f16, 4, 32, 8}, 32, 192, 5));
  source.add("v", random_matrix({Coding::affine, DType::f32, 6, 16, 32}, 32, 192, 6));
  const std::vector<WeightPart> parts{
      {"q", {16, 48}, {64, 160}}, {"k", {8, 16}, {64, 160}}, {"v", {0, 8}, {64, 160}}, {"q", {0, 0}, {64, 160}}};
  const auto w = backend_->load(source, parts, 0);
  EXPECT_EQ(w->rows, 48u);
  EXPECT_EQ(w->bytes, backend_->weight_bytes(source, parts));
  const auto x = random_values(2 * 96, 7);
  const auto got = fetch(backend_->linear(backend_->from_host(2, 96, x), *w, nullptr));
  std::vector<double> want;
  for (size_t r = 0; r < 2; ++r)
    for (const auto& part : parts) {
      const auto y = product(std::span(x).subspan(r * 96, 96), 1, source.matrix(part.name), part.rows, part.cols);
      want.insert(want.end(), y.begin(), y.end());
    }
  expect_close(got, want, 1e-4);
}

TEST_F(MlxBackend, LoadRefusesWhatIsNotThere) {
  MemorySource source;
  source.add("w", random_matrix({Coding::dense, DType::f32, 0, 0, {}}, 4, 32, 1));
  for (const WeightPart& part : {WeightPart{"x", {0, 4}, {0, 32}}, WeightPart{"w", {0, 5}, {0, 32}}, WeightPart{"w", {0, 4}, {0, 64}}})
    EXPECT_THROW(backend_->load(source, std::span(&part, 1), 0), Error);
}

TEST_F(MlxBackend, EmbedWholeAndSharded) {
  for (const WeightFormat& format : all_formats()) {
    SCOPED_TRACE(format.name());
    MemorySource source;
    source.add("e", random_matrix(format, 20, 128, 8));
    const WeightPart part{"e", {5, 15}, {0, 128}};
    const auto table = backend_->load(source, std::span(&part, 1), 0);
    const std::vector<int32_t> ids{5, 14, 4, 15, 9, 9, -1};
    const auto got = fetch(backend_->embed(*table, ids, 5));
    std::vector<double> want(ids.size() * 128, 0.0);
    std::vector<float> row(128);
    for (size_t i = 0; i < ids.size(); ++i)
      if (ids[i] >= 5 && ids[i] < 15) {
        formats::dequantise_row(source.matrix("e"), static_cast<size_t>(ids[i]), row.data());
        std::copy(row.begin(), row.end(), want.begin() + static_cast<ptrdiff_t>(i * 128));
      }
    expect_close(got, want, 1e-6);
    uint32_t bits;
    std::memcpy(&bits, &got[2 * 128], 4);
    EXPECT_EQ(bits, 0u);  // rows of other ranks are zero bits, so that bit patterns can be added
    const std::vector<int32_t> elsewhere{0, 19};
    const auto zeros = fetch(backend_->embed(*table, elsewhere, 5));
    EXPECT_EQ(zeros, std::vector<float>(2 * 128, 0.0f));
  }
}

TEST_F(MlxBackend, RmsNorm) {
  constexpr size_t kRows = 5, kCols = 96;
  const auto x = random_values(kRows * kCols, 9, 3.0f), w = random_values(kCols, 10);
  std::vector<double> want;
  for (size_t r = 0; r < kRows; ++r) {
    double sum = 0;
    for (size_t i = 0; i < kCols; ++i) sum += double(x[r * kCols + i]) * x[r * kCols + i];
    for (size_t i = 0; i < kCols; ++i) want.push_back(x[r * kCols + i] / std::sqrt(sum / kCols + 1e-5) * w[i]);
  }
  const auto weight = backend_->load_vector(w);
  expect_close(fetch(backend_->rms_norm(backend_->from_host(kRows, kCols, x), *weight, 1e-5f)), want, 1e-5);
}

TEST_F(MlxBackend, Gated) {
  const auto x = random_values(3 * 80, 11, 3.0f);
  const auto check = [&](Activation activation, const std::function<double(double)>& act) {
    std::vector<double> want;
    for (size_t r = 0; r < 3; ++r)
      for (size_t i = 0; i < 40; ++i) want.push_back(act(x[r * 80 + i]) * x[r * 80 + 40 + i]);
    expect_close(fetch(backend_->gated(backend_->from_host(3, 80, x), activation)), want, 1e-5);
  };
  check(Activation::silu, [](double z) { return z / (1 + std::exp(-z)); });
  check(Activation::gelu_tanh, [](double z) { return 0.5 * z * (1 + std::tanh(std::sqrt(2 / M_PI) * (z + 0.044715 * z * z * z))); });
}

TEST_F(MlxBackend, RowsAndHostBorder) {
  const auto x = random_values(4 * 8, 12);
  const Tensor t = backend_->from_host(4, 8, x);
  EXPECT_EQ(fetch(t), x);
  const std::vector<uint32_t> rows{3, 0, 3};
  const auto taken = fetch(backend_->take_rows(t, rows));
  for (size_t i = 0; i < rows.size(); ++i)
    for (size_t c = 0; c < 8; ++c) EXPECT_EQ(taken[i * 8 + c], x[rows[i] * 8 + c]);
  const std::vector<uint32_t> outside{4};
  EXPECT_THROW(backend_->take_rows(t, outside), Error);
  backend_->end_step();
  std::vector<float> values(32);
  EXPECT_THROW(backend_->to_host(t, values), Error);  // tensors end with their step
}

TEST_F(MlxBackend, AddReducedOfOneRank) {
  MemorySource source;
  source.add("w", random_matrix({Coding::affine, DType::f16, 4, 32, 8}, 24, 96, 13));
  const WeightPart part{"w", {0, 24}, {0, 96}};
  const auto w = backend_->load(source, std::span(&part, 1), 32);
  const auto x = random_values(2 * 96, 14), residual = random_values(2 * 24, 15), bias = random_values(24, 16);
  const auto bias_vector = backend_->load_vector(bias);
  auto want = product(x, 2, source.matrix("w"), {0, 24}, {0, 96});
  for (size_t i = 0; i < want.size(); ++i) want[i] += residual[i] + bias[i % 24];
  const Tensor r = backend_->from_host(2, 24, residual);
  const Partial partial = backend_->linear_partial(backend_->from_host(2, 96, x), *w);
  expect_close(fetch(backend_->add_reduced(r, partial, bias_vector.get(), *solo_, kSoon)), want, 1e-4);
  EXPECT_EQ(fetch(backend_->add_reduced(r, backend_->zero_partial(2, 24), nullptr, *solo_, kSoon)), residual);
}

// A row that leaves the fixed-point range fails that request, by row, and nothing else.
TEST_F(MlxBackend, OverflowNamesItsRows) {
  MemorySource source;
  source.add("w", random_matrix({Coding::dense, DType::f32, 0, 0, {}}, 8, 32, 17));
  const WeightPart part{"w", {0, 8}, {0, 32}};
  const auto w = backend_->load(source, std::span(&part, 1), 32);
  auto x = random_values(4 * 32, 18);
  x[1 * 32 + 3] = 1e9f;
  x[3 * 32 + 5] = std::numeric_limits<float>::quiet_NaN();
  const Tensor y = backend_->add_reduced(backend_->zero_partial(4, 8).sums, backend_->linear_partial(backend_->from_host(4, 32, x), *w),
                                         nullptr, *solo_, kSoon);
  try {
    fetch(y);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::invalid_argument);
    EXPECT_EQ(e.lost(), Lost::request);
    EXPECT_EQ(e.parts().where, "rows 1, 3");
  }
  backend_->end_step();
  backend_->begin_step();
  const std::vector<float> fine(32, 1.0f);
  EXPECT_NO_THROW(fetch(backend_->add_reduced(backend_->zero_partial(1, 8).sums,
                                              backend_->linear_partial(backend_->from_host(1, 32, fine), *w), nullptr, *solo_, kSoon)));
}

}  // namespace
}  // namespace verbund::compute
#endif
