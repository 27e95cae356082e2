// Rotary position tables, computed with our own double-precision functions so that every machine has the same bits.
#pragma once

#include "compute/backend.h"
#include "model/decoder_spec.h"

namespace verbund::model {

// Angle per position of pair i < dims/2, scalings applied (formulas: arXiv 2104.09864, 2309.00071 and Llama 3.1).
std::vector<double> rope_frequencies(const RopeSpec& spec);
// Factor on cos and sin (1 unless yarn).
double rope_attention_factor(const RopeSpec& spec);
// Rows for positions [0, positions).
compute::RopeTable make_rope_table(const RopeSpec& spec, size_t positions);

}  // namespace verbund::model
