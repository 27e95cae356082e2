// GGUF files in memory with random weights, for the tests of reading and of loading.
#pragma once

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "formats/gguf_blocks.h"
#include "formats/gguf_source.h"

namespace verbund::test {

// Ids of the block types that are read, in their files' numbering.
inline std::vector<uint32_t> gguf_types() {
  std::vector<uint32_t> ids;
  for (uint32_t id = 0; id < 64; ++id)
    if (formats::find_gguf_type(id)) ids.push_back(id);
  return ids;
}

// Any bits, but blocks with a scale that is not finite are drawn again.
inline std::vector<std::byte> random_blocks(const formats::GgufType& type, size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count * type.block_bytes);
  formats::CodeTile tile;
  for (size_t i = 0; i < bytes.size(); i += type.block_bytes) do {
      for (size_t j = 0; j < type.block_bytes; ++j) bytes[i + j] = static_cast<std::byte>(random());
    } while (type.decode && !type.decode(&bytes[i], 0, 1, tile));
  return bytes;
}

// One matrix "w".
inline std::unique_ptr<formats::GgufSource> gguf_of(const formats::GgufType& type, size_t rows, size_t cols,
                                                    const std::vector<std::byte>& blocks) {
  std::vector<std::byte> file;
  const auto put = [&](const auto value) {
    const auto* at = reinterpret_cast<const std::byte*>(&value);
    file.insert(file.end(), at, at + sizeof value);
  };
  for (const char c : std::string_view("GGUF")) put(c);
  put(uint32_t{3}), put(uint64_t{1}), put(uint64_t{0});                                    // version, tensors, keys
  put(uint64_t{1}), put('w'), put(uint32_t{2}), put(uint64_t{cols}), put(uint64_t{rows});  // name, dimensions
  put(type.id), put(uint64_t{0});                                                          // type, offset
  file.resize((file.size() + 31) / 32 * 32);
  file.insert(file.end(), blocks.begin(), blocks.end());
  std::vector<std::unique_ptr<formats::ByteSource>> files;
  files.push_back(std::make_unique<formats::MemoryBytes>(std::move(file), "random"));
  return std::make_unique<formats::GgufSource>(std::move(files));
}

inline std::unique_ptr<formats::GgufSource> random_gguf(const formats::GgufType& type, size_t rows, size_t cols, uint64_t seed) {
  return gguf_of(type, rows, cols, random_blocks(type, rows * (cols / type.block), seed));
}

}  // namespace verbund::test
