#include "compute/native/isa.h"

#include <gmock/gmock.h>

#include <cstdlib>

#include "base/error.h"
#include "compute/cpu.h"

namespace verbund::compute {
namespace {

TEST(Isa, ScalarIsAlwaysThereAndLast) {
  const auto isas = native_isas();
  EXPECT_EQ(isas.back(), "scalar");
  EXPECT_EQ(native::choose_isa("auto").name, isas.front());
  for (const std::string& isa : isas) EXPECT_EQ(native::choose_isa(isa).name, isa);
  EXPECT_NO_THROW(require_cpu());
  const char* best = std::getenv("VERBUND_BEST_ISA");  // of scripts/check-aarch64, which knows its CPUs
  EXPECT_EQ(isas.front(), best ? best : isas.front());
}

TEST(Isa, AnUnknownOneIsRefusedWithTheChoices) {
  try {
    make_native_backend("sse9", 1);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::invalid_argument);
    EXPECT_THAT(e.what(), ::testing::HasSubstr("sse9"));
    EXPECT_THAT(e.what(), ::testing::HasSubstr("auto"));
    EXPECT_THAT(e.what(), ::testing::HasSubstr("scalar"));
  }
#if defined(__x86_64__)
  const char* elsewhere = "neon_i8mm";
#else
  const char* elsewhere = "avx2";
#endif
  try {
    make_native_backend(elsewhere, 1);
    FAIL();
  } catch (const Error& e) { EXPECT_EQ(e.code(), Code::unimplemented); }
  EXPECT_THROW(make_native_backend("auto", 0), Error);
}

TEST(Isa, TheDescriptionNamesIt) {
  EXPECT_EQ(make_native_backend("scalar", 1)->description(), "native, scalar (reference), 1 thread");
  EXPECT_THAT(make_native_backend("auto", 2)->description(), ::testing::EndsWith("2 threads"));
}

}  // namespace
}  // namespace verbund::compute
