// The one check of a rectangle that a caller asks for against the tensor it is cut from. Pure function; any thread.
#pragma once

#include <algorithm>
#include <string>

#include "base/error.h"
#include "formats/tensor_source.h"

namespace verbund::formats {

inline void check_rect(const TensorInfo& info, Range rows, Range cols, const std::string& path) {
  const auto text = [](Range r) { return "[" + std::to_string(r.begin) + ", " + std::to_string(r.end) + ")"; };
  const auto refuse = [&](const std::string& why) {
    throw Error(Code::invalid_argument,
                "rows " + text(rows) + ", columns " + text(cols) + " of tensor '" + info.name + "' of " + std::to_string(info.rows()) +
                    " x " + std::to_string(info.cols()) + ": " + why,
                path);
  };
  if (rows.begin > rows.end || rows.end > info.rows() || cols.begin > cols.end || cols.end > info.cols()) refuse("outside the tensor");
  if (info.format.coding == Coding::dense) return;
  const size_t step = std::max<size_t>(32, static_cast<size_t>(info.format.group));
  if (cols.begin % step != 0 || (cols.end % step != 0 && cols.end != info.cols()))
    refuse("columns of " + info.format.name() + " are cut at multiples of " + std::to_string(step));
}

}  // namespace verbund::formats
