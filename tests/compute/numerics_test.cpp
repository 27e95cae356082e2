// The contract's scalar functions against long double.
#include "compute/numerics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "compute/bits.h"

namespace verbund::compute {
namespace {

using testing::note_bits;

// The same numbers with every library.
double uniform(std::mt19937_64& random, double from, double to) {
  return from + (to - from) * (static_cast<double>(random() >> 11) * 0x1p-53);
}

TEST(ExpF32, IsAccurateToTwoUnitsInTheLastPlace) {
  double worst = 0;
  std::vector<float> all;
  for (float x = -87.0f; x <= 88.0f; x += 0.00037f) {
    const long double exact = std::exp(static_cast<long double>(x));
    all.push_back(exp_f32(x));
    worst = std::max(worst, static_cast<double>(std::fabs((all.back() - exact) / exact)));
  }
  EXPECT_LT(worst, 1.3e-7);
  note_bits("exp_f32", all);
}

TEST(ExpF32, HasItsEnds) {
  EXPECT_EQ(exp_f32(0.0f), 1.0f);
  EXPECT_EQ(exp_f32(-0.0f), 1.0f);
  EXPECT_EQ(exp_f32(-87.001f), 0.0f);
  EXPECT_EQ(exp_f32(-INFINITY), 0.0f);
  EXPECT_EQ(exp_f32(88.001f), INFINITY);
  EXPECT_EQ(exp_f32(INFINITY), INFINITY);
  EXPECT_TRUE(std::isnan(exp_f32(std::nanf(""))));
}

TEST(Fixed, RoundsToNearestEven) {
  bool poisoned = false;
  EXPECT_EQ(to_fixed(1.0f, poisoned), int64_t{1} << 30);
  EXPECT_EQ(to_fixed(0x1p-31f, poisoned), 0);    // half: to even
  EXPECT_EQ(to_fixed(0x1.8p-30f, poisoned), 2);  // one and a half: to even
  EXPECT_EQ(to_fixed(-0x1.8p-30f, poisoned), -2);
  EXPECT_EQ(to_fixed(0x1.000002p-31f, poisoned), 1);
  EXPECT_EQ(to_fixed(-1048576.0f, poisoned), -(int64_t{1} << 50));
  EXPECT_FALSE(poisoned);
  for (const float bad : {1048576.125f, -1048576.125f, INFINITY, -INFINITY, std::nanf("")}) {
    poisoned = false;
    EXPECT_EQ(to_fixed(bad, poisoned), 0);
    EXPECT_TRUE(poisoned) << bad;
  }
}

TEST(Fixed, ReturnsWhatWentIn) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> values(-100, 100);
  for (int i = 0; i < 1000; ++i) {
    bool poisoned = false;
    const float v = values(random);
    EXPECT_NEAR(from_fixed(to_fixed(v, poisoned)), v, std::fabs(v) * 6e-8 + 1e-9);
  }
}

double relative(double value, long double exact) { return static_cast<double>(std::fabs((value - exact) / exact)); }

TEST(Exact, LogExpAndPow) {
  std::mt19937_64 random(2);
  std::vector<double> all;
  double worst_log = 0, worst_exp = 0, worst_pow = 0;
  for (int i = 0; i < 20000; ++i) {
    const double m = uniform(random, 0.5, 2.0), e = uniform(random, -690, 690), p = uniform(random, -50, 50);
    const double wide = std::ldexp(m, static_cast<int>(e));
    worst_log = std::max(worst_log, relative(exact_log(wide), std::log(static_cast<long double>(wide))));
    if (std::fabs(m - 1) > 1e-9) worst_log = std::max(worst_log, relative(exact_log(m), std::log(static_cast<long double>(m))));
    worst_exp = std::max(worst_exp, relative(exact_exp(e), std::exp(static_cast<long double>(e))));
    const double base = 1 + 1000 * m;
    worst_pow = std::max(worst_pow, relative(exact_pow(base, p), std::pow(static_cast<long double>(base), static_cast<long double>(p))));
    all.insert(all.end(), {exact_log(wide), exact_log(m), exact_exp(e), exact_pow(base, p)});
  }
  note_bits("exact_log_exp_pow", std::span<const double>(all));
  EXPECT_LT(worst_log, 2e-15);
  EXPECT_LT(worst_exp, 2e-15);
  EXPECT_LT(worst_pow, 2e-15);
  EXPECT_EQ(exact_log(1.0), 0.0);
  EXPECT_EQ(exact_pow(10000.0, 0.0), 1.0);
  EXPECT_EQ(exact_exp(0.0), 1.0);
}

TEST(Exact, SinAndCos) {
  std::mt19937_64 random(3);
  std::vector<double> all;
  double worst = 0;
  for (int i = 0; i < 40000; ++i) {
    const double x = i % 2 ? uniform(random, -16777215.0, 16777215.0) : uniform(random, -10, 10);
    double s = 0, c = 0;
    exact_sincos(x, s, c);
    worst = std::max({worst, relative(s, std::sin(static_cast<long double>(x))), relative(c, std::cos(static_cast<long double>(x)))});
    all.insert(all.end(), {s, c});
  }
  note_bits("exact_sincos", std::span<const double>(all));
  EXPECT_LT(worst, 1e-14);
  double s = 1, c = 0;
  exact_sincos(0.0, s, c);
  EXPECT_EQ(s, 0.0);
  EXPECT_EQ(c, 1.0);
}

}  // namespace
}  // namespace verbund::compute
