#include "base/bytes.h"

#include <gtest/gtest.h>

#include <array>

#include "base/error.h"

namespace verbund {
namespace {

TEST(CheckedArithmetic, OverflowIsNothing) {
  EXPECT_EQ(checked_mul(uint64_t(1) << 32, (uint64_t(1) << 32) - 1), 0xffffffff00000000u);
  EXPECT_FALSE(checked_mul(uint64_t(1) << 32, uint64_t(1) << 32));
  EXPECT_EQ(checked_add(UINT64_MAX - 1, 1), UINT64_MAX);
  EXPECT_FALSE(checked_add(UINT64_MAX, 1));
}

TEST(Bytes, FormatsWithBinaryUnits) {
  EXPECT_EQ(format_bytes(17), "17 B");
  EXPECT_EQ(format_bytes(4608), "4.5 KiB");
  EXPECT_EQ(format_bytes(98 << 20), "98.0 MiB");
}

TEST(Bytes, ParsesDecimalAndBinaryUnits) {
  EXPECT_EQ(parse_bytes("60MB"), 60'000'000u);
  EXPECT_EQ(parse_bytes("60 MiB"), 60u << 20);
  EXPECT_EQ(parse_bytes("1.5GiB"), uint64_t(3) << 29);
  EXPECT_EQ(parse_bytes("1k"), 1000u);
  EXPECT_EQ(parse_bytes("1048576"), 1048576u);
}

TEST(Bytes, RefusesWhatIsNoSize) {
  for (const char* text : {"", "MB", "-1", "-5MB", "12XB", "1MBB", "nan", "inf", "1e30", "60MB!", "0x10"})
    EXPECT_THROW(parse_bytes(text), Error) << text;
}

// Unicode 15, table 3-7: the border cases of every row.
TEST(Utf8, FindsTheFirstBadByte) {
  EXPECT_FALSE(find_invalid_utf8(""));
  EXPECT_FALSE(find_invalid_utf8("a\xc2\x80\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf"));
  EXPECT_EQ(find_invalid_utf8("ab\x80"), 2u);
  EXPECT_EQ(find_invalid_utf8("\xc0\xaf"), 0u);          // overlong
  EXPECT_EQ(find_invalid_utf8("\xe0\x9f\xbf"), 0u);      // overlong
  EXPECT_EQ(find_invalid_utf8("\xed\xa0\x80"), 0u);      // surrogate
  EXPECT_EQ(find_invalid_utf8("\xf0\x8f\xbf\xbf"), 0u);  // overlong
  EXPECT_EQ(find_invalid_utf8("\xf4\x90\x80\x80"), 0u);  // beyond U+10FFFF
  EXPECT_EQ(find_invalid_utf8("x\xe2\x82"), 1u);         // cut off
  EXPECT_EQ(find_invalid_utf8("\xc3\x28"), 0u);
}

// Known value of FNV-1a, 64 bits.
TEST(Checksum, IsFnv1a) {
  const std::array<std::byte, 1> a{std::byte('a')};
  EXPECT_EQ(checksum(a), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(checksum({}), 0xcbf29ce484222325u);
}

}  // namespace
}  // namespace verbund
