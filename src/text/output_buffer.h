// The text that a parser has not decided about. Tokens that are marks lie in it between two bytes that no UTF-8 text has, so that
// the same characters from ordinary tokens are never taken for them. For parsers; one thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace verbund::text {

class OutputBuffer {
 public:
  static constexpr char kTokenBegin = '\xff', kTokenEnd = '\xfe';
  static std::string token(std::string_view text) { return kTokenBegin + std::string(text) + kTokenEnd; }

  void push(std::string_view text) { bytes_ += text; }
  void mark(std::string_view text) { bytes_ += token(text); }
  std::string_view bytes() const { return std::string_view(bytes_).substr(at_); }
  size_t offset() const { return offset_; }  // bytes of text taken, tokens not counted

  // Takes the first n bytes; what of them is text.
  std::string take(size_t n) {
    std::string text = without_tokens(bytes().substr(0, n));
    offset_ += text.size();
    at_ += n;
    if (at_ > bytes_.size() / 2) bytes_.erase(0, at_), at_ = 0;
    return text;
  }

  static std::string without_tokens(std::string_view bytes) {
    std::string text;
    bool inside = false;
    for (const char c : bytes) {
      if (c == kTokenBegin)
        inside = true;
      else if (c == kTokenEnd)
        inside = false;
      else if (!inside)
        text += c;
    }
    return text;
  }
  // Text with the tokens' characters in it.
  static std::string with_tokens(std::string_view bytes) {
    std::string text;
    for (const char c : bytes)
      if (c != kTokenBegin && c != kTokenEnd) text += c;
    return text;
  }

 private:
  std::string bytes_;
  size_t at_ = 0, offset_ = 0;
};

}  // namespace verbund::text
