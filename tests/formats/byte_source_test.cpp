#include "formats/byte_source.h"

#include <random>

#include "support.h"

namespace verbund::formats {
namespace {

std::vector<std::byte> random_bytes(size_t n) {
  std::mt19937 random(5);
  std::vector<std::byte> bytes(n);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

// Rows longer than the scratch, rows with small and with large gaps: every way of reading gives the same bytes.
TEST(ReadRect, EqualsSlicingByHand) {
  const std::vector<std::byte> bytes = random_bytes(7 << 20);
  const MemoryBytes source(bytes, "memory");
  struct Case {
    size_t offset, stride;
    Range rows, bytes;
  };
  const Case cases[] = {{3, 100, {0, 5}, {0, 100}},                       // whole rows
                        {3, 100, {2, 50}, {10, 90}},                      // small gaps, one band
                        {64, 30000, {1, 200}, {128, 29000}},              // small gaps, several bands
                        {64, 100000, {1, 60}, {512, 1024}},               // large gaps, row by row
                        {0, 3 << 20, {0, 2}, {1 << 10, (3 << 20) - 64}},  // rows longer than the scratch, small gap
                        {0, 3 << 20, {1, 2}, {0, 2 << 20}},               // a single row
                        {0, 100, {4, 4}, {0, 100}},
                        {0, 100, {0, 4}, {7, 7}}};
  for (const Case& c : cases) {
    std::vector<std::byte> expected, got(c.rows.size() * c.bytes.size());
    for (size_t r = c.rows.begin; r < c.rows.end; ++r)
      expected.insert(expected.end(), bytes.begin() + static_cast<ptrdiff_t>(c.offset + r * c.stride + c.bytes.begin),
                      bytes.begin() + static_cast<ptrdiff_t>(c.offset + r * c.stride + c.bytes.end));
    reset_allocation_probe();
    read_rect(source, {c.offset, c.stride, c.rows, c.bytes}, got.data());
    EXPECT_LE(largest_allocation(), kReadScratch);
    ASSERT_EQ(got, expected) << c.stride;
  }
}

TEST(ForEachPiece, CutsLongRowsAtWholeUnits) {
  const MemoryBytes source(random_bytes(3 << 20), "memory");
  size_t next = 0;
  constexpr size_t kUnit = 210, kLength = kUnit * 14000;
  for_each_piece(source, {0, kLength, {0, 1}, {0, kLength}}, kUnit, [&](size_t row, size_t first, std::span<const std::byte> piece) {
    EXPECT_EQ(row, 0u);
    EXPECT_EQ(first, next);
    EXPECT_EQ(piece.size() % kUnit, 0u);
    EXPECT_LE(piece.size(), kReadScratch);
    next += piece.size();
  });
  EXPECT_EQ(next, kLength);
}

TEST(FileBytes, RefusesWhatIsNoRegularFile) {
  EXPECT_THROW(FileBytes("/dev/null"), Error);
  EXPECT_THROW(FileBytes("/"), Error);
  EXPECT_THROW(FileBytes("/no/such/file"), Error);
}

TEST(Shown, EscapesAndCutsNames) {
  EXPECT_EQ(shown("a.b"), "'a.b'");
  EXPECT_EQ(shown(std::string("\x1b[2J\0", 5)), "'\\x1b[2J\\x00'");
  EXPECT_LT(shown(std::string(1000000, 'x')).size(), 120u);
}

}  // namespace
}  // namespace verbund::formats
