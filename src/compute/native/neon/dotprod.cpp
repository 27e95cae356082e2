// The quantised products once more, for CPUs with NEON's dot products of Armv8.2: CMakeLists.txt has the flags that
// let dot-inl.h use them, isa.cpp checks that they are there. All that is compiled here has a namespace of its own, so that the
// linker cannot mistake it for what every CPU runs.
#define VERBUND_NEON_FORM
#define VERBUND_NAMESPACE N_NEON_DOTPROD
#include "compute/native/product_quantised.cpp"

#include "compute/native/isa.h"

#if !defined(__ARM_FEATURE_DOTPROD)
#error "compiled without its instructions"
#endif

namespace verbund::compute::native {

void fill_products_dotprod(Kernels& kernels) { kernels.product_quantised = N_NEON_DOTPROD::product_quantised; }

}  // namespace verbund::compute::native
