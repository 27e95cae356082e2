// What the tests of compute share: backends of every instruction set, comparing bit by bit, running one attention case.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>

#include "compute/backend.h"
#include "compute/memory_source.h"
#include "compute/ops_cases.h"

namespace verbund::compute::testing {

inline Deadline soon() { return Deadline::after(std::chrono::seconds(10)); }

inline std::vector<float> host(Backend& backend, const Tensor& t) {
  std::vector<float> values(t.rows() * t.cols());
  backend.to_host(t, values);
  return values;
}

// Bit for bit; where both are no number, the payload does not matter.
inline ::testing::AssertionResult same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " and " << b.size() << " values";
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (std::memcmp(&a[i], &b[i], 4) != 0) return ::testing::AssertionFailure() << "value " << i << ": " << a[i] << " and " << b[i];
  }
  return ::testing::AssertionSuccess();
}

inline std::vector<float> slice(const std::vector<float>& v, size_t begin, size_t count) {
  return {v.begin() + begin, v.begin() + begin + count};
}

// sum + poison of a row-parallel product, through the public way: added to zeros.
inline std::vector<float> reduced(Backend& backend, const Partial& partial) {
  const auto mesh = mesh::make_solo_mesh();
  const size_t rows = partial.sums.rows(), cols = partial.sums.cols();
  const Tensor zero = backend.from_host(rows, cols, std::vector<float>(rows * cols));
  return host(backend, backend.add_reduced(zero, partial, nullptr, *mesh, soon()));
}

}  // namespace verbund::compute::testing
