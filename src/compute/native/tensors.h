// Activations, vectors and KV cache of the native backend. Owned by handles; memory of tensors comes from the step pool.
#pragma once

#include <map>
#include <memory>
#include <tuple>

#include "base/error.h"
#include "compute/backend.h"
#include "compute/native/kernels.h"
#include "compute/native/memory.h"

namespace verbund::compute::native {

// Floats from a row to the next: rows begin on 64 bytes and are padded with zeros, so no kernel has a ragged end.
constexpr size_t stride_of(size_t cols) { return round_up(cols, 16); }
// Kernels may read 16 lanes from any column of the last row.
constexpr size_t kSlackBytes = 64;

// The quantised form of an activation, shared by every product that wants the same blocks.
struct QuantisedTensor {
  BufferPool::Buffer memory;
  QuantisedRows rows;
};

struct RoundedTensor {
  BufferPool::Buffer memory;
  PairRows rows = {};
};

struct FloatTensor : Tensor::Storage {
  FloatTensor(BufferPool& pool, size_t row_count, size_t col_count) : memory(pool.take(bytes(row_count, col_count))) {
    rows = row_count;
    cols = col_count;
  }
  static size_t bytes(size_t rows, size_t cols) { return rows * stride_of(cols) * sizeof(float) + kSlackBytes; }
  size_t stride() const { return stride_of(cols); }
  float* row(size_t r) const { return memory.as<float>() + r * stride(); }

  BufferPool::Buffer memory;
  std::map<std::tuple<size_t, size_t, int>, QuantisedTensor> quantised;  // by activation block, group, zero
  RoundedTensor pairs;
};

// rows * cols sums and then one count of poisoned values a row: the wire form, in one piece.
struct FixedTensor : Tensor::Storage {
  FixedTensor(BufferPool& pool, size_t row_count, size_t col_count);
  static size_t bytes(size_t rows, size_t cols) { return rows * (cols + 1) * sizeof(int64_t); }
  int64_t* sums() const { return memory.as<int64_t>(); }
  int64_t* poisoned() const { return sums() + rows * cols; }

  BufferPool::Buffer memory;
};

struct NativeVector : Vector {
  AlignedBytes memory;  // padded to 16 with zeros
  const float* data() const { return reinterpret_cast<const float*>(memory.data()); }
};

// [layer][block][kv head][keys, values]
struct NativeKvCache : KvCache {
  AlignedBytes memory;
  size_t head_bytes() const { return layout.head_bytes(); }
  size_t block_bytes() const { return head_bytes() * layout.kv_heads; }
  KvView view(size_t layer, size_t kv_head) const {
    return {memory.data() + layer * layout.blocks * block_bytes() + kv_head * head_bytes(),
            block_bytes(),
            layout.codes_bytes() / 2,
            layout.codes_bytes(),
            layout.head_dim,
            layout.type};
  }
};

inline Error shape_error(std::string what) { return Error(Code::invalid_argument, std::move(what), "native backend"); }

inline FloatTensor& floats(const Tensor& t, const char* operation) {
  auto* storage = dynamic_cast<FloatTensor*>(t.storage());
  if (!storage) throw shape_error(std::string(operation) + ": the tensor is empty or not f32 of this backend");
  return *storage;
}

}  // namespace verbund::compute::native
