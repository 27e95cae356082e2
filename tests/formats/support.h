// What the tests of this folder share: bytes written by hand, files in memory, a temporary folder, and a probe of the
// largest single allocation.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "formats/byte_source.h"
#include "formats/tensor_source.h"

namespace verbund::formats {

struct Bytes {
  std::vector<std::byte> data;

  template <typename T>
  Bytes& number(T value) {
    const auto* p = reinterpret_cast<const std::byte*>(&value);
    data.insert(data.end(), p, p + sizeof value);
    return *this;
  }
  Bytes& u8(uint8_t v) { return number(v); }
  Bytes& u16(uint16_t v) { return number(v); }
  Bytes& u32(uint32_t v) { return number(v); }
  Bytes& u64(uint64_t v) { return number(v); }
  Bytes& f32(float v) { return number(v); }
  Bytes& raw(std::string_view text) {
    for (const char c : text) data.push_back(static_cast<std::byte>(c));
    return *this;
  }
  Bytes& text(std::string_view t) { return u64(t.size()).raw(t); }  // a GGUF string
  Bytes& fill(size_t count, uint8_t value) {
    data.insert(data.end(), count, std::byte{value});
    return *this;
  }
  Bytes& align(size_t to) { return fill((to - data.size() % to) % to, 0); }
};

inline std::unique_ptr<ByteSource> in_memory(const Bytes& bytes, std::string name = "test file") {
  return std::make_unique<MemoryBytes>(bytes.data, std::move(name));
}

inline std::vector<std::unique_ptr<ByteSource>> files(std::unique_ptr<ByteSource> one) {
  std::vector<std::unique_ptr<ByteSource>> list;
  list.push_back(std::move(one));
  return list;
}

// A safetensors file with `header` as it stands.
inline Bytes safetensors_file(std::string_view header, size_t data_bytes = 0) {
  Bytes b;
  b.u64(header.size()).raw(header).fill(data_bytes, 0);
  return b;
}

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "verbund-formats-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_; }
  std::string write(const std::string& name, const Bytes& bytes) const {
    const std::string file = path_ + "/" + name;
    std::ofstream(file, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data.data()), static_cast<std::streamsize>(bytes.data.size()));
    return file;
  }
  std::string write(const std::string& name, std::string_view text) const { return write(name, Bytes().raw(text)); }

 private:
  std::string path_;
};

// Largest single operator new of this thread since reset (support.cpp replaces the operator).
void reset_allocation_probe();
size_t largest_allocation();

// Runs `parse`, which must throw an Error of `code` whose line contains every one of `words`, quickly and without a large allocation.
template <typename F>
void expect_refused(Code code, std::initializer_list<const char*> words, F&& parse, size_t allocation_max = 256 << 10) {
  reset_allocation_probe();
  const auto begin = std::chrono::steady_clock::now();
  try {
    parse();
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(to_string(e.code()), to_string(code)) << e.what();
    for (const char* word : words) EXPECT_THAT(e.what(), testing::HasSubstr(word));
  }
  EXPECT_LE(largest_allocation(), allocation_max);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(500));  // milliseconds, with room for sanitizers
}

inline std::vector<float> dequantise(const WeightMatrix& m) {
  std::vector<float> values(m.rows * m.cols);
  for (size_t row = 0; row < m.rows; ++row) dequantise_row(m, row, values.data() + row * m.cols);
  return values;
}

inline std::vector<float> read_values(const TensorSource& source, std::string_view name, Range rows, Range cols) {
  WeightMatrix m;
  source.read(name, rows, cols, m);
  EXPECT_EQ(m.rows, rows.size());
  EXPECT_EQ(m.cols, cols.size());
  EXPECT_EQ(m.format, source.require(name).format);
  EXPECT_EQ(m.codes.size() + m.scales.size() + m.biases.size(), m.format.bytes(m.rows, m.cols));
  return dequantise(m);
}

inline std::vector<float> read_all(const TensorSource& source, std::string_view name) {
  const TensorInfo& info = source.require(name);
  return read_values(source, name, {0, info.rows()}, {0, info.cols()});
}

// Random rectangles of `name` equal the same rectangles of `whole`.
void expect_slices(const TensorSource& source, std::string_view name, const std::vector<float>& whole, int tries);

}  // namespace verbund::formats
