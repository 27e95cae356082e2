#include "base/bytes.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "base/error.h"

namespace verbund {

std::optional<uint64_t> checked_mul(uint64_t a, uint64_t b) {
  uint64_t r;
  if (__builtin_mul_overflow(a, b, &r)) return std::nullopt;
  return r;
}

std::optional<uint64_t> checked_add(uint64_t a, uint64_t b) {
  uint64_t r;
  if (__builtin_add_overflow(a, b, &r)) return std::nullopt;
  return r;
}

std::string format_bytes(uint64_t bytes) {
  constexpr std::array<const char*, 5> units{"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < units.size()) value /= 1024, ++unit;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
  return text;
}

uint64_t parse_bytes(std::string_view text) {
  const auto bad = [&] {
    return Error(Code::invalid_argument, "'" + std::string(text) + "' is not a size", {}, "write for example 60MB, 1.5GiB or 1048576");
  };
  double value = 0;
  const auto [rest, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || !(value >= 0)) throw bad();
  std::string unit;
  for (const char* p = rest; p != text.data() + text.size(); ++p)
    if (*p != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*p)));
  double factor = 1;
  if (!unit.empty() && unit != "b") {
    const size_t power = std::string_view("kmgt").find(unit[0]);
    const std::string_view tail = std::string_view(unit).substr(1);
    if (power == std::string_view::npos || (tail != "" && tail != "b" && tail != "ib")) throw bad();
    factor = std::pow(tail == "ib" ? 1024.0 : 1000.0, static_cast<double>(power + 1));
  }
  if (value * factor > 9e18) throw bad();
  return static_cast<uint64_t>(value * factor);
}

std::optional<size_t> find_invalid_utf8(std::string_view s) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  for (size_t i = 0; i < s.size();) {
    const unsigned char c = byte(i);
    if (c < 0x80) {
      ++i;
      continue;
    }
    // Shortest form, no surrogates, at most U+10FFFF: the second byte's range depends on the first (Unicode table 3-7).
    size_t more = c >= 0xC2 && c <= 0xDF ? 1 : c >= 0xE0 && c <= 0xEF ? 2 : c >= 0xF0 && c <= 0xF4 ? 3 : 0;
    if (more == 0 || i + more >= s.size()) return i;
    const unsigned char low = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
    const unsigned char high = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
    if (byte(i + 1) < low || byte(i + 1) > high) return i;
    for (size_t k = 2; k <= more; ++k)
      if ((byte(i + k) & 0xC0) != 0x80) return i;
    i += more + 1;
  }
  return std::nullopt;
}

uint64_t checksum(std::span<const std::byte> data, uint64_t seed) {
  uint64_t h = seed;
  for (std::byte b : data) h = (h ^ static_cast<uint64_t>(b)) * 0x100000001b3ull;
  return h;
}

}  // namespace verbund
