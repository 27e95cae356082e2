#include "formats/byte_source.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "formats/tensor_source.h"

namespace verbund::formats {
namespace {

// A hole up to this size is cheaper to read than to skip with another system call (both about 0.4 us).
constexpr size_t kGapReadAlong = 4 << 10;

void check_regular(const std::string& path) {
  std::error_code problem;
  const auto status = std::filesystem::status(path, problem);
  if (status.type() == std::filesystem::file_type::not_found) throw Error(Code::not_found, "no such file", path);
  if (problem) throw Error(Code::unavailable, "cannot look at the file: " + problem.message(), path);
  if (status.type() != std::filesystem::file_type::regular)
    throw Error(Code::invalid_argument,
                status.type() == std::filesystem::file_type::directory ? "is a folder, not a file" : "is not a regular file", path);
}

std::unique_ptr<std::byte[]> scratch(size_t bytes) { return std::make_unique_for_overwrite<std::byte[]>(bytes); }

}  // namespace

FileBytes::FileBytes(const std::string& path) : ByteSource(path) {
  check_regular(path);
  fd_ = open_read(path);
  size_ = file_size(fd_, path);
}

void FileBytes::read(uint64_t offset, std::span<std::byte> into) const { pread_exact(fd_, into, offset, path()); }

void MemoryBytes::read(uint64_t offset, std::span<std::byte> into) const {
  const auto end = checked_add(offset, into.size());
  if (!end || *end > bytes_.size())
    throw Error(Code::data_loss,
                "needs " + std::to_string(into.size()) + " bytes at byte " + std::to_string(offset) + ", but the file has " +
                    std::to_string(bytes_.size()),
                path());
  if (!into.empty()) std::memcpy(into.data(), bytes_.data() + offset, into.size());
}

void for_each_piece(const ByteSource& source, const ByteRect& rect, size_t unit,
                    const std::function<void(size_t, size_t, std::span<const std::byte>)>& use) {
  const size_t length = rect.bytes.size();
  if (rect.rows.empty() || length == 0) return;
  const uint64_t first = rect.offset + rect.bytes.begin;
  const size_t gap = rect.stride - length;
  const size_t band = gap <= kGapReadAlong && length <= kReadScratch ? std::max<size_t>(1, (kReadScratch - length) / rect.stride + 1) : 1;
  if (band > 1) {
    const size_t rows_max = std::min(band, rect.rows.size());
    const auto buffer = scratch((rows_max - 1) * rect.stride + length);
    for (size_t row = rect.rows.begin; row < rect.rows.end; row += rows_max) {
      const size_t count = std::min(rows_max, rect.rows.end - row);
      source.read(first + row * rect.stride, {buffer.get(), (count - 1) * rect.stride + length});
      for (size_t i = 0; i < count; ++i) use(row + i, rect.bytes.begin, {buffer.get() + i * rect.stride, length});
    }
    return;
  }
  const size_t piece_max = std::min(length, std::max(unit, kReadScratch / unit * unit));
  const auto buffer = scratch(piece_max);
  for (size_t row = rect.rows.begin; row < rect.rows.end; ++row)
    for (size_t at = 0; at < length; at += piece_max) {
      const size_t size = std::min(piece_max, length - at);
      source.read(first + row * rect.stride + at, {buffer.get(), size});
      use(row, rect.bytes.begin + at, {buffer.get(), size});
    }
}

void read_rect(const ByteSource& source, const ByteRect& rect, std::byte* into) {
  const size_t length = rect.bytes.size();
  if (rect.rows.empty() || length == 0) return;
  if (length == rect.stride || rect.rows.size() == 1)
    return source.read(rect.offset + rect.rows.begin * rect.stride + rect.bytes.begin, {into, rect.rows.size() * length});
  for_each_piece(source, rect, 1, [&](size_t row, size_t first_byte, std::span<const std::byte> piece) {
    std::memcpy(into + (row - rect.rows.begin) * length + (first_byte - rect.bytes.begin), piece.data(), piece.size());
  });
}

size_t read_strided(const ByteSource& source, const ByteRect& rect, std::vector<std::byte>& into) {
  const size_t length = rect.bytes.size(), gap = rect.stride - length, rows = rect.rows.size();
  const bool whole = gap <= kGapReadAlong && gap * rows <= kReadScratch;
  const size_t stride = whole ? rect.stride : length;
  if (rows == 0 || length == 0) return stride;
  const size_t bytes = (rows - 1) * stride + length;
  if (into.size() < bytes) into.resize(bytes);  // never made smaller: growing again would fill it with zeros first
  if (whole)
    source.read(rect.offset + rect.rows.begin * rect.stride + rect.bytes.begin, {into.data(), bytes});
  else
    read_rect(source, rect, into.data());
  return stride;
}

std::string shown(std::string_view name) {
  constexpr size_t kShown = 96;
  std::string text = "'";
  for (const char c : name.substr(0, kShown)) {
    const auto u = static_cast<unsigned char>(c);
    if (u >= 0x20 && u < 0x7f)
      text += c;
    else
      text += "\\x", text += "0123456789abcdef"[u >> 4], text += "0123456789abcdef"[u & 15];
  }
  return text + (name.size() > kShown ? "...'" : "'");
}

}  // namespace verbund::formats
