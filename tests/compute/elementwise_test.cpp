// Norm, gate, rows, host boundary: close to the definition, and the same bits on every instruction set, for any width.
#include "compute/backend_fixture.h"
#include "compute/bits.h"
#include "compute/numerics.h"

namespace verbund::compute::testing {
namespace {

const size_t kWidths[] = {1, 2, 15, 16, 17, 31, 64, 100, 576, 577};

TEST(RmsNorm, IsCloseAndTheSameEverywhere) {
  for (size_t cols : kWidths) {
    const size_t rows = 3;
    const auto x = random_values(rows * cols, cols), w = random_values(cols, 2);
    std::vector<float> expected;
    for (const std::string& isa : native_isas()) {
      const auto backend = make_native_backend(isa, 2);
      const auto y = host(*backend, backend->rms_norm(backend->from_host(rows, cols, x), *backend->load_vector(w), 1e-5f));
      if (expected.empty()) {
        expected = y;
        note_bits("rms_norm/" + std::to_string(cols), y);
      }
      EXPECT_TRUE(same_bits(y, expected)) << isa << " " << cols;
      for (size_t r = 0; r < rows; ++r) {
        double squares = 0;
        for (size_t i = 0; i < cols; ++i) squares += double(x[r * cols + i]) * x[r * cols + i];
        for (size_t i = 0; i < cols; ++i) {
          const double exact = x[r * cols + i] / std::sqrt(squares / static_cast<double>(cols) + 1e-5) * w[i];
          ASSERT_NEAR(y[r * cols + i], exact, 1e-6 * std::fabs(exact) + 1e-9);
        }
      }
    }
  }
}

TEST(Gated, IsCloseAndTheSameEverywhere) {
  for (const Activation activation : {Activation::silu, Activation::gelu_tanh})
    for (size_t n : kWidths) {
      auto x = random_values(2 * 2 * n, n, 4.0f);
      x[0] = 100, x[n / 2] = -100;
      std::vector<float> expected;
      for (const std::string& isa : native_isas()) {
        const auto backend = make_native_backend(isa, 1);
        const auto y = host(*backend, backend->gated(backend->from_host(2, 2 * n, x), activation));
        if (expected.empty()) {
          expected = y;
          note_bits((activation == Activation::silu ? "silu/" : "gelu_tanh/") + std::to_string(n), y);
        }
        EXPECT_TRUE(same_bits(y, expected)) << isa << " " << n;
        for (size_t r = 0; r < 2; ++r)
          for (size_t i = 0; i < n; ++i) {
            const double g = x[r * 2 * n + i], up = x[r * 2 * n + n + i];
            const double act = activation == Activation::silu ? g / (1 + std::exp(-g))
                                                              : 0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
            ASSERT_NEAR(y[r * n + i], act * up, 2e-6 * std::fabs(g * up) + 1e-9) << isa << " gate " << g;
          }
      }
    }
}

TEST(Rows, AreTakenAndTravelUnchanged) {
  const auto backend = make_native_backend("auto", 1);
  const auto x = random_values(5 * 37, 1);
  const Tensor t = backend->from_host(5, 37, x);
  EXPECT_EQ(host(*backend, t), x);
  const std::vector<uint32_t> rows{4, 0, 4};
  const auto y = host(*backend, backend->take_rows(t, rows));
  EXPECT_EQ(slice(y, 0, 37), slice(x, 4 * 37, 37));
  EXPECT_EQ(slice(y, 37, 37), slice(x, 0, 37));
  EXPECT_EQ(slice(y, 74, 37), slice(x, 4 * 37, 37));
  const std::vector<uint32_t> outside{5};
  EXPECT_THROW(backend->take_rows(t, outside), Error);
}

TEST(Residual, AddsTheReducedSumThenTheBias) {
  const auto solo = mesh::make_solo_mesh();
  for (const std::string& isa : native_isas()) {
    const auto backend = make_native_backend(isa, 1);
    const auto x = random_values(2 * 21, 1), b = random_values(21, 2);
    const auto y = host(*backend, backend->add_reduced(backend->from_host(2, 21, x), backend->zero_partial(2, 21),
                                                       backend->load_vector(b).get(), *solo, soon()));
    for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], x[i] + b[i % 21]);
  }
}

TEST(Shapes, AreChecked) {
  const auto backend = make_native_backend("auto", 1);
  const auto solo = mesh::make_solo_mesh();
  const Tensor x = backend->from_host(2, 8, std::vector<float>(16));
  const auto short_vector = backend->load_vector(std::vector<float>(7));
  EXPECT_THROW(backend->rms_norm(x, *short_vector, 1e-5f), Error);
  EXPECT_THROW(backend->rms_norm(Tensor(), *short_vector, 1e-5f), Error);
  EXPECT_THROW(backend->gated(backend->from_host(1, 3, std::vector<float>(3)), Activation::silu), Error);
  EXPECT_THROW(backend->from_host(2, 8, std::vector<float>(15)), Error);
  EXPECT_THROW(backend->add_reduced(x, backend->zero_partial(2, 7), nullptr, *solo, soon()), Error);
  EXPECT_THROW(backend->add_reduced(x, backend->zero_partial(2, 8), short_vector.get(), *solo, soon()), Error);
  MemorySource source;
  source.add("w", random_matrix(dense(DType::f32), 4, 8, 1));
  const WeightPart part{"w", {0, 4}, {0, 8}};
  const auto w = backend->load(source, {&part, 1}, 0);
  EXPECT_THROW(backend->linear(backend->from_host(1, 9, std::vector<float>(9)), *w, nullptr), Error);
  EXPECT_THROW(backend->linear(x, *w, short_vector.get()), Error);
  EXPECT_THROW(backend->linear_partial(x, *w), Error);  // loaded for column-parallel use
}

}  // namespace
}  // namespace verbund::compute::testing
