// A TensorSource over matrices in memory: the backend's loading path with weights that a test makes up.
#pragma once

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "formats/tensor_source.h"

namespace verbund::test {

class MemorySource final : public formats::TensorSource {
 public:
  void add(const std::string& name, formats::WeightMatrix m) {
    formats::TensorInfo info;
    info.name = name;
    info.shape = {m.rows, m.cols};
    info.format = m.format;
    infos_.push_back(info);
    matrices_.push_back(std::move(m));
  }
  const formats::WeightMatrix& matrix(const std::string& name) const { return matrices_[index(name)]; }

  std::span<const formats::TensorInfo> tensors() const override { return infos_; }
  const formats::TensorInfo* find(std::string_view name) const override {
    for (const auto& info : infos_)
      if (info.name == name) return &info;
    return nullptr;
  }
  // Columns begin and end on multiples of 32, so on whole bytes in every coding.
  void read(std::string_view name, Range rows, Range cols, formats::WeightMatrix& into) const override {
    const auto& m = matrices_[index(name)];
    into.resize(m.format, rows.size(), cols.size());
    copy(m.codes, m.rows, m.cols, rows, cols, into.codes);
    copy(m.scales, m.rows, m.cols, rows, cols, into.scales);
    copy(m.biases, m.rows, m.cols, rows, cols, into.biases);
  }
  std::string path() const override { return "memory"; }

 private:
  size_t index(std::string_view name) const { return static_cast<size_t>(find(name) - infos_.data()); }
  static void copy(const std::vector<std::byte>& from, size_t all_rows, size_t all_cols, Range rows, Range cols, std::vector<std::byte>& to) {
    if (from.empty()) return;
    const size_t stride = from.size() / all_rows, begin = stride * cols.begin / all_cols, size = stride * cols.size() / all_cols;
    for (size_t r = 0; r < rows.size(); ++r) std::memcpy(to.data() + r * size, from.data() + (rows.begin + r) * stride + begin, size);
  }

  std::vector<formats::TensorInfo> infos_;
  std::vector<formats::WeightMatrix> matrices_;
};

inline void put(std::vector<std::byte>& to, size_t i, formats::DType type, float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, 4);
  const uint16_t half = type == formats::DType::f16 ? formats::f32_to_f16(v) : static_cast<uint16_t>(bits >> 16);
  if (type == formats::DType::f32) std::memcpy(to.data() + i * 4, &v, 4);
  else std::memcpy(to.data() + i * 2, &half, 2);
}

// Random codes and scales such that the weights are of the order of 0.1.
inline formats::WeightMatrix random_matrix(const formats::WeightFormat& format, size_t rows, size_t cols, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, 0.1f);
  std::uniform_int_distribution<int> byte(0, 255), exponent(121, 125);
  formats::WeightMatrix m;
  m.resize(format, rows, cols);
  if (format.coding == formats::Coding::dense) {
    for (size_t i = 0; i < rows * cols; ++i) put(m.codes, i, format.dtype, normal(rng));
    return m;
  }
  for (auto& c : m.codes) c = static_cast<std::byte>(byte(rng));
  if (format.coding == formats::Coding::mxfp4) {
    for (auto& s : m.scales) s = static_cast<std::byte>(exponent(rng));
    return m;
  }
  const float step = 0.3f / static_cast<float>(1 << format.bits);
  for (size_t i = 0; i < rows * format.group_count(cols); ++i) {
    const float scale = step * (1.0f + std::abs(normal(rng)));
    put(m.scales, i, format.dtype, scale);
    if (!format.zero) put(m.biases, i, format.dtype, -scale * static_cast<float>(1 << format.bits) * (0.5f + normal(rng)));
  }
  return m;
}

inline std::vector<float> random_values(size_t n, unsigned seed, float scale = 1.0f) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(n);
  for (auto& v : values) v = normal(rng);
  return values;
}

}  // namespace verbund::test
