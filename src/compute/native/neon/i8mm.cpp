// The quantised products once more, for CPUs with NEON's int8 matrix products of Armv8.6: CMakeLists.txt has the flags that
// let dot-inl.h use them, isa.cpp checks that they are there. All that is compiled here has a namespace of its own, so that the
// linker cannot mistake it for what every CPU runs.
#define VERBUND_NEON_FORM
#define VERBUND_NAMESPACE N_NEON_I8MM
#include "compute/native/product_quantised.cpp"

#include "compute/native/isa.h"

#if !defined(__ARM_FEATURE_MATMUL_INT8)
#error "compiled without its instructions"
#endif

namespace verbund::compute::native {

void fill_products_i8mm(Kernels& kernels) { kernels.product_quantised = N_NEON_I8MM::product_quantised; }

}  // namespace verbund::compute::native
