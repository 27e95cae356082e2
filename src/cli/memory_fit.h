// What would fit: from the plans of an instance's ranks, the largest context and the fewest nodes for a budget.
#pragma once

#include <optional>
#include <vector>

#include "engine/instance.h"

namespace verbund::cli {

// Largest context (whole KV blocks) with which every rank stays within `budget`; 0: not even the weights fit.
// Keys, values and tables grow with the context, everything else does not.
uint32_t context_that_fits(const std::vector<engine::RankReport>& ranks, uint32_t planned_context, uint64_t budget);

// resource_exhausted with each number of the rank that needs most, and what would fit.
Error does_not_fit(const std::vector<engine::RankReport>& ranks, uint32_t planned_context, uint32_t needed_context, uint64_t budget);

}  // namespace verbund::cli
