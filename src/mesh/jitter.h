// Test hook: a Link that serves its windows in random pieces and at random times, from a seed.
//
// Wraps any transport, so that production code knows nothing of it. Results of the collectives must not depend on it.
#pragma once

#include <cstdint>
#include <memory>

#include "mesh/link.h"

namespace verbund::mesh {

std::unique_ptr<Link> add_jitter(std::unique_ptr<Link> link, uint64_t seed);

}  // namespace verbund::mesh
