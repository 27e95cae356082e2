// Operations for which MLX has fused kernels, written in the form that suits the device.
//
// On the CPU everything is f32, so that it is the more exact reference. On a GPU products run in the 16-bit type of the
// weight's scales and attention in that of the cache, as mlx-lm does it: half the traffic, and scales as they are instead
// of a widened copy in every step. The residual stream and the logits are f32 on both.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "compute/backend.h"
#include "compute/mlx/border.h"
#include "compute/mlx/census.h"

namespace verbund::compute::mlx_impl {

struct Form {
  bool gpu;       // 16-bit types and the fused rotation
  bool compiled;  // chains of elementwise operations as one kernel; on the CPU MLX would start a C++ compiler for that
};

Form form_of_device();

class Ops {
 public:
  explicit Ops(Form form);
  bool gpu() const { return form_.gpu; }
  Census& census() { return census_; }

  // x in `type` on a GPU, x as it is on the CPU.
  mx::array narrowed(const mx::array& x, mx::Dtype type) const;
  mx::array rms_norm(const mx::array& x, const mx::array& weight, float eps);
  // x: [batch, heads, positions, dim]; offset: the first position of all, or one position for each of the batch.
  mx::array rope(const mx::array& x, size_t dims, RopeMode mode, const mx::array& offset, const mx::array& wavelengths);
  mx::array attention(const mx::array& q, const mx::array& k, const mx::array& v, float scale, bool causal,
                      const std::optional<mx::array>& mask);
  mx::array gated(const mx::array& gate, const mx::array& up, Activation activation);
  mx::array add(const mx::array& f32, const mx::array& y);  // in f32

 private:
  using Chain = std::function<std::vector<mx::array>(const std::vector<mx::array>&)>;
  mx::array chained(const char* name, const Chain& chain, std::vector<mx::array> inputs);

  Form form_;
  Chain silu_, gelu_, add_;
  Census census_;
};

}  // namespace verbund::compute::mlx_impl
