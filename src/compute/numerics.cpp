// Scalar forms of the contract's functions. std::fma is correctly rounded on every platform, in hardware or not, and no
// other libm function with a rounding of its own is called.
#include "compute/numerics.h"

#include <bit>
#include <limits>

#include "compute/native/exp_f32.h"

namespace verbund::compute {
namespace {

// ln 2 in two parts: the first has 21 trailing zero bits, so n * kLn2Hi is exact for |n| < 2^11.
constexpr double kLn2Hi = 0x1.62e42feep-1, kLn2Lo = 0x1.a39ef35793c76p-33;
constexpr double kLog2E = 0x1.71547652b82fep+0;
constexpr double kPiHalfHi = 0x1.921fb54442d18p+0, kPiHalfLo = 0x1.1a62633145c07p-54;
constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;

double round_even(double x) { return (x + kFixedMagic) - kFixedMagic; }

// 2^n for |n| <= 1022.
double power_of_two(int n) { return std::bit_cast<double>(static_cast<uint64_t>(n + 1023) << 52); }

// Unevaluated sum hi + lo.
struct Double2 {
  double hi, lo;
};

// log(x) = n ln2 + 2 atanh(f), f = (m - 1) / (m + 1), m in [sqrt(1/2), sqrt 2): |f| <= 0.1716, 12 terms leave 1e-19.
Double2 log_parts(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  int n = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++n;
  }
  const double above = m - 1, sum = m + 1, sum_error = m - (sum - 1);
  const double f = above / sum;
  const double f_error = (std::fma(-f, sum, above) - f * sum_error) / sum;
  const double f2 = f * f;
  double series = 1.0 / 25;
  for (int k = 23; k >= 3; k -= 2) series = std::fma(series, f2, 1.0 / k);
  const double tail = 2 * (f * (f2 * series) + f_error);
  const double big = n * kLn2Hi, head = 2 * f;
  const double hi = big + head;
  const double lo = n == 0 ? 0 : head - (hi - big);
  return {hi, std::fma(static_cast<double>(n), kLn2Lo, lo + tail)};
}

// Taylor series of degree 13 on |r| <= ln2 / 2: remainder below 1e-17.
double exp_reduced(double r) {
  double factorial_inverse[14] = {1};
  for (int k = 1; k < 14; ++k) factorial_inverse[k] = factorial_inverse[k - 1] / k;
  double sum = factorial_inverse[13];
  for (int k = 12; k >= 0; --k) sum = std::fma(sum, r, factorial_inverse[k]);
  return sum;
}

double exp_parts(Double2 x) {
  const double n = round_even(x.hi * kLog2E);
  double r = std::fma(-n, kLn2Hi, x.hi);
  r = std::fma(-n, kLn2Lo, r) + x.lo;
  const int half = static_cast<int>(n) / 2;  // two steps, so that results near the ends of the range are reached
  return exp_reduced(r) * power_of_two(half) * power_of_two(static_cast<int>(n) - half);
}

}  // namespace

float exp_f32(float x) { return native::exp_f32_inline(x); }

int64_t to_fixed(float v, bool& poisoned) {
  if (!(std::fabs(v) <= kFixedMax)) {
    poisoned = true;
    return 0;
  }
  return std::bit_cast<int64_t>(std::fma(static_cast<double>(v), kFixedOne, kFixedMagic)) - std::bit_cast<int64_t>(kFixedMagic);
}

double exact_log(double x) {
  const Double2 parts = log_parts(x);
  return parts.hi + parts.lo;
}

double exact_exp(double x) { return exp_parts({x, 0}); }

double exact_pow(double base, double exponent) {
  const Double2 log = log_parts(base);
  const double product = exponent * log.hi;
  const double error = std::fma(exponent, log.hi, -product);
  return exp_parts({product, std::fma(exponent, log.lo, error)});
}

void exact_sincos(double x, double& sin, double& cos) {
  const double n = round_even(x * kTwoOverPi);
  // n has at most 24 bits, so the first step is exact (all operands are multiples of 2^-52 and the result is below 1).
  const double r = std::fma(-n, kPiHalfLo, std::fma(-n, kPiHalfHi, x));
  const double r2 = r * r;
  double s = 0, c = 0;  // Taylor series to r^19 and r^20: remainders below 1e-19 on |r| <= pi / 4
  for (int k = 19; k >= 3; k -= 2) s = (s * r2 + 1) * (-1.0 / ((k - 1) * k));
  for (int k = 20; k >= 2; k -= 2) c = (c * r2 + 1) * (-1.0 / ((k - 1) * k));
  const double sine = std::fma(r * r2, s, r), cosine = std::fma(r2, c, 1.0);
  switch (static_cast<int64_t>(n) & 3) {
    case 0:
      sin = sine;
      cos = cosine;
      return;
    case 1:
      sin = cosine;
      cos = -sine;
      return;
    case 2:
      sin = -sine;
      cos = -cosine;
      return;
    default:
      sin = -cosine;
      cos = sine;
      return;
  }
}

}  // namespace verbund::compute
