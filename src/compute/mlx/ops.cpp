#include "compute/mlx/ops.h"

#include <numbers>

namespace verbund::compute::mlx_impl {
namespace {

using Arrays = std::vector<mx::array>;

Arrays silu_gated(const Arrays& in) { return {mx::multiply(mx::multiply(in[0], mx::sigmoid(in[0])), in[1])}; }

Arrays gelu_tanh_gated(const Arrays& in) {
  const mx::array& x = in[0];
  const auto scalar = [&](float v) { return mx::array(v, x.dtype()); };
  const float c = std::numbers::sqrt2_v<float> * std::numbers::inv_sqrtpi_v<float>;  // sqrt(2 / pi)
  const mx::array cubic = mx::multiply(mx::square(x), mx::multiply(x, scalar(0.044715f)));
  const mx::array t = mx::tanh(mx::multiply(mx::add(x, cubic), scalar(c)));
  return {mx::multiply(mx::multiply(mx::multiply(x, scalar(0.5f)), mx::add(t, scalar(1.0f))), in[1])};
}

Arrays add_in_f32(const Arrays& in) { return {mx::add(in[0], mx::astype(in[1], mx::float32))}; }

std::function<Arrays(const Arrays&)> maybe_compiled(Arrays (*chain)(const Arrays&), bool compiled) {
  if (!compiled) return chain;
  return mx::compile(chain, /*shapeless=*/true);
}

}  // namespace

Form form_of_device() {
  const bool gpu = mx::default_device() == mx::Device::gpu;
  return {gpu, gpu};
}

Ops::Ops(Form form)
    : form_(form),
      silu_(maybe_compiled(silu_gated, form.compiled)),
      gelu_(maybe_compiled(gelu_tanh_gated, form.compiled)),
      add_(maybe_compiled(add_in_f32, form.compiled)) {}

mx::array Ops::narrowed(const mx::array& x, mx::Dtype type) const { return form_.gpu ? mx::astype(x, type) : x; }

mx::array Ops::rms_norm(const mx::array& x, const mx::array& weight, float eps) {
  const mx::array out = mx::fast::rms_norm(x, weight, eps);
  census_.note_fused("RMSNorm", {x, weight}, out);
  return out;
}

mx::array Ops::rope(const mx::array& x, size_t dims, RopeMode mode, const mx::array& offset, const mx::array& wavelengths) {
  const mx::array out = mx::fast::rope(x, static_cast<int>(dims), mode == RopeMode::interleaved, std::nullopt, 1.0f, offset, wavelengths);
  census_.note_fused("RoPE", {x, offset, wavelengths}, out);
  return out;
}

mx::array Ops::attention(const mx::array& q, const mx::array& k, const mx::array& v, float scale, bool causal,
                         const std::optional<mx::array>& mask) {
  const mx::array out = mx::fast::scaled_dot_product_attention(q, k, v, scale, causal ? "causal" : mask ? "array" : "", mask);
  census_.note_fused("ScaledDotProductAttention", {q, k, v}, out);
  return out;
}

mx::array Ops::gated(const mx::array& gate, const mx::array& up, Activation activation) {
  return chained("Gated", activation == Activation::silu ? silu_ : gelu_, {gate, up});
}

mx::array Ops::add(const mx::array& f32, const mx::array& y) { return chained("Add", add_, {f32, y}); }

mx::array Ops::chained(const char* name, const Chain& chain, Arrays inputs) {
  const mx::array out = chain(inputs)[0];
  if (form_.gpu) census_.note_fused(name, inputs, out);
  return out;
}

}  // namespace verbund::compute::mlx_impl
