#include "engine/philox.h"

#include <gtest/gtest.h>

namespace verbund::engine {
namespace {

using Words = std::array<uint32_t, 4>;

TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox4x32_10({ones, ones, ones, ones}, {ones, ones}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(Philox, UniformUsesTheFirstTwoWords) {
  // seed 0, position 0, choice 0, purpose 0 is the first known answer.
  const double expected = ((0x6627e8d5u >> 5) * 67108864.0 + (0xe169c58du >> 6)) / 9007199254740992.0;
  EXPECT_EQ(uniform(0, 0, 0, Purpose::sample), expected);
  // All ones need a purpose that is not defined: 2^53 - 1 stays below 1.
  const double high = uniform(~0ull, ~0ull, ~0u, static_cast<Purpose>(~0u));
  EXPECT_EQ(high, ((0x408f276du >> 5) * 67108864.0 + (0x41c83b0eu >> 6)) / 9007199254740992.0);
}

TEST(Philox, EveryPartOfTheKeyCounts) {
  const double base = uniform(7, 9, 1, Purpose::sample);
  EXPECT_EQ(base, uniform(7, 9, 1, Purpose::sample));
  EXPECT_NE(base, uniform(8, 9, 1, Purpose::sample));
  EXPECT_NE(base, uniform(7 | 1ull << 32, 9, 1, Purpose::sample));
  EXPECT_NE(base, uniform(7, 10, 1, Purpose::sample));
  EXPECT_NE(base, uniform(7, 9 | 1ull << 32, 1, Purpose::sample));
  EXPECT_NE(base, uniform(7, 9, 2, Purpose::sample));
  EXPECT_NE(base, uniform(7, 9, 1, static_cast<Purpose>(1)));
}

TEST(Philox, UniformIsUniform) {
  constexpr int kDraws = 100000, kBins = 50;
  int bins[kBins] = {};
  for (int i = 0; i < kDraws; ++i) {
    const double u = uniform(42, i, 0, Purpose::sample);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    ++bins[static_cast<int>(u * kBins)];
  }
  double chi2 = 0;
  for (int n : bins) chi2 += (n - 2000.0) * (n - 2000.0) / 2000.0;
  EXPECT_LT(chi2, 94.0);  // 49 degrees of freedom, p = 1e-4
}

}  // namespace
}  // namespace verbund::engine
