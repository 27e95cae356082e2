// The bytes of one file, wherever they are: parsers and readers work on this, tests and fuzzers pass memory.
// Also the one loop that reads a rectangle of a row-major array in bounded pieces.
// A source owns its bytes or descriptor; const methods may be called from several threads.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/unix.h"

namespace verbund::formats {

class ByteSource {
 public:
  explicit ByteSource(std::string path) : path_(std::move(path)) {}
  virtual ~ByteSource() = default;
  const std::string& path() const { return path_; }
  virtual uint64_t size() const = 0;
  // Fills `into`; throws data_loss with the needed and the real size when the file is too short.
  virtual void read(uint64_t offset, std::span<std::byte> into) const = 0;

 private:
  std::string path_;
};

// A regular file, read with pread. Anything else (folder, device, pipe) is refused before it is opened: opening a pipe
// would block.
class FileBytes final : public ByteSource {
 public:
  explicit FileBytes(const std::string& path);
  uint64_t size() const override { return size_; }
  void read(uint64_t offset, std::span<std::byte> into) const override;

 private:
  Fd fd_;
  uint64_t size_ = 0;
};

class MemoryBytes final : public ByteSource {
 public:
  MemoryBytes(std::vector<std::byte> bytes, std::string name) : ByteSource(std::move(name)), bytes_(std::move(bytes)) {}
  uint64_t size() const override { return bytes_.size(); }
  void read(uint64_t offset, std::span<std::byte> into) const override;

 private:
  std::vector<std::byte> bytes_;
};

// Bytes [bytes.begin, bytes.end) of rows [rows.begin, rows.end) of an array at `offset` whose rows are `stride` long.
struct ByteRect {
  uint64_t offset;
  uint64_t stride;
  Range rows;
  Range bytes;
};

// Calls use(row, first byte in the row, piece) in ascending order. A piece holds whole units of `unit` bytes (a block;
// divides the range) and scratch stays below kReadScratch. Small gaps between the rows are read along, large ones are not.
void for_each_piece(const ByteSource& source, const ByteRect& rect, size_t unit,
                    const std::function<void(size_t row, size_t first_byte, std::span<const std::byte> piece)>& use);

// The rectangle's rows packed one after another into `into` (rows.size() * bytes.size() bytes).
void read_rect(const ByteSource& source, const ByteRect& rect, std::byte* into);

// The rectangle's rows with what lies between them, if that is little; returns the bytes from a row to the next in `into`.
// `into` grows to what is needed, at most kReadScratch more than the rows alone, and may be longer.
size_t read_strided(const ByteSource& source, const ByteRect& rect, std::vector<std::byte>& into);

// A name from a file for an error message: quoted, control bytes escaped, cut when very long.
std::string shown(std::string_view name);

}  // namespace verbund::formats
