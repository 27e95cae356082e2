// Counter-based random numbers (Philox4x32-10, Salmon et al. 2011): a number is a pure function of key and counter, so
// a replayed, batched or speculated token draws what it drew before. No state, any thread.
#pragma once

#include <array>
#include <cstdint>

namespace verbund::engine {

std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// What a number is for: different purposes at one position must not share it.
enum class Purpose : uint32_t { sample = 0 };

// Uniform in [0, 1), a multiple of 2^-53. Key: (seed low, seed high); counter: (position low, position high, choice,
// purpose). position: index, in the whole sequence, of the token that is being drawn.
double uniform(uint64_t seed, uint64_t position, uint32_t choice, Purpose purpose);

}  // namespace verbund::engine
