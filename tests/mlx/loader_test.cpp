// The loader of the MLX module: what a person reads when MLX is not there, or is of another build.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "compute/mlx_module.h"

namespace verbund::compute {
namespace {

Error error_of(const std::string& path) {
  try {
    make_mlx_backend_from(path);
  } catch (const Error& e) { return e; }
  ADD_FAILURE() << "no error";
  return Error(Code::internal, "none");
}

TEST(MlxLoader, MissingModuleSaysWhatToDo) {
  const Error e = error_of("/nowhere/libverbund_mlx.so");
  EXPECT_EQ(e.code(), Code::unavailable);
  EXPECT_EQ(e.parts().where, "/nowhere/libverbund_mlx.so");
  EXPECT_NE(e.parts().what.find("MLX is not built in"), std::string::npos) << e.what();
  EXPECT_NE(e.parts().hint.find("scripts/setup"), std::string::npos) << e.what();
}

TEST(MlxLoader, FileThatIsNoModuleIsRefused) {
  const std::string path = testing::TempDir() + "verbund_not_a_module.so";
  std::ofstream(path) << "not a library";
  const Error e = error_of(path);
  std::filesystem::remove(path);
  EXPECT_EQ(e.code(), Code::unavailable);
  EXPECT_NE(e.parts().what.find("cannot load the MLX module"), std::string::npos) << e.what();
}

TEST(MlxLoader, OtherLibraryIsRefused) {
  const Error e = error_of("/lib/x86_64-linux-gnu/libm.so.6");
  if (!std::filesystem::exists("/lib/x86_64-linux-gnu/libm.so.6")) GTEST_SKIP() << "no library to try at this path";
  EXPECT_EQ(e.code(), Code::unavailable);
  EXPECT_NE(e.parts().what.find("has no function verbund_mlx_stamp"), std::string::npos) << e.what();
}

TEST(MlxLoader, ModuleIsExpectedBesideTheProgram) {
  EXPECT_EQ(std::filesystem::path(mlx_module_path()).parent_path(), std::filesystem::read_symlink("/proc/self/exe").parent_path());
}

#ifdef VERBUND_MLX_BUILT
TEST(MlxLoader, BackendSaysWhatItIs) {
  const auto backend = make_mlx_backend();
  EXPECT_EQ(backend->name(), "mlx");
  EXPECT_FALSE(backend->exact());
  EXPECT_NE(backend->description().find("mlx 0."), std::string::npos) << backend->description();
}

// Thrown inside the module, caught by type outside.
TEST(MlxLoader, ErrorsCrossTheBorder) {
  const auto backend = make_mlx_backend();
  const std::vector<float> three(3);
  try {
    backend->from_host(2, 2, three);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::invalid_argument);
    EXPECT_EQ(e.parts().where, "MLX, from_host");
  }
}
#endif

}  // namespace
}  // namespace verbund::compute
