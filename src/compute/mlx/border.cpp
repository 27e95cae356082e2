#include "compute/mlx/border.h"

#include <new>
#include <string>

namespace verbund::compute::mlx_impl {

Error error_of_mlx(std::string_view operation) {
  const std::string where = "MLX, " + std::string(operation);
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return Error(Code::resource_exhausted, "out of memory", where, "use a smaller context, a smaller prefill chunk or more nodes");
  } catch (const std::exception& e) {
    const std::string text = e.what();
    // MLX has no type of its own for a failed allocation; its allocators name themselves in the text.
    if (text.find("malloc") != std::string::npos)
      return Error(Code::resource_exhausted, text, where, "use a smaller context, a smaller prefill chunk or more nodes");
    return Error(Code::internal, text, where);
  } catch (...) { return Error(Code::internal, "unknown exception", where); }
}

mx::array make_array(mx::Shape shape, mx::Dtype type) {
  size_t bytes = mx::size_of(type);
  for (const auto extent : shape) bytes *= static_cast<size_t>(extent);
  return mx::array(mx::allocator::malloc(bytes), std::move(shape), type);
}

}  // namespace verbund::compute::mlx_impl
