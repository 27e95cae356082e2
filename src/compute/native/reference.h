// The slow, obvious form of every kernel: plain scalar loops that read like numerics.h.
// It is what `--isa scalar` runs, and what every other instruction set is compared with bit for bit.
#pragma once

#include "compute/native/kernels.h"

namespace verbund::compute::native {

const Kernels& reference_kernels();

}  // namespace verbund::compute::native
