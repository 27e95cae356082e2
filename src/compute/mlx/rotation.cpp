#include "compute/mlx/rotation.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

namespace verbund::compute::mlx_impl {
namespace {

constexpr double kTolerance = 1e-5;  // of f32 tables

// The frequency of one pair, made more exact by every doubling of the position; none if the table is of another kind.
std::optional<double> frequency_of(const RopeTable& table, size_t pair, size_t positions) {
  const auto angle = [&](size_t p) {
    return std::atan2(double(table.sin[p * table.pairs + pair]), double(table.cos[p * table.pairs + pair]));
  };
  const auto fits = [&](size_t p, double frequency) {
    const size_t at = p * table.pairs + pair;
    const double c = table.cos[at], s = table.sin[at];
    return std::abs(c * c + s * s - 1) < kTolerance &&
           std::abs(std::remainder(angle(p) - frequency * double(p), 2 * std::numbers::pi)) < 1e-3;
  };
  double frequency = angle(1);
  if (frequency < 0 || table.sin[pair] != 0) return std::nullopt;
  for (size_t p = 1; p < positions; p *= 2) {
    if (!fits(p, frequency)) return std::nullopt;
    frequency += std::remainder(angle(p) - frequency * double(p), 2 * std::numbers::pi) / double(p);
  }
  return fits(positions - 1, frequency) && fits(positions / 3, frequency) ? std::optional(frequency) : std::nullopt;
}

// x: [batch, heads, positions, dim] with (x1, x2) of each rotated pair exchanged.
mx::array swap_pairs(const mx::array& x, int pairs, RopeMode mode) {
  const int b = x.shape(0), heads = x.shape(1), n = x.shape(2), dim = x.shape(3);
  const auto columns = [&](int from, int to) { return mx::slice(x, {0, 0, 0, from}, {b, heads, n, to}); };
  std::vector<mx::array> parts;
  if (mode == RopeMode::half) {
    parts = {columns(pairs, 2 * pairs), columns(0, pairs)};
  } else {
    const mx::array split = mx::reshape(columns(0, 2 * pairs), {b, heads, n, pairs, 2});
    const mx::array swapped = mx::slice(split, {0, 0, 0, 0, 1}, {b, heads, n, pairs, -3}, {1, 1, 1, 1, -1});
    parts.push_back(mx::reshape(swapped, {b, heads, n, 2 * pairs}));
  }
  if (2 * pairs < dim) parts.push_back(columns(2 * pairs, dim));
  return parts.size() == 1 ? parts[0] : mx::concatenate(std::move(parts), 3);
}

}  // namespace

std::optional<std::vector<float>> wavelengths_of(const RopeTable& table) {
  const size_t positions = table.pairs == 0 ? 0 : table.cos.size() / table.pairs;
  if (positions < 2 || table.sin.size() != table.cos.size()) return std::nullopt;
  std::vector<float> lengths;
  for (size_t pair = 0; pair < table.pairs; ++pair) {
    const auto frequency = frequency_of(table, pair, positions);
    if (!frequency) return std::nullopt;
    lengths.push_back(static_cast<float>(1 / *frequency));
  }
  return lengths;
}

const std::optional<mx::array>& Wavelengths::of(const RopeTable& table) {
  std::vector<float> row;
  if (table.cos.size() >= 2 * table.pairs)
    row.assign(table.cos.begin() + ptrdiff_t(table.pairs), table.cos.begin() + ptrdiff_t(2 * table.pairs));
  for (const Known& k : known_)
    if (k.table == &table && k.row == row) return k.values;
  std::erase_if(known_, [&](const Known& k) { return k.table == &table; });
  std::optional<mx::array> values;
  if (const auto lengths = wavelengths_of(table)) values = mx::array(lengths->begin(), {static_cast<int>(lengths->size())}, mx::float32);
  return known_.emplace_back(Known{&table, std::move(row), std::move(values)}).values;
}

Rotation rotation_of(const RopeTable& table, RopeMode mode, size_t dim, const std::vector<uint32_t>& positions, bool batch) {
  const size_t rows = positions.size(), pairs = table.pairs;
  std::vector<float> cos(rows * dim, 1.0f), sin(rows * dim, 0.0f);
  for (size_t r = 0; r < rows; ++r)
    for (size_t i = 0; i < pairs; ++i) {
      const size_t at = positions[r] * pairs + i;
      const size_t first = r * dim + (mode == RopeMode::half ? i : 2 * i), second = first + (mode == RopeMode::half ? pairs : 1);
      cos[first] = cos[second] = table.cos[at];
      sin[first] = -table.sin[at];
      sin[second] = table.sin[at];
    }
  const int n = static_cast<int>(rows), d = static_cast<int>(dim);
  const mx::Shape shape = batch ? mx::Shape{n, 1, 1, d} : mx::Shape{1, 1, n, d};
  return {mx::array(cos.begin(), shape), mx::array(sin.begin(), shape)};
}

mx::array rotate(const mx::array& x, const Rotation& rotation, size_t pairs, RopeMode mode) {
  return mx::add(mx::multiply(x, rotation.cos), mx::multiply(swap_pairs(x, static_cast<int>(pairs), mode), rotation.sin));
}

}  // namespace verbund::compute::mlx_impl
