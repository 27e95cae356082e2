#include "compute/native/load_plan.h"

#include "base/error.h"
#include "compute/numerics.h"

namespace verbund::compute::native {
namespace {

const formats::TensorInfo& checked(const formats::TensorSource& source, const WeightPart& part) {
  const formats::TensorInfo& info = source.require(part.name);
  if (part.rows.begin > part.rows.end || part.rows.end > info.rows() || part.cols.begin > part.cols.end || part.cols.end > info.cols())
    throw Error(Code::invalid_argument,
                "rows or columns outside the tensor's " + std::to_string(info.rows()) + " x " + std::to_string(info.cols()), part.name);
  return info;
}

}  // namespace

LoadPlan make_load_plan(const formats::TensorSource& source, std::span<const WeightPart> parts, bool fast_dense) {
  LoadPlan plan;
  for (const WeightPart& part : parts) {
    const formats::WeightFormat& format = checked(source, part).format;
    if (plan.cols != 0 && plan.cols != part.cols.size())
      throw Error(Code::invalid_argument, "parts of one weight have different widths", part.name);
    plan.cols = part.cols.size();
    if (part.rows.empty()) continue;
    if (plan.pieces.empty() || !(plan.pieces.back().format == format)) {
      plan.pieces.push_back(piece_shape(format, plan.rows, 0, plan.cols, fast_dense));
      plan.runs.emplace_back();
    }
    plan.runs.back().push_back({&part, plan.pieces.back().rows});
    plan.pieces.back().rows += part.rows.size();
    plan.rows += part.rows.size();
  }
  for (const PieceShape& piece : plan.pieces) plan.bytes += piece.bytes();
  return plan;
}

void check_unit(const LoadPlan& plan, const formats::TensorSource& source, std::span<const WeightPart> parts, size_t unit) {
  for (const PieceShape& piece : plan.pieces) {
    if (piece.quantised() && unit % piece.activation_block != 0)
      throw Error(Code::invalid_argument,
                  "a unit of " + std::to_string(unit) + " columns is no multiple of " + std::to_string(piece.activation_block),
                  parts[0].name);
    if (piece.container == Container::pairs && unit % kPairBlock != 0)
      throw Error(Code::unimplemented,
                  "--fast-dense needs units of a multiple of " + std::to_string(kPairBlock) +
                      " columns, and this weight is cut into units of " + std::to_string(unit),
                  parts[0].name, "leave --fast-dense out for this model");
  }
  for (const WeightPart& part : parts) {
    if (part.cols.begin % unit != 0)
      throw Error(Code::invalid_argument, "columns begin inside a unit of " + std::to_string(unit), part.name);
    if (ceil_div(source.require(part.name).cols(), unit) > kUnitsMax)
      throw Error(Code::unimplemented, "more than " + std::to_string(kUnitsMax) + " units in one sum", part.name);
  }
}

}  // namespace verbund::compute::native
