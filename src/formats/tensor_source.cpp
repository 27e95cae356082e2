#include "formats/tensor_source.h"

#include "base/error.h"

namespace verbund::formats {

const TensorInfo& TensorSource::require(std::string_view name) const {
  if (const TensorInfo* info = find(name)) return *info;
  throw Error(Code::not_found, "tensor '" + std::string(name) + "' is not in the file", path(),
              "the file may be incomplete or of another architecture; `verbund inspect` lists its tensors");
}

void TensorSource::read_stored(std::string_view name, Range rows, Range cols, StoredRows& into) const {
  read(name, rows, cols, into.matrix);
  into.blocks = nullptr;
  into.rows = rows.size();
  into.cols = cols.size();
}

std::vector<float> TensorSource::read_vector(std::string_view name) const {
  const TensorInfo& info = require(name);
  if (info.rows() != 1)
    throw Error(Code::invalid_argument, "tensor '" + info.name + "' is a matrix of " + std::to_string(info.rows()) + " rows, not a vector",
                path());
  WeightMatrix row;
  read(name, {0, 1}, {0, info.cols()}, row);
  std::vector<float> values(info.cols());
  dequantise_row(row, 0, values.data());
  return values;
}

}  // namespace verbund::formats
