#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "compute/numerics.h"

namespace verbund::model {
namespace {

using compute::exact_log;
constexpr double kTwoPi = 2 * std::numbers::pi;

// Llama 3.1: long wavelengths are stretched, short ones kept, those between blended.
double llama3_scaled(double f, const RopeSpec& s) {
  const double wavelength = kTwoPi / f;
  if (wavelength > s.original_context / s.low_freq_factor) return f / s.factor;
  if (wavelength < s.original_context / s.high_freq_factor) return f;
  const double blend = (s.original_context / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return f * ((1 - blend) / s.factor + blend);
}

struct YarnRamp {
  double low, high;
};

YarnRamp yarn_ramp(const RopeSpec& s) {
  const double d = static_cast<double>(s.dims);
  const auto correction = [&](double rotations) {
    return d * exact_log(s.original_context / (kTwoPi * rotations)) / (2 * exact_log(s.theta));
  };
  double low = correction(s.beta_fast), high = correction(s.beta_slow);
  if (s.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, d - 1);
  if (low == high) high += 0.001;
  return {low, high};
}

}  // namespace

std::vector<double> rope_frequencies(const RopeSpec& s) {
  const size_t pairs = s.dims / 2;
  std::vector<double> f(pairs);
  const YarnRamp ramp = s.scaling == RopeScaling::yarn ? yarn_ramp(s) : YarnRamp{0, 1};
  for (size_t i = 0; i < pairs; ++i) {
    f[i] = compute::exact_pow(s.theta, -2.0 * static_cast<double>(i) / static_cast<double>(s.dims));
    switch (s.scaling) {
      case RopeScaling::none: break;
      case RopeScaling::linear: f[i] /= s.factor; break;
      case RopeScaling::llama3: f[i] = llama3_scaled(f[i], s); break;
      case RopeScaling::yarn: {
        const double r = std::clamp((static_cast<double>(i) - ramp.low) / (ramp.high - ramp.low), 0.0, 1.0);
        f[i] = f[i] * (1 - r) + r * (f[i] / s.factor);
        break;
      }
    }
    if (!s.freq_divisors.empty()) f[i] /= static_cast<double>(s.freq_divisors[i]);
  }
  return f;
}

double rope_attention_factor(const RopeSpec& s) {
  if (s.scaling != RopeScaling::yarn) return 1.0;
  if (s.attention_factor) return *s.attention_factor;
  const auto m = [&](double scale) { return s.factor <= 1 ? 1.0 : 0.1 * scale * exact_log(s.factor) + 1.0; };
  return s.mscale != 0 && s.mscale_all_dim != 0 ? m(s.mscale) / m(s.mscale_all_dim) : m(1.0);
}

compute::RopeTable make_rope_table(const RopeSpec& spec, size_t positions) {
  const std::vector<double> f = rope_frequencies(spec);
  const double factor = rope_attention_factor(spec);
  compute::RopeTable table;
  table.pairs = f.size();
  table.cos.resize(positions * f.size());
  table.sin.resize(positions * f.size());
  for (size_t p = 0; p < positions; ++p)
    for (size_t i = 0; i < f.size(); ++i) {
      double sin, cos;
      compute::exact_sincos(static_cast<double>(p) * f[i], sin, cos);
      table.cos[p * f.size() + i] = static_cast<float>(cos * factor);
      table.sin[p * f.size() + i] = static_cast<float>(sin * factor);
    }
  return table;
}

}  // namespace verbund::model
