#include "base/error.h"

#include <gtest/gtest.h>

#include <set>

namespace verbund {
namespace {

constexpr Code kAll[] = {Code::invalid_argument,   Code::not_found, Code::unavailable,       Code::deadline_exceeded,
                         Code::resource_exhausted, Code::data_loss, Code::permission_denied, Code::unimplemented,
                         Code::cancelled,          Code::internal};

TEST(Error, SaysWhatWhereAndWhatToDo) {
  const Error e(Code::not_found, "no tensor x", "file.gguf", "fetch it again");
  EXPECT_STREQ(e.what(), "no tensor x (file.gguf); fetch it again");
  EXPECT_STREQ(Error(Code::internal, "odd").what(), "odd");
  EXPECT_EQ(e.within("rank 2").parts().where, "rank 2, file.gguf");
  EXPECT_EQ(e.within("rank 2").code(), Code::not_found);
}

TEST(Error, CodesSurviveTheirNames) {
  std::set<int> exits;
  for (Code c : kAll) {
    EXPECT_EQ(code_from_string(to_string(c)), c);
    EXPECT_NE(mapping(c).exit_code, 0);
    EXPECT_GE(mapping(c).http_status, 400);
    exits.insert(mapping(c).exit_code);
  }
  EXPECT_EQ(exits.size(), std::size(kAll));  // a script can tell them apart
  EXPECT_EQ(code_from_string("no such code"), Code::internal);
  for (Lost l : {Lost::request, Lost::peer, Lost::instance, Lost::process}) EXPECT_EQ(lost_from_string(to_string(l)), l);
}

TEST(Error, LibraryExceptionsBecomeErrors) {
  const auto caught = [](auto thrown) {
    try {
      throw thrown;
    } catch (...) { return current_error("here"); }
  };
  EXPECT_EQ(caught(std::bad_alloc()).code(), Code::resource_exhausted);
  EXPECT_EQ(caught(std::runtime_error("odd")).code(), Code::internal);
  EXPECT_EQ(caught(42).code(), Code::internal);
  EXPECT_STREQ(caught(Error(Code::cancelled, "stop", "there")).what(), "stop (here, there)");
}

}  // namespace
}  // namespace verbund
