// The local sums of an all-reduce, over vectors that still lie in the channels. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace verbund::mesh {

// own[i] = lower[0][i] + lower[1][i] + ... + own[i] + higher[0][i] + ..., added from left to right: ascending rank order.
// The sources are own.size() elements each, at any alignment.
void sum_in_order(std::span<float> own, std::span<const std::byte* const> lower, std::span<const std::byte* const> higher);
// Integer addition has no order (two's complement; the callers' range check is not ours).
void sum_in_order(std::span<int64_t> own, std::span<const std::byte* const> lower, std::span<const std::byte* const> higher);

}  // namespace verbund::mesh
