#include "formats/safetensors_source.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "formats/range_check.h"

namespace verbund::formats {
namespace {

constexpr std::string_view kWeight = ".weight", kScales = ".scales", kBiases = ".biases";

std::optional<std::string> without_suffix(const std::string& name, std::string_view suffix) {
  if (name.size() <= suffix.size() || !name.ends_with(suffix)) return std::nullopt;
  return name.substr(0, name.size() - suffix.size());
}

std::optional<DType> float_type(std::string_view dtype) {
  if (dtype == "F32") return DType::f32;
  if (dtype == "F16") return DType::f16;
  if (dtype == "BF16") return DType::bf16;
  return std::nullopt;
}

std::string text(const std::vector<size_t>& shape) {
  std::string s = "[";
  for (const size_t n : shape) s += (s.size() > 1 ? ", " : "") + std::to_string(n);
  return s + "]";
}

template <size_t N>
bool among(int value, const std::array<int, N>& allowed) {
  return std::find(allowed.begin(), allowed.end(), value) != allowed.end();
}

// The parts of one quantised module; biases is null for mxfp4.
struct ModuleParts {
  const SafetensorsEntry& weight;
  const SafetensorsEntry& scales;
  const SafetensorsEntry* biases;
};

WeightFormat affine_format(const ModuleQuantization& q, const ModuleParts& parts, const auto& mismatch) {
  if (!among(q.bits, std::array{2, 3, 4, 5, 6, 8}) || !among(q.group, std::array{32, 64, 128}))
    mismatch("affine with " + std::to_string(q.bits) + " bits and groups of " + std::to_string(q.group) + " does not exist");
  const auto scale_type = float_type(parts.scales.dtype);
  if (!scale_type) mismatch("its scales are " + parts.scales.dtype + ", affine needs F32, F16 or BF16");
  if (parts.biases == nullptr) mismatch("it has no biases, which affine needs");
  if (parts.biases->dtype != parts.scales.dtype || parts.biases->shape != parts.scales.shape)
    mismatch("its biases are " + parts.biases->dtype + " " + text(parts.biases->shape) + ", its scales " + parts.scales.dtype + " " +
             text(parts.scales.shape));
  return {Coding::affine, *scale_type, q.bits, q.group, {}};
}

WeightFormat mxfp4_format(const ModuleQuantization& q, const ModuleParts& parts, const auto& mismatch) {
  if (q.bits != 4 || q.group != 32)
    mismatch("mxfp4 has 4 bits and groups of 32, not " + std::to_string(q.bits) + " and " + std::to_string(q.group));
  if (parts.scales.dtype != "U8") mismatch("its scales are " + parts.scales.dtype + ", mxfp4 needs U8");
  if (parts.biases != nullptr) mismatch("it has biases, which mxfp4 does not");
  return {Coding::mxfp4, DType::f32, 4, 32, {}};
}

// Columns of the module, from the scales; weight and scales must agree on it and on all leading dimensions.
size_t module_columns(const ModuleQuantization& q, const ModuleParts& parts, const auto& mismatch) {
  const auto &w = parts.weight.shape, &s = parts.scales.shape;
  const bool alike = w.size() >= 2 && w.size() == s.size() && std::equal(w.begin(), w.end() - 1, s.begin());
  const uint64_t columns = alike ? uint64_t(s.back()) * static_cast<uint64_t>(q.group) : 0;
  if (!alike || columns == 0 || uint64_t(w.back()) * 32 != columns * static_cast<uint64_t>(q.bits))
    mismatch("weight " + text(w) + " and scales " + text(s) + " do not fit " + std::to_string(q.bits) + " bits in groups of " +
             std::to_string(q.group));
  return columns;
}

// All bits of the exponent set: infinite or no number. Without an early end, so that it runs at the speed of memory.
template <class Bits>
bool all_below(const std::vector<std::byte>& values, Bits exponent) {
  bool found = false;
  for (size_t i = 0; i + sizeof(Bits) <= values.size(); i += sizeof(Bits)) {
    Bits bits;
    std::memcpy(&bits, values.data() + i, sizeof bits);
    found |= (bits & exponent) == exponent;
  }
  return !found;
}

bool all_finite(const std::vector<std::byte>& values, const WeightFormat& format) {
  if (format.coding == Coding::mxfp4) return all_below<uint8_t>(values, 0xff);
  switch (format.dtype) {
    case DType::f32: return all_below<uint32_t>(values, 0x7f800000u);
    case DType::f16: return all_below<uint16_t>(values, 0x7c00);
    case DType::bf16: return all_below<uint16_t>(values, 0x7f80);
  }
  return false;
}

}  // namespace

SafetensorsSource::SafetensorsSource(std::string folder, std::vector<std::unique_ptr<ByteSource>> files, const nlohmann::json& config,
                                     const Expected& expected)
    : folder_(std::move(folder)), files_(std::move(files)) {
  const QuantizationConfig quantization(config, folder_);
  std::vector<std::string> order;
  const Entries entries = collect(order, expected);
  // A packed weight is U32 with scales beside it; those belong to it and are no tensors of their own.
  const auto is_module = [&](const std::string& module) {
    const auto weight = entries.find(module + std::string(kWeight));
    return weight != entries.end() && weight->second.entry.dtype == "U32" && entries.contains(module + std::string(kScales));
  };
  for (const std::string& name : order) {
    auto module = without_suffix(name, kWeight);
    if (module && is_module(*module)) {
      add_module(*module, entries, quantization);
      continue;
    }
    module = without_suffix(name, kScales);
    if (!module) module = without_suffix(name, kBiases);
    if (!module || !is_module(*module)) add_plain(entries.at(name));
  }
  for (size_t i = 0; i < infos_.size(); ++i) by_name_.emplace(infos_[i].name, i);
}

SafetensorsSource::Entries SafetensorsSource::collect(std::vector<std::string>& order, const Expected& expected) const {
  Entries entries;
  for (size_t file = 0; file < files_.size(); ++file)
    for (SafetensorsEntry& entry : parse_safetensors_header(*files_[file])) {
      order.push_back(entry.name);
      if (!entries.emplace(order.back(), Held{file, std::move(entry)}).second)
        throw Error(Code::data_loss, "tensor " + shown(order.back()) + " is in two files", files_[file]->path(), "fetch the model again");
    }
  for (const auto& [name, file] : expected) {
    const auto it = entries.find(name);
    if (it == entries.end() || it->second.file != file)
      throw Error(Code::data_loss, "tensor " + shown(name) + " is not in the file where the index has it", files_[file]->path(),
                  "fetch the model again");
  }
  return entries;
}

void SafetensorsSource::add_plain(const Held& held) {
  TensorInfo info;
  info.name = held.entry.name;
  info.shape = held.entry.shape;
  info.stored = held.entry.dtype;
  info.stored_bytes = held.entry.bytes;
  const auto type = float_type(held.entry.dtype);
  info.format.dtype = type.value_or(DType::f32);
  info.readable = type.has_value();
  infos_.push_back(std::move(info));
  places_.push_back({{held.file, held.entry.offset}, {}, {}});
}

void SafetensorsSource::add_module(const std::string& module, const Entries& entries, const QuantizationConfig& quantization) {
  const Held &weight = entries.at(module + std::string(kWeight)), &scales = entries.at(module + std::string(kScales));
  const auto biases = entries.find(module + std::string(kBiases));
  const Held* bias = biases == entries.end() ? nullptr : &biases->second;
  const ModuleQuantization& q = quantization.of(module);
  const auto mismatch = [&](const std::string& what) {
    throw Error(Code::data_loss, "module " + shown(module) + ": " + what, files_[weight.file]->path(),
                "config.json and the weights must come from the same conversion");
  };
  const ModuleParts parts{weight.entry, scales.entry, bias ? &bias->entry : nullptr};
  TensorInfo info;
  if (q.mode == "affine")
    info.format = affine_format(q, parts, mismatch);
  else if (q.mode == "mxfp4")
    info.format = mxfp4_format(q, parts, mismatch);
  else
    throw Error(Code::unimplemented, "module " + shown(module) + " is quantised as " + shown(q.mode) + ", which is not read",
                files_[weight.file]->path(), "use an affine or mxfp4 conversion");
  info.name = weight.entry.name;
  info.shape = weight.entry.shape;
  info.shape.back() = module_columns(q, parts, mismatch);
  info.stored = info.format.name();
  info.stored_bytes = weight.entry.bytes + scales.entry.bytes + (bias ? bias->entry.bytes : 0);
  infos_.push_back(std::move(info));
  places_.push_back(
      {{weight.file, weight.entry.offset}, {scales.file, scales.entry.offset}, bias ? Part{bias->file, bias->entry.offset} : Part{}});
}

const TensorInfo* SafetensorsSource::find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &infos_[it->second];
}

uint64_t SafetensorsSource::bytes_on_disk() const {
  uint64_t sum = 0;
  for (const auto& file : files_) sum += file->size();
  return sum;
}

void SafetensorsSource::read(std::string_view name, Range rows, Range cols, WeightMatrix& into) const {
  const TensorInfo& info = require(name);
  const Place& place = places_[static_cast<size_t>(&info - infos_.data())];
  const std::string& file = files_[place.codes.file]->path();
  if (!info.readable)
    throw Error(Code::unimplemented, "tensor " + shown(name) + " has the type " + shown(info.stored) + ", which is not read", file,
                "weights are read as F32, F16, BF16 or quantised by MLX");
  check_rect(info, rows, cols, file);
  const WeightFormat& f = info.format;
  into.resize(f, rows.size(), cols.size());
  read_part(place.codes, f.code_row_bytes(info.cols()), rows, {f.code_row_bytes(cols.begin), f.code_row_bytes(cols.end)}, into.codes);
  if (f.coding == Coding::dense) return;
  const size_t size = f.coding == Coding::affine ? size_of(f.dtype) : 1;
  const Range groups{f.group_count(cols.begin) * size, f.group_count(cols.end) * size};
  read_part(place.scales, f.group_count(info.cols()) * size, rows, groups, into.scales);
  if (!into.biases.empty()) read_part(place.biases, f.group_count(info.cols()) * size, rows, groups, into.biases);
  check_finite(info, into, rows);
}

void SafetensorsSource::read_part(const Part& part, size_t row_bytes, Range rows, Range bytes, std::vector<std::byte>& into) const {
  read_rect(*files_[part.file], {part.offset, row_bytes, rows, bytes}, into.data());
}

void SafetensorsSource::check_finite(const TensorInfo& info, const WeightMatrix& m, Range rows) const {
  if (all_finite(m.scales, m.format) && all_finite(m.biases, m.format)) return;
  throw Error(Code::data_loss,
              "tensor " + shown(info.name) + " has a scale or bias that is not finite, in rows " + std::to_string(rows.begin) + " to " +
                  std::to_string(rows.end),
              folder_, "the file is broken; fetch it again");
}

}  // namespace verbund::formats
