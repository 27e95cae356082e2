// What both fuzz programs do with a source that opened: read each tensor whole and in part, and compare the two.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "formats/tensor_source.h"

namespace verbund::formats {

// Same bits: NaN in dense data must come out of either way too.
inline bool same(const float* a, const float* b, size_t n) { return n == 0 || std::memcmp(a, b, n * sizeof(float)) == 0; }

inline void read_tensor(const TensorSource& source, const TensorInfo& info) {
  WeightMatrix whole, part;
  source.read(info.name, {0, info.rows()}, {0, info.cols()}, whole);
  const size_t step = info.format.coding == Coding::dense ? 1 : static_cast<size_t>(std::max(32, info.format.group));
  const Range cols{info.cols() / step / 3 * step, info.cols()};
  std::vector<float> a(info.cols()), b(cols.size());
  for (const size_t row : {size_t(0), info.rows() / 2}) {
    if (row >= info.rows() || cols.empty()) continue;
    source.read(info.name, {row, row + 1}, cols, part);
    dequantise_row(whole, row, a.data());
    dequantise_row(part, 0, b.data());
    if (!same(a.data() + cols.begin, b.data(), cols.size())) std::abort();
  }
}

// The way of whole models: untranslated blocks, tile by tile. A scale that is not finite is reported there as it is here.
inline void read_tiles(const TensorSource& source, const TensorInfo& info) {
  StoredRows band;
  source.read_stored(info.name, {0, info.rows()}, {0, info.cols()}, band);
  if (info.format.coding == Coding::dense) return;
  CodeTile tile;
  Range part;
  for (size_t row = 0; row < band.rows; row += kTileRows)
    for (size_t col = 0; col < band.cols; col += part.size())
      if (!take_tile(band, row, std::min(kTileRows, band.rows - row), col, tile, part)) return;
}

inline void read_everything(const TensorSource& source) {
  for (const TensorInfo& info : source.tensors()) {
    if (source.find(info.name) != &info) std::abort();
    try {
      if (info.readable) read_tiles(source, info), read_tensor(source, info);
    } catch (const Error& e) {
      if (e.code() != Code::data_loss) std::abort();  // a non-finite scale is all that may be left to find
    }
  }
}

// A refusal must be one of the file's faults, never one of ours.
inline void check_refusal(const Error& e) {
  if (e.code() != Code::data_loss && e.code() != Code::unimplemented) std::abort();
}

}  // namespace verbund::formats
