// Stored matrices in memory, for the tests and benchmarks of compute: random values in any form, seeded.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "formats/tensor_source.h"

namespace verbund::compute::testing {

using formats::Coding;
using formats::DType;
using formats::WeightFormat;
using formats::WeightMatrix;

inline WeightFormat dense(DType type) { return {Coding::dense, type, 0, 0, {}}; }
inline WeightFormat affine(int bits, int group, DType scales = DType::f16) { return {Coding::affine, scales, bits, group, {}}; }
inline WeightFormat symmetric(int bits, int group, int zero, DType scales = DType::f16) {
  return {Coding::affine, scales, bits, group, zero};
}
inline WeightFormat mxfp4() { return {Coding::mxfp4, DType::f32, 4, 32, {}}; }

inline void put(std::byte* at, DType type, float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, 4);
  const uint16_t half = type == DType::f16 ? formats::f32_to_f16(v) : static_cast<uint16_t>(bits >> 16);
  if (type == DType::f32)
    std::memcpy(at, &v, 4);
  else
    std::memcpy(at, &half, 2);
}

// About normal with variance 1, and the same with every library on every machine, which std::normal_distribution does not
// promise: the four 16-bit parts of one random number, added.
inline float about_normal(std::mt19937_64& random) {
  const uint64_t bits = random();
  const auto sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
  return (static_cast<float>(sum) - 131070.0f) * (1.0f / 37837.0f);
}

// Values of about unit variance over sqrt(cols), like a trained matrix.
inline WeightMatrix random_matrix(const WeightFormat& format, size_t rows, size_t cols, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto normal = [deviation = 1.0f / std::sqrt(static_cast<float>(cols))](std::mt19937_64& r) { return about_normal(r) * deviation; };
  WeightMatrix m;
  m.resize(format, rows, cols);
  const size_t element = formats::size_of(format.dtype);
  if (format.coding == Coding::dense) {
    for (size_t i = 0; i < rows * cols; ++i) put(m.codes.data() + i * element, format.dtype, normal(random));
    return m;
  }
  for (std::byte& b : m.codes) b = static_cast<std::byte>(random());
  if (format.coding == Coding::mxfp4) {
    for (std::byte& b : m.scales) b = static_cast<std::byte>(118 + random() % 6);
    return m;
  }
  const float levels = std::ldexp(1.0f, format.bits - 1);
  for (size_t i = 0; i < m.scales.size() / element; ++i) {
    const float scale = (std::fabs(normal(random)) + 1e-3f) / levels;
    put(m.scales.data() + i * element, format.dtype, random() % 5 == 0 ? -scale : scale);
    if (!m.biases.empty()) put(m.biases.data() + i * element, format.dtype, -scale * levels + 0.1f * normal(random));
  }
  return m;
}

// Code `j` of a row, read bit by bit: the slow and certain way.
inline unsigned stored_code(const WeightMatrix& m, size_t row, size_t j) {
  const std::byte* codes = m.codes.data() + row * m.format.code_row_bytes(m.cols);
  unsigned code = 0;
  for (int b = 0; b < m.format.bits; ++b) {
    const size_t bit = j * static_cast<size_t>(m.format.bits) + static_cast<size_t>(b);
    code |= ((static_cast<unsigned>(codes[bit / 8]) >> (bit % 8)) & 1u) << b;
  }
  return code;
}

class MemorySource : public formats::TensorSource {
 public:
  void add(const std::string& name, WeightMatrix m) {
    infos_.push_back({name, {m.rows, m.cols}, m.format, "memory", m.codes.size() + m.scales.size() + m.biases.size(), true, ""});
    matrices_[name] = std::move(m);
  }
  const WeightMatrix& matrix(const std::string& name) const { return matrices_.at(name); }

  std::span<const formats::TensorInfo> tensors() const override { return infos_; }
  const formats::TensorInfo* find(std::string_view name) const override {
    for (const formats::TensorInfo& info : infos_)
      if (info.name == name) return &info;
    return nullptr;
  }
  std::string path() const override { return "memory"; }

  void read(std::string_view name, Range rows, Range cols, WeightMatrix& into) const override {
    const WeightMatrix& m = matrices_.at(std::string(name));
    into.resize(m.format, rows.size(), cols.size());
    const bool dense = m.format.coding == Coding::dense;
    const size_t begin = dense ? cols.begin * formats::size_of(m.format.dtype) : cols.begin * static_cast<size_t>(m.format.bits) / 8;
    copy(m.codes, m.format.code_row_bytes(m.cols), begin, rows, into.codes);
    if (dense) return;
    const size_t group = static_cast<size_t>(m.format.group),
                 element = m.format.coding == Coding::mxfp4 ? 1 : formats::size_of(m.format.dtype);
    copy(m.scales, m.cols / group * element, cols.begin / group * element, rows, into.scales);
    copy(m.biases, m.cols / group * element, cols.begin / group * element, rows, into.biases);
  }

 private:
  static void copy(const std::vector<std::byte>& from, size_t stride, size_t begin, Range rows, std::vector<std::byte>& into) {
    if (into.empty()) return;
    const size_t bytes = into.size() / rows.size();
    for (size_t r = 0; r < rows.size(); ++r) std::copy_n(from.data() + (rows.begin + r) * stride + begin, bytes, into.data() + r * bytes);
  }

  std::vector<formats::TensorInfo> infos_;
  std::map<std::string, WeightMatrix> matrices_;
};

inline std::vector<float> random_values(size_t n, uint64_t seed, float scale = 1.0f) {
  std::mt19937_64 random(seed);
  std::vector<float> values(n);
  for (float& v : values) v = about_normal(random) * scale;
  return values;
}

}  // namespace verbund::compute::testing
