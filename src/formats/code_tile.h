// Quantised weights between a file's layout and a kernel's: up to sixteen rows by 256 columns, one byte a code.
//
// Weights pass through this form once, tile by tile, while they are loaded: the block types of files (here) and the
// layouts of kernels (compute) need not know each other, no matrix is held in between, and a tile never leaves L1.
// Value types; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "formats/weight.h"

namespace verbund::formats {

constexpr size_t kTileRows = 16, kTileCols = 256, kTileGroups = kTileCols / 16;

struct CodeTile {
  alignas(64) uint8_t codes[kTileRows][kTileCols];
  // [group][row], elements of the format's scale type (mxfp4: one byte) without gaps.
  alignas(64) std::byte scales[kTileGroups * kTileRows * sizeof(float)];
  alignas(64) std::byte biases[kTileGroups * kTileRows * sizeof(float)];
};

struct GgufType;

// A band of a tensor as the file has it: GGUF's quantised types in their blocks, everything else in canonical form.
// A reader reuses one, its buffers keep their capacity.
struct StoredRows {
  WeightMatrix matrix;               // if `blocks` is null
  const GgufType* blocks = nullptr;  // else `bytes` holds whole blocks, a row every `stride`,
  std::vector<std::byte> bytes;      // whose first `skip` columns were not asked for
  size_t stride = 0, skip = 0;
  size_t rows = 0, cols = 0;
};

// Takes rows [row, row + count) (at most 16) of a quantised band from column `col` on into the tile's first rows; `part`
// is what the tile then holds of the band: its columns part.begin, ... are the band's col, col + 1, ... (at least 32).
// False if a scale among them is not finite. `col` is 0 or where the tile before ended.
bool take_tile(const StoredRows& band, size_t row, size_t count, size_t col, CodeTile& tile, Range& part);

}  // namespace verbund::formats
