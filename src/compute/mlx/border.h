// The border between MLX and the rest: short names, and MLX's exceptions turned into verbund::Error.
#pragma once

#include <mlx/mlx.h>

#include <string_view>
#include <utility>

#include "base/error.h"

namespace verbund::compute::mlx_impl {

namespace mx = ::mlx::core;

// Inside a catch block: the current exception as an Error naming the operation.
Error error_of_mlx(std::string_view operation);

// Runs one operation; nothing but Error leaves it.
template <class F>
auto guarded(std::string_view operation, F&& body) -> decltype(body()) {
  try {
    return std::forward<F>(body)();
  } catch (const Error&) { throw; } catch (...) {
    throw error_of_mlx(operation);
  }
}

// An owned array in device memory that the host fills before its first use.
mx::array make_array(mx::Shape shape, mx::Dtype type);

}  // namespace verbund::compute::mlx_impl
