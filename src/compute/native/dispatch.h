// Picks a target's function by name. A file that Highway compiles for several targets uses it in its HWY_ONCE part.
#pragma once

#include <hwy/targets.h>

#include "compute/native/isa.h"

#if HWY_ARCH_X86
#define VERBUND_PICK(isa, function) \
  ((isa) == Isa::avx2 ? N_AVX2::function : (isa) == Isa::avx512bw ? N_AVX3::function : N_AVX3_DL::function)
#else
#define VERBUND_PICK(isa, function) HWY_NAMESPACE::function  // of the only target
#endif
