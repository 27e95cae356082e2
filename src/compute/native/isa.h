// Which instruction sets this build and this CPU have, and the kernel table of each. Any thread.
#pragma once

#include <string>
#include <vector>

#include "compute/native/kernels.h"

namespace verbund::compute::native {

enum class Isa { scalar, avx2, avx512bw, avx512vnni, amx, neon, neon_dotprod, neon_i8mm };

struct IsaChoice {
  Isa isa;
  std::string name;         // as given to --isa
  std::string description;  // "avx512 (VNNI)"
};

// Runnable here, best first; scalar is last. avx512 stands for the best AVX-512 form of this CPU; avx512bw (without VNNI)
// is listed too where VNNI exists, so that its kernels can be tested. amx is AVX-512 with VNNI whose products of many rows use
// int8 tiles; asking for the list asks the system for permission to use them (Linux: arch_prctl). neon is every Arm CPU of 64 bits;
// neon_dotprod and neon_i8mm are listed where it has dot products and int8 matrix products too.
std::vector<IsaChoice> runnable_isas();
// Throws invalid_argument for an unknown name, unimplemented for one this CPU or build has not; both list the choices.
IsaChoice choose_isa(const std::string& name);

const Kernels& kernels_of(Isa isa);

// The table's parts, one per file that Highway compiles for each target.
void fill_products_quantised(Kernels& kernels, Isa isa);
void fill_products_dotprod(Kernels& kernels);  // Arm only, as the next
void fill_products_i8mm(Kernels& kernels);
void fill_product_tiles(Kernels& kernels, Isa isa);
void fill_products_pairs(Kernels& kernels, Isa isa);
void fill_product_pair_tiles(Kernels& kernels, Isa isa);
bool has_bf16_tiles();  // of a CPU whose tiles may be used
void fill_products_dense(Kernels& kernels, Isa isa);
void fill_elementwise(Kernels& kernels, Isa isa);
void fill_attention(Kernels& kernels, Isa isa);

}  // namespace verbund::compute::native
