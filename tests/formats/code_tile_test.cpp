// Tiles hold what read() delivers, for every type, row range and column range.
#include "formats/code_tile.h"

#include "formats/codes.h"
#include "formats/safetensors_source.h"
#include "support.h"
#include "support/random_gguf.h"

namespace verbund::formats {
namespace {

// Compares `count` rows of a band, tile by tile, with the same rows read in canonical form.
void expect_tiles(const StoredRows& band, const WeightMatrix& m, size_t row, size_t count) {
  const WeightFormat& f = m.format;
  const size_t size = f.coding == Coding::affine ? size_of(f.dtype) : 1, group = static_cast<size_t>(f.group);
  CodeTile tile;
  Range part;
  for (size_t col = 0; col < m.cols; col += part.size()) {
    std::memset(&tile, 0xee, sizeof tile);
    ASSERT_TRUE(take_tile(band, row, count, col, tile, part));
    ASSERT_TRUE(part.size() >= 32 && part.size() % 32 == 0 && part.begin % group == 0 && part.end <= kTileCols);
    for (size_t r = 0; r < count; ++r) {
      std::vector<uint8_t> codes(m.cols);
      unpack_codes(m.codes.data() + (row + r) * f.code_row_bytes(m.cols), m.cols, f.bits, codes.data());
      ASSERT_EQ(std::memcmp(tile.codes[r] + part.begin, codes.data() + col, part.size()), 0) << "row " << row + r << " column " << col;
      for (size_t g = 0; g < part.size() / group; ++g) {
        const size_t from = ((row + r) * f.group_count(m.cols) + col / group + g) * size;
        const size_t at = ((part.begin / group + g) * kTileRows + r) * size;
        ASSERT_EQ(std::memcmp(tile.scales + at, m.scales.data() + from, size), 0);
        if (!m.biases.empty()) { ASSERT_EQ(std::memcmp(tile.biases + at, m.biases.data() + from, size), 0); }
      }
    }
  }
}

void expect_band(const TensorSource& source, std::string_view name, Range rows, Range cols, StoredRows& band) {
  SCOPED_TRACE(source.require(name).stored + " columns " + std::to_string(cols.begin) + " to " + std::to_string(cols.end));
  WeightMatrix m;
  source.read(name, rows, cols, m);
  source.read_stored(name, rows, cols, band);
  ASSERT_EQ(band.rows, rows.size());
  ASSERT_EQ(band.cols, cols.size());
  for (size_t row = 0; row < rows.size(); row += kTileRows) expect_tiles(band, m, row, std::min(kTileRows, rows.size() - row));
}

TEST(CodeTiles, HoldWhatGgufBlocksMean) {
  StoredRows band;  // reused over all types, as a loader does
  for (const uint32_t id : test::gguf_types()) {
    const GgufType& type = *find_gguf_type(id);
    if (!type.decode) continue;
    const auto source = test::random_gguf(type, 37, 768, id);
    for (const Range cols : {Range{0, 768}, Range{0, 32}, Range{32, 768}, Range{224, 544}, Range{256, 512}})
      for (const Range rows : {Range{0, 37}, Range{5, 21}, Range{36, 37}}) expect_band(*source, "w", rows, cols, band);
  }
}

TEST(CodeTiles, HoldWhatMlxModulesMean) {
  for (const int bits : {2, 3, 4, 5, 6, 8})
    for (const int group : {32, 64, 128}) {
      const size_t rows = 19, cols = 640, words = cols * static_cast<size_t>(bits) / 32, groups = cols / static_cast<size_t>(group);
      const size_t code_bytes = rows * words * 4, scale_bytes = rows * groups * 2;
      const auto entry = [](const char* name, const char* type, size_t r, size_t c, size_t begin, size_t end) {
        return "\"" + std::string(name) + "\":{\"dtype\":\"" + type + "\",\"shape\":[" + std::to_string(r) + "," + std::to_string(c) +
               "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
      };
      Bytes file = safetensors_file("{" + entry("m.weight", "U32", rows, words, 0, code_bytes) + "," +
                                    entry("m.scales", "F16", rows, groups, code_bytes, code_bytes + scale_bytes) + "," +
                                    entry("m.biases", "F16", rows, groups, code_bytes + scale_bytes, code_bytes + 2 * scale_bytes) + "}");
      std::mt19937 random(static_cast<unsigned>(bits * group));
      for (size_t i = 0; i < code_bytes + 2 * scale_bytes; ++i) file.u8(static_cast<uint8_t>(random() & 0x7b));  // no exponent is full
      const SafetensorsSource source("mlx", files(in_memory(file)), {{"quantization", {{"bits", bits}, {"group_size", group}}}});
      StoredRows band;
      for (const Range part : {Range{0, 640}, Range{128, 512}, Range{512, 640}}) expect_band(source, "m.weight", {0, 19}, part, band);
    }
}

// Gaps between the rows that are read along and gaps that are skipped.
TEST(CodeTiles, NarrowPartsOfWideRows) {
  const GgufType& type = *find_gguf_type(2);
  const auto source = test::random_gguf(type, 40, 16384, 1);
  StoredRows band;
  for (const Range cols : {Range{0, 32}, Range{8192, 16384}, Range{16352, 16384}}) expect_band(*source, "w", {3, 40}, cols, band);
}

// What read() refuses with the tensor's name, a tile reports.
TEST(CodeTiles, ReportScalesThatAreNotFinite) {
  const GgufType& type = *find_gguf_type(3);
  for (const size_t bad : {0, 2}) {  // scale, bias
    auto blocks = test::random_blocks(type, 20, 1);
    blocks[17 * type.block_bytes + bad + 1] = std::byte{0x7c};
    const auto source = test::gguf_of(type, 20, 32, blocks);
    StoredRows band;
    CodeTile tile;
    Range part;
    source->read_stored("w", {0, 20}, {0, 32}, band);
    EXPECT_TRUE(take_tile(band, 0, 16, 0, tile, part));
    EXPECT_FALSE(take_tile(band, 16, 4, 0, tile, part));
    WeightMatrix m;
    expect_refused(Code::data_loss, {"'w'", "not finite", "row 17"}, [&] { source->read("w", {16, 20}, {0, 32}, m); });
  }
}

TEST(CodeTiles, WrongRangesAreRefused) {
  const auto source = test::random_gguf(*find_gguf_type(12), 4, 512, 1);
  StoredRows band;
  expect_refused(Code::invalid_argument, {"'w'", "4 x 512"}, [&] { source->read_stored("w", {0, 5}, {0, 512}, band); });
  expect_refused(Code::invalid_argument, {"'w'", "multiples of 32"}, [&] { source->read_stored("w", {0, 4}, {16, 512}, band); });
  expect_refused(Code::not_found, {"'x'"}, [&] { source->read_stored("x", {0, 4}, {0, 512}, band); });
}

}  // namespace
}  // namespace verbund::formats
