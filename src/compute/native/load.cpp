// Weights in: bands of rows are read straight from the source and packed into their place, several at once.
#include <algorithm>

#include "compute/native/backend.h"
#include "compute/numerics.h"

namespace verbund::compute::native {
namespace {

// Bytes of a band as the source delivers it, and what a source may need on top of it (its own blocks, a row's codes).
constexpr uint64_t kBandBytes = uint64_t{1} << 20;
constexpr uint64_t kBandScratchBytes = 3 * kBandBytes;
constexpr size_t kColumnStep = 1024;  // a multiple of every group: columns are cut only if 16 whole rows exceed a band

const formats::TensorInfo& checked(const formats::TensorSource& source, const WeightPart& part) {
  const formats::TensorInfo& info = source.require(part.name);
  if (part.rows.begin > part.rows.end || part.rows.end > info.rows() || part.cols.begin > part.cols.end || part.cols.end > info.cols())
    throw Error(Code::invalid_argument,
                "rows or columns outside the tensor's " + std::to_string(info.rows()) + " x " + std::to_string(info.cols()), part.name);
  return info;
}

// Rows of one part that lie in one piece.
struct Run {
  const WeightPart* part;
  size_t first;  // row of the piece that the part's first row becomes
};

struct Plan {
  std::vector<PieceShape> pieces;
  std::vector<std::vector<Run>> runs;  // of each piece
  size_t rows = 0, cols = 0;
  uint64_t bytes = 0;
};

// Neighbouring parts of one format form one piece; a new format begins a new one.
Plan make_plan(const formats::TensorSource& source, std::span<const WeightPart> parts) {
  Plan plan;
  for (const WeightPart& part : parts) {
    const formats::WeightFormat& format = checked(source, part).format;
    if (plan.cols != 0 && plan.cols != part.cols.size())
      throw Error(Code::invalid_argument, "parts of one weight have different widths", part.name);
    plan.cols = part.cols.size();
    if (part.rows.empty()) continue;
    if (plan.pieces.empty() || !(plan.pieces.back().format == format)) {
      plan.pieces.push_back(piece_shape(format, plan.rows, 0, plan.cols));
      plan.runs.emplace_back();
    }
    plan.runs.back().push_back({&part, plan.pieces.back().rows});
    plan.pieces.back().rows += part.rows.size();
    plan.rows += part.rows.size();
  }
  for (const PieceShape& piece : plan.pieces) plan.bytes += piece.bytes();
  return plan;
}

// Rows [row, row + rows) x columns of a piece, gathered from the parts that they come from.
void read_band(const formats::TensorSource& source, const Plan& plan, size_t piece, Range rows, Range cols, formats::WeightMatrix& band,
               formats::WeightMatrix& part_band) {
  const std::vector<Run>& runs = plan.runs[piece];
  band.resize(plan.pieces[piece].format, 0, 0);
  for (const Run& run : runs) {
    const Range here{std::max(rows.begin, run.first), std::min(rows.end, run.first + run.part->rows.size())};
    if (here.begin >= here.end) continue;
    const Range from{run.part->rows.begin + here.begin - run.first, run.part->rows.begin + here.end - run.first};
    const Range columns{run.part->cols.begin + cols.begin, run.part->cols.begin + cols.end};
    if (here == rows) return source.read(run.part->name, from, columns, band);
    source.read(run.part->name, from, columns, part_band);
    band.format = part_band.format;
    band.cols = part_band.cols;
    band.rows += part_band.rows;
    band.codes.insert(band.codes.end(), part_band.codes.begin(), part_band.codes.end());
    band.scales.insert(band.scales.end(), part_band.scales.begin(), part_band.scales.end());
    band.biases.insert(band.biases.end(), part_band.biases.begin(), part_band.biases.end());
  }
}

void check_unit(const Plan& plan, const formats::TensorSource& source, std::span<const WeightPart> parts, size_t unit) {
  for (const PieceShape& piece : plan.pieces)
    if (piece.container != Container::dense && unit % piece.activation_block != 0)
      throw Error(Code::invalid_argument,
                  "a unit of " + std::to_string(unit) + " columns is no multiple of " + std::to_string(piece.activation_block),
                  parts[0].name);
  for (const WeightPart& part : parts) {
    if (part.cols.begin % unit != 0)
      throw Error(Code::invalid_argument, "columns begin inside a unit of " + std::to_string(unit), part.name);
    if (ceil_div(source.require(part.name).cols(), unit) > kUnitsMax)
      throw Error(Code::unimplemented, "more than " + std::to_string(kUnitsMax) + " units in one sum", part.name);
  }
}

}  // namespace

uint64_t NativeBackend::weight_bytes(const formats::TensorSource& source, std::span<const WeightPart> parts) const {
  return make_plan(source, parts).bytes;
}

uint64_t NativeBackend::load_scratch_bytes() const { return threads_.threads() * kBandScratchBytes; }

std::unique_ptr<Weight> NativeBackend::load(const formats::TensorSource& source, std::span<const WeightPart> parts, size_t unit) {
  const Plan plan = make_plan(source, parts);
  if (unit != 0) check_unit(plan, source, parts, unit);
  auto weight = std::make_unique<PackedWeight>();
  weight->rows = plan.rows;
  weight->cols = plan.cols;
  weight->bytes = plan.bytes;
  weight->unit = unit;
  weight->memory = arena_.take(plan.bytes);
  std::byte* at = weight->memory.get();
  for (size_t p = 0; p < plan.pieces.size(); ++p) {
    const PieceShape& shape = plan.pieces[p];
    const size_t row_bytes = std::max<size_t>(1, shape.format.bytes(1, shape.cols));
    const size_t band = std::max<size_t>(kBlockRows, kBandBytes / row_bytes / kBlockRows * kBlockRows);
    const size_t columns = row_bytes * kBlockRows <= kBandBytes ? std::max<size_t>(1, shape.cols) : kColumnStep;
    const size_t even = round_up(ceil_div(shape.rows, threads_.threads()), kBlockRows);
    const size_t rows = std::min(band, even), bands = ceil_div(shape.rows, rows);
    threads_.parallel_for(bands, [&](size_t i) {
      const Range range{i * rows, std::min((i + 1) * rows, shape.rows)};
      formats::WeightMatrix matrix, part_matrix;
      for (size_t col = 0; col < shape.cols; col += columns) {
        const Range cols{col, std::min(col + columns, shape.cols)};
        read_band(source, plan, p, range, cols, matrix, part_matrix);
        pack(shape, at, matrix, range.begin, col);
      }
    });
    Piece piece;
    static_cast<PieceShape&>(piece) = shape;
    piece.data = at;
    weight->pieces.push_back(piece);
    at += shape.bytes();
  }
  return weight;
}

}  // namespace verbund::compute::native
