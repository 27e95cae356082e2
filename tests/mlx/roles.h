// What one process of a mesh test does. The test program starts itself once per rank: test_mlx --role NAME RANK ENDPOINT...
#pragma once

#include <string>
#include <vector>

namespace verbund::test {

// Runs the role; 0 if everything was as expected, else a line on stderr and 1.
int run_role(const std::string& name, int rank, const std::vector<std::string>& endpoints);

}  // namespace verbund::test
