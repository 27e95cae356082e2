// Reads the numbers and strings of a GGUF header one after another through a small buffer. One thread.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "formats/byte_source.h"

namespace verbund::formats {

class GgufCursor {
 public:
  explicit GgufCursor(const ByteSource& source) : source_(source), size_(source.size()) {}

  uint64_t position() const { return position_; }
  uint64_t remaining() const { return size_ - position_; }
  // What is being read, for error messages: "tensor 3 of 272", "the value of 'general.name'".
  void enter(std::string what) { doing_ = std::move(what); }

  template <typename T>
  T number() {
    T value;
    take(reinterpret_cast<std::byte*>(&value), sizeof value);
    return value;
  }

  // u64 length and UTF-8. The length is checked against `bytes_max` and the file before anything is allocated.
  std::string text(uint64_t bytes_max) {
    const uint64_t length = number<uint64_t>();
    if (length > remaining())
      fail("a string of " + std::to_string(length) + " bytes is announced, " + std::to_string(remaining()) + " are left");
    if (length > bytes_max)
      fail("a string of " + std::to_string(length) + " bytes is longer than the " + std::to_string(bytes_max) + " allowed here");
    std::string value(length, '\0');
    take(reinterpret_cast<std::byte*>(value.data()), length);
    if (const auto at = find_invalid_utf8(value)) fail("a string is not valid UTF-8 from its byte " + std::to_string(*at));
    return value;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(Code::data_loss, "broken GGUF file: " + what,
                source_.path() + " of " + std::to_string(size_) + " bytes, at byte " + std::to_string(position_) + ", " + doing_,
                "fetch the file again");
  }

 private:
  void take(std::byte* into, size_t bytes) {
    if (bytes > remaining()) fail(std::to_string(bytes) + " more bytes are needed, " + std::to_string(remaining()) + " are left");
    while (bytes > 0) {
      if (used_ == buffer_.size()) refill();
      const size_t n = std::min(bytes, buffer_.size() - used_);
      std::memcpy(into, buffer_.data() + used_, n);
      into += n, bytes -= n, used_ += n, position_ += n;
    }
  }

  void refill() {
    buffer_.resize(std::min<uint64_t>(remaining(), 64 << 10));
    source_.read(position_, buffer_);
    used_ = 0;
  }

  const ByteSource& source_;
  uint64_t size_;
  uint64_t position_ = 0;
  std::string doing_ = "the first bytes";
  std::vector<std::byte> buffer_;
  size_t used_ = 0;
};

}  // namespace verbund::formats
