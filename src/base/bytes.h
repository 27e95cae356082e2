// Byte counts and the arithmetic on numbers that come from outside. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace verbund {

// Half-open range of rows, columns, heads, layers, units.
struct Range {
  size_t begin = 0;
  size_t end = 0;
  size_t size() const { return end - begin; }
  bool empty() const { return end == begin; }
  bool contains(size_t i) const { return i >= begin && i < end; }
  bool operator==(const Range&) const = default;
};

// nullopt on overflow: sizes read from a file or frame are multiplied and added only through these.
std::optional<uint64_t> checked_mul(uint64_t a, uint64_t b);
std::optional<uint64_t> checked_add(uint64_t a, uint64_t b);

constexpr uint64_t round_up(uint64_t n, uint64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
constexpr uint64_t ceil_div(uint64_t n, uint64_t d) { return (n + d - 1) / d; }

// "98.3 MiB", "4.5 KiB", "17 B"
std::string format_bytes(uint64_t bytes);
// "60MB", "60 MiB", "1.5GB", "1048576"; decimal and binary units as written. Throws invalid_argument naming the text.
uint64_t parse_bytes(std::string_view text);

// Offset of the first byte that is not part of well-formed UTF-8, or nullopt.
std::optional<size_t> find_invalid_utf8(std::string_view text);

// 64-bit FNV-1a: checksum of frames and plans (a guard against our own divergence, not against an attacker).
uint64_t checksum(std::span<const std::byte> data, uint64_t seed = 0xcbf29ce484222325ull);

}  // namespace verbund
