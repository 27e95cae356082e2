// Named tensors of a model on disk, read piece by piece.
//
// A TensorSource knows names, shapes and formats after open() (headers only, no tensor data) and reads exactly the rows
// and columns asked for with pread: a rank never reads the whole checkpoint. Sources validate everything at open: sizes,
// offsets, overlaps, names; a hostile file is one Error in milliseconds, before any large allocation.
// const methods may be called from several threads at once.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "formats/code_tile.h"
#include "formats/weight.h"

namespace verbund::formats {

struct TensorInfo {
  // As the file has it, e.g. "model.layers.0.mlp.down_proj.weight" or "blk.0.ffn_down.weight".
  // An MLX module (weight u32 + scales + biases) is one tensor, named by its ".weight".
  std::string name;
  std::vector<size_t> shape;  // [rows, cols] or [n]; slowest first (GGUF dimensions are reversed into this order)
  WeightFormat format;        // the form read() delivers
  std::string stored;         // what the file calls it: "Q4_1", "BF16", "affine4 g64"
  uint64_t stored_bytes = 0;  // in the file
  bool exact = true;          // false: requantised on the way in (then `note` states what and the worst error)
  std::string note;
  bool readable = true;  // false: listed only; read() throws unimplemented naming `stored` (safetensors: integers, fp8, ...)

  // More than two dimensions (stacked experts [E, out, in]) are read as one matrix of E * out rows.
  size_t rows() const {
    size_t n = 1;
    for (size_t i = 0; i + 1 < shape.size(); ++i) n *= shape[i];
    return n;
  }
  size_t cols() const { return shape.empty() ? 1 : shape.back(); }
};

constexpr size_t kReadScratch = size_t(1) << 20;

class TensorSource {
 public:
  virtual ~TensorSource() = default;

  virtual std::span<const TensorInfo> tensors() const = 0;          // in file order
  virtual const TensorInfo* find(std::string_view name) const = 0;  // nullptr if absent

  // Reads rows x cols of matrix `name`. For quantised forms cols.begin and cols.end are multiples of `group` and of 32
  // (or the row's end). `into` is resized, keeping its capacity. Scratch beyond it is at most kReadScratch.
  // Throws not_found (tensor and file named), invalid_argument (range), data_loss (short file, non-finite scale).
  virtual void read(std::string_view name, Range rows, Range cols, WeightMatrix& into) const = 0;

  // The same piece as the file has it, if take_tile() can translate that (code_tile.h), else as read() gives it: the way of
  // whole models. Scales in untranslated blocks are checked when they are taken.
  virtual void read_stored(std::string_view name, Range rows, Range cols, StoredRows& into) const;

  // A whole vector (norm weights, biases) as f32; exact.
  std::vector<float> read_vector(std::string_view name) const;

  const TensorInfo& require(std::string_view name) const;  // throws not_found
  virtual std::string path() const = 0;
};

}  // namespace verbund::formats
