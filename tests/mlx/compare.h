// Comparison of a backend's f32 output with a reference in f64.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

namespace verbund::test {

// Largest difference relative to the largest value of the reference.
inline double relative_error(std::span<const float> got, std::span<const double> want) {
  double worst = 0, largest = 1e-30;
  for (size_t i = 0; i < want.size(); ++i) {
    const double difference = std::abs(double(got[i]) - want[i]);
    worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
    largest = std::max(largest, std::abs(want[i]));
  }
  return worst / largest;
}

inline double cosine(std::span<const float> got, std::span<const double> want) {
  double dot = 0, a = 0, b = 0;
  for (size_t i = 0; i < want.size(); ++i) dot += got[i] * want[i], a += double(got[i]) * got[i], b += want[i] * want[i];
  return dot / std::sqrt(a * b);
}

inline void expect_close(std::span<const float> got, std::span<const double> want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  EXPECT_LE(relative_error(got, want), tolerance);
}

}  // namespace verbund::test
