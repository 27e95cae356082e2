#include "formats/code_tile.h"

#include <algorithm>
#include <cstring>

#include "formats/codes.h"
#include "formats/gguf_blocks.h"

namespace verbund::formats {
namespace {

size_t scale_size(const WeightFormat& f) { return f.coding == Coding::affine ? size_of(f.dtype) : 1; }

// One row's scales to every sixteenth place.
template <size_t kSize>
void scatter(const std::byte* from, size_t groups, size_t row, std::byte* to) {
  for (size_t g = 0; g < groups; ++g) std::memcpy(to + (g * kTileRows + row) * kSize, from + g * kSize, kSize);
}

void scatter(const std::byte* from, size_t size, size_t groups, size_t row, std::byte* to) {
  switch (size) {
    case 1: return scatter<1>(from, groups, row, to);
    case 2: return scatter<2>(from, groups, row, to);
    default: scatter<4>(from, groups, row, to);
  }
}

void take_canonical(const WeightMatrix& m, size_t row, size_t count, size_t col, size_t cols, CodeTile& tile) {
  const WeightFormat& f = m.format;
  const size_t stride = f.code_row_bytes(m.cols), size = scale_size(f), all_groups = f.group_count(m.cols);
  const size_t first = f.group_count(col), groups = f.group_count(cols);
  for (size_t r = 0; r < count; ++r) {
    unpack_codes(m.codes.data() + (row + r) * stride + col * static_cast<size_t>(f.bits) / 8, cols, f.bits, tile.codes[r]);
    const size_t at = ((row + r) * all_groups + first) * size;
    scatter(m.scales.data() + at, size, groups, r, tile.scales);
    if (!m.biases.empty()) scatter(m.biases.data() + at, size, groups, r, tile.biases);
  }
}

}  // namespace

bool take_tile(const StoredRows& band, size_t row, size_t count, size_t col, CodeTile& tile, Range& part) {
  if (band.blocks == nullptr) {
    part = {0, std::min(kTileCols, band.cols - col)};
    take_canonical(band.matrix, row, count, col, part.size(), tile);
    return true;  // a source checks what it delivers in canonical form
  }
  const size_t block = band.blocks->block, from = band.skip + col;
  part.begin = from % block;
  part.end = std::min(block, part.begin + band.cols - col);
  const std::byte* first = band.bytes.data() + row * band.stride + from / block * band.blocks->block_bytes;
  return band.blocks->decode(first, band.stride, count, tile);
}

}  // namespace verbund::formats
