// Operations of a step of many rows, chunk by chunk (row_chunks.h): the attention block's norm and product, and the MLP from
// its norm to its partial sums. Bit for bit what the single operations give.
#include <algorithm>

#include "compute/native/backend.h"
#include "compute/native/row_chunks.h"

namespace verbund::compute::native {
namespace {

// Outputs of gate and up that are multiplied, activated and dropped at once.
constexpr size_t kPairOutputs = 4 * kBlockRows;

// Gate and up can be taken in slices if all their borders are borders of blocks.
bool sliceable(const PackedWeight& gate_up) {
  if (gate_up.rows % (2 * kBlockRows) != 0) return false;
  return std::all_of(gate_up.pieces.begin(), gate_up.pieces.end(), [](const Piece& p) { return p.first_row % kBlockRows == 0; });
}

void normalise(const Kernels& kernels, const FloatTensor& x, Range rows, const float* weight, float eps, float* to) {
  for (size_t r = rows.begin; r < rows.end; ++r) kernels.rms_norm_row(x.row(r), weight, eps, x.cols, to + (r - rows.begin) * x.stride());
}

// act(gate) * up of a chunk, in slices that stay in L1.
void gate_chunk(const Kernels& kernels, ChunkInput& x, size_t rows, const PackedWeight& gate_up, const float* bias, Activation activation,
                float* to) {
  const size_t n = gate_up.rows / 2;
  float* pair = ChunkScratch::mine().floats(ChunkScratch::gate_up, rows * 2 * kPairOutputs);
  for (size_t i = 0; i < n; i += kPairOutputs) {
    const size_t width = std::min(kPairOutputs, n - i);
    ProductOut out;
    out.stride = 2 * width;
    out.bias = bias;
    out.values = pair;
    out.origin = i;
    x.multiply(gate_up, {i, i + width}, out);
    out.values = pair + width;
    out.origin = n + i;
    x.multiply(gate_up, {n + i, n + i + width}, out);
    for (size_t r = 0; r < rows; ++r) kernels.gated_row(pair + r * 2 * width, width, activation, to + r * stride_of(n) + i);
  }
}

}  // namespace

size_t NativeBackend::rows_of_chunk(size_t rows) const {
  const size_t even = round_up(ceil_div(rows, threads_.threads()), kRowBlock);
  return std::min(kChunkRows, even);
}

Tensor NativeBackend::norm_linear(const Tensor& x, const Vector& norm, float eps, const Weight& w, const Vector* bias) {
  if (!by_rows(x.rows())) return linear(rms_norm(x, norm, eps), w, bias);
  const PackedWeight& weight = packed(w);
  const FloatTensor& in = floats(x, "norm_linear");
  check_product(in, weight, bias);
  const float* scale = padded_data(norm, in.cols, "norm_linear");
  auto y = make_floats(in.rows, w.rows);
  ProductOut out = values_of(*y, bias);
  for_row_chunks(in.rows, [&](Range rows) {
    float* normed = ChunkScratch::mine().floats(ChunkScratch::normed, rows.size() * in.stride() + 16);
    normalise(kernels_, in, rows, scale, eps, normed);
    ChunkInput(kernels_, 0, normed, in.stride(), rows.size(), in.cols).multiply(weight, out.from_row(rows.begin));
  });
  return Tensor(y);
}

Partial NativeBackend::norm_mlp(const Tensor& x, const Vector& norm, float eps, const Weight& gate_up, const Vector* bias,
                                Activation activation, const Weight& down) {
  const PackedWeight &pair = packed(gate_up), &second = packed(down);
  if (!by_rows(x.rows()) || !sliceable(pair)) return Backend::norm_mlp(x, norm, eps, gate_up, bias, activation, down);
  const FloatTensor& in = floats(x, "norm_mlp");
  check_product(in, pair, bias);
  const size_t n = pair.rows / 2;
  if (second.cols != n || second.unit == 0) throw shape_error("norm_mlp: the second product does not take the width of the first");
  const float* scale = padded_data(norm, in.cols, "norm_mlp");
  auto sums = std::make_shared<FixedTensor>(*pool_, in.rows, second.rows);
  const ProductOut out = sums_of(*sums, second.unit);
  for_row_chunks(in.rows, [&](Range rows) {
    ChunkScratch& scratch = ChunkScratch::mine();
    float* normed = scratch.floats(ChunkScratch::normed, rows.size() * in.stride() + 16);
    normalise(kernels_, in, rows, scale, eps, normed);
    float* gated = scratch.floats(ChunkScratch::gated, rows.size() * stride_of(n) + 16);
    ChunkInput first(kernels_, 0, normed, in.stride(), rows.size(), in.cols);
    gate_chunk(kernels_, first, rows.size(), pair, bias ? static_cast<const NativeVector*>(bias)->data() : nullptr, activation, gated);
    ChunkInput(kernels_, 1, gated, stride_of(n), rows.size(), n).multiply(second, out.from_row(rows.begin));
  });
  return {Tensor(sums)};
}

}  // namespace verbund::compute::native
