// The cases from which parity tests (every instruction set, every backend) and benchmarks of the operations come.
#pragma once

#include <string>
#include <vector>

#include "compute/backend.h"
#include "compute/memory_source.h"

namespace verbund::compute::testing {

struct ProductCase {
  std::string name;
  WeightFormat format;
  size_t rows, out, cols;
  size_t unit;  // of the row-parallel form
};

// Every form, with outputs that fill no block, a single output, and columns that fill no register.
inline std::vector<ProductCase> product_cases() {
  const std::vector<std::pair<std::string, WeightFormat>> forms{{"f32", dense(DType::f32)},
                                                                {"f16", dense(DType::f16)},
                                                                {"bf16", dense(DType::bf16)},
                                                                {"affine4_g32_f16", affine(4, 32)},
                                                                {"affine4_g64_bf16", affine(4, 64, DType::bf16)},
                                                                {"affine4_g128_f32", affine(4, 128, DType::f32)},
                                                                {"affine2_g64", affine(2, 64)},
                                                                {"affine3_g32", affine(3, 32, DType::bf16)},
                                                                {"affine5_g32", affine(5, 32)},
                                                                {"affine6_g64", affine(6, 64)},
                                                                {"affine8_g32", affine(8, 32)},
                                                                {"affine8_g128_bf16", affine(8, 128, DType::bf16)},
                                                                {"affine2_g16_f32", affine(2, 16, DType::f32)},
                                                                {"q4_0", symmetric(4, 32, 8)},
                                                                {"q5_0", symmetric(5, 32, 16)},
                                                                {"q8_0", symmetric(8, 32, 128)},
                                                                {"q3_k", symmetric(3, 16, 4, DType::f32)},
                                                                {"q6_k", symmetric(6, 16, 32, DType::f32)},
                                                                {"mxfp4", mxfp4()}};
  std::vector<ProductCase> cases;
  for (const auto& [name, format] : forms) {
    cases.push_back({name, format, 5, 37, 384, 128});
    cases.push_back({name + "_one_output", format, 2, 1, 128, 128});
    cases.push_back({name + "_wide", format, 1, 64, 1152, 384});
    cases.push_back({name + "_batch", format, 16 * 2 + 9, 70, 384, 128});  // whole tiles, and what is left of one
  }
  for (const auto& [name, format] : std::vector<std::pair<std::string, WeightFormat>>(forms.begin(), forms.begin() + 3)) {
    cases.push_back({name + "_ragged", format, 3, 19, 77, 13});
    cases.push_back({name + "_tiny", format, 9, 2, 3, 2});
  }
  return cases;
}

// Sequences that share a step: tokens already in the cache, and new ones.
struct Sequence {
  size_t cached, fresh;
};

struct AttentionCase {
  std::string name;
  size_t head_dim;
  std::vector<uint32_t> kv_of_head;
  size_t kv_heads;
  KvType type;
  size_t window;
  RopeMode rope;
  size_t pairs;
  bool norms;
  std::vector<Sequence> sequences;
};

inline std::vector<AttentionCase> attention_cases() {
  return {
      {"gqa3", 64, {0, 0, 0, 1, 1, 1, 2, 2, 2}, 3, KvType::f16, 0, RopeMode::half, 32, false, {{0, 70}, {33, 1}, {0, 1}}},
      {"mha_f32", 32, {0, 1}, 2, KvType::f32, 0, RopeMode::interleaved, 16, false, {{64, 5}, {31, 2}}},
      {"uneven_shared", 48, {0, 0, 1}, 2, KvType::f16, 0, RopeMode::half, 24, true, {{0, 33}, {96, 1}}},
      {"window", 64, {0, 0, 0, 0}, 1, KvType::f16, 40, RopeMode::half, 32, true, {{0, 100}, {200, 3}, {39, 1}, {40, 1}}},
      {"window_of_one", 16, {0}, 1, KvType::f32, 1, RopeMode::none, 0, false, {{0, 40}}},
      {"odd_dim_partial_rope", 20, {0, 1, 1}, 2, KvType::f16, 0, RopeMode::half, 5, true, {{0, 35}, {5, 7}}},
      {"gqa3_q8", 64, {0, 0, 0, 1, 1, 1, 2, 2, 2}, 3, KvType::q8, 0, RopeMode::half, 32, false, {{0, 70}, {33, 1}, {0, 1}}},
      {"odd_dim_q8_window", 20, {0, 1, 1}, 2, KvType::q8, 33, RopeMode::half, 5, true, {{0, 100}, {5, 7}}},
      {"gqa5_long", 32, {0, 0, 0, 0, 0}, 1, KvType::f16, 0, RopeMode::half, 16, false, {{0, 150}, {61, 9}}},
      {"mqa8_window", 48, {0, 0, 0, 0, 0, 0, 0, 0}, 1, KvType::f16, 50, RopeMode::half, 24, false, {{0, 130}, {70, 2}}},
      {"big_dim", 256, {0, 0}, 1, KvType::f16, 0, RopeMode::half, 128, true, {{0, 40}}},
  };
}

}  // namespace verbund::compute::testing
