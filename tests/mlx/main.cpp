#include <gtest/gtest.h>

#include "mlx/roles.h"

int main(int argc, char** argv) {
  if (argc > 3 && std::string(argv[1]) == "--role")
    return verbund::test::run_role(argv[2], std::stoi(argv[3]), std::vector<std::string>(argv + 4, argv + argc));
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
