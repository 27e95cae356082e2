#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace verbund::model {
namespace {

RopeSpec base(size_t dims, double theta) {
  RopeSpec s;
  s.dims = dims, s.theta = theta;
  return s;
}

TEST(Rope, StandardFrequencies) {
  const auto f = rope_frequencies(base(64, 10000));
  ASSERT_EQ(f.size(), 32u);
  for (size_t i = 0; i < 32; ++i) EXPECT_NEAR(f[i], std::pow(10000.0, -2.0 * static_cast<double>(i) / 64), 1e-14);
}

TEST(Rope, LinearAndDivisors) {
  RopeSpec s = base(8, 10000);
  s.scaling = RopeScaling::linear, s.factor = 8;
  EXPECT_NEAR(rope_frequencies(s)[0], 0.125, 1e-15);
  s.freq_divisors = {1, 2, 4, 5};
  EXPECT_NEAR(rope_frequencies(s)[1], std::pow(10000.0, -0.25) / 16, 1e-15);
}

// Llama 3.1: wavelengths beyond O/low are stretched by the factor, those below O/high kept.
TEST(Rope, Llama3KeepsShortAndStretchesLong) {
  RopeSpec s = base(128, 500000);
  s.scaling = RopeScaling::llama3, s.factor = 8, s.original_context = 8192;
  const auto f = rope_frequencies(s), plain = rope_frequencies(base(128, 500000));
  EXPECT_EQ(f[0], plain[0]);
  EXPECT_DOUBLE_EQ(f[63], plain[63] / 8);
  bool blended = false;
  for (size_t i = 0; i < 64; ++i) {
    EXPECT_LE(f[i], plain[i]);
    EXPECT_GE(f[i], plain[i] / 8 * (1 - 1e-12));
    blended |= f[i] < plain[i] * 0.99 && f[i] > plain[i] / 8 * 1.01;
  }
  EXPECT_TRUE(blended);
}

// Known values of gpt-oss (models.md 1.1) and Kimi K2: the factor on cos and sin is 0.1 ln(factor) + 1.
TEST(Rope, YarnFactor) {
  RopeSpec s = base(64, 150000);
  s.scaling = RopeScaling::yarn, s.factor = 32, s.original_context = 4096, s.truncate = false;
  EXPECT_NEAR(rope_attention_factor(s), 1.34657, 1e-5);
  s.attention_factor = 1.5;
  EXPECT_EQ(rope_attention_factor(s), 1.5);
  s.attention_factor.reset();
  s.mscale = s.mscale_all_dim = 1;
  EXPECT_EQ(rope_attention_factor(s), 1.0);
}

// Without truncation the ramp runs from 8.09278 to 17.39802 (gpt-oss): pairs up to 8 keep, from 18 on are divided.
TEST(Rope, YarnRampWithoutTruncation) {
  RopeSpec s = base(64, 150000);
  s.scaling = RopeScaling::yarn, s.factor = 32, s.original_context = 4096, s.truncate = false;
  const auto f = rope_frequencies(s), plain = rope_frequencies(base(64, 150000));
  EXPECT_DOUBLE_EQ(f[8], plain[8]);
  EXPECT_NEAR(f[18], plain[18] / 32, 1e-18);
  const double r = (9 - 8.09278) / (17.39802 - 8.09278);
  EXPECT_NEAR(f[9] / (plain[9] * (1 - r) + r * plain[9] / 32), 1.0, 1e-5);
}

TEST(Rope, TableHoldsCosAndSinOfEveryPosition) {
  const RopeSpec s = base(16, 10000);
  const auto table = make_rope_table(s, 5000);
  const auto f = rope_frequencies(s);
  for (size_t p : {0u, 1u, 33u, 4999u})
    for (size_t i = 0; i < 8; ++i) {
      EXPECT_NEAR(table.cos[p * 8 + i], std::cos(static_cast<double>(p) * f[i]), 6e-8);
      EXPECT_NEAR(table.sin[p * 8 + i], std::sin(static_cast<double>(p) * f[i]), 6e-8);
    }
}

}  // namespace
}  // namespace verbund::model
