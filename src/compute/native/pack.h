// Rows of a file into the layout of packed.h, sixteen at a time. Pure functions; any thread, each on its own blocks.
#pragma once

#include "compute/native/packed.h"
#include "formats/code_tile.h"

namespace verbund::compute::native {

// Packs the band as rows [row, row + band.rows) x columns [col, col + band.cols) of the piece at `data`; row is a multiple
// of 16, col of 32 and of the group. Rows past the band's of its last block become zeros. `tile` is scratch.
// False if a scale is not finite.
bool pack(const PieceShape& shape, std::byte* data, const formats::StoredRows& band, size_t row, size_t col, formats::CodeTile& tile);

}  // namespace verbund::compute::native
