// exp of the arithmetic contract, as one inline scalar function: kernels use it for ends of rows and GCC can vectorise it.
//
// n = round(x log2 e), r = x - n ln 2 (two fused steps, exact to rounding), a polynomial of degree 6 (interpolated at
// Chebyshev nodes of |r| <= ln2/2, error below 1e-8), times 2^n. Results below exp(-87) are 0 and above exp(88) infinite:
// one exponent addition scales every value in between.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace verbund::compute::native {

constexpr float kExpMin = -87.0f, kExpMax = 88.0f;
constexpr float kLog2EF = 0x1.715476p+0f;
constexpr float kRoundMagicF = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
constexpr float kLn2HiF = 0x1.62e430p-1f, kLn2LoF = -0x1.05c610p-29f;
constexpr float kExpC2 = 0x1.000000p-1f, kExpC3 = 0x1.5554dcp-3f, kExpC4 = 0x1.555518p-5f, kExpC5 = 0x1.120be2p-7f,
                kExpC6 = 0x1.6d117cp-10f;

inline float exp_f32_inline(float x) {
  if (x < kExpMin) return 0.0f;
  if (x > kExpMax) return std::numeric_limits<float>::infinity();
  const float t = std::fma(x, kLog2EF, kRoundMagicF);
  const float n = t - kRoundMagicF;
  const float r = std::fma(-n, kLn2LoF, std::fma(-n, kLn2HiF, x));
  float p = std::fma(kExpC6, r, kExpC5);
  p = std::fma(p, r, kExpC4);
  p = std::fma(p, r, kExpC3);
  p = std::fma(p, r, kExpC2);
  p = std::fma(p, r, 1.0f);
  p = std::fma(p, r, 1.0f);
  return p * std::bit_cast<float>((std::bit_cast<uint32_t>(t) + 127u) << 23);
}

}  // namespace verbund::compute::native
