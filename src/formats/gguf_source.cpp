#include "formats/gguf_source.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "formats/codes.h"
#include "formats/range_check.h"

namespace verbund::formats {
namespace {

constexpr unsigned kShardsMax = 4096;

// An integer of any width under `key`, as the writers differ; nullopt if absent or not a count.
std::optional<uint64_t> count_at(const nlohmann::json& metadata, const char* key) {
  const auto it = metadata.find(key);
  if (it == metadata.end() || !it->is_number_integer() || it->get<int64_t>() < 0) return std::nullopt;
  return it->get<uint64_t>();
}

// Copies columns `part` of the tile's first row, whole groups, to column `column` (counted in `into`) of row `row`.
void place_row(const CodeTile& tile, Range part, size_t row, size_t column, WeightMatrix& into) {
  const WeightFormat& f = into.format;
  const size_t group = static_cast<size_t>(f.group), size = f.coding == Coding::affine ? size_of(f.dtype) : 1;
  pack_codes(tile.codes[0] + part.begin, part.size(), f.bits, into.codes.data() + row * f.code_row_bytes(into.cols) + column * f.bits / 8);
  std::byte* scales = into.scales.data() + (row * f.group_count(into.cols) + column / group) * size;
  std::byte* biases = into.biases.empty() ? nullptr : into.biases.data() + (scales - into.scales.data());
  for (size_t g = part.begin / group, i = 0; g < part.end / group; ++g, i += size) {
    std::memcpy(scales + i, tile.scales + g * kTileRows * size, size);
    if (biases) std::memcpy(biases + i, tile.biases + g * kTileRows * size, size);
  }
}

}  // namespace

GgufSource::GgufSource(std::vector<std::unique_ptr<ByteSource>> files) : files_(std::move(files)) {
  for (size_t i = 0; i < files_.size(); ++i) add_file(i);
  if (const auto total = count_at(metadata_, "split.tensors.count"); total && *total != infos_.size())
    throw Error(Code::data_loss, "the shards have " + std::to_string(infos_.size()) + " tensors, announced are " + std::to_string(*total),
                path(), "fetch the model again");
  for (size_t i = 0; i < infos_.size(); ++i)
    if (!by_name_.emplace(infos_[i].name, i).second)
      throw Error(Code::data_loss, "tensor " + shown(infos_[i].name) + " is in two shards", path(), "fetch the model again");
}

void GgufSource::add_file(size_t index) {
  GgufHeader header = parse_gguf_header(*files_[index]);
  check_split(index, header.metadata);
  if (index == 0) metadata_ = std::move(header.metadata);
  for (GgufTensor& t : header.tensors) {
    TensorInfo info;
    info.name = std::move(t.name);
    info.shape = std::move(t.shape);
    info.format = t.type->format;
    info.stored = t.type->name;
    info.stored_bytes = t.bytes;
    infos_.push_back(std::move(info));
    places_.push_back({index, t.type, t.offset});
  }
}

void GgufSource::check_split(size_t index, const nlohmann::json& metadata) const {
  const auto count = count_at(metadata, "split.count"), number = count_at(metadata, "split.no");
  if (!count && files_.size() == 1) return;
  if (count.value_or(0) == files_.size() && number.value_or(0) == index) return;
  if (files_.size() == 1 && *count <= 1) return;
  throw Error(Code::data_loss,
              "the file says it is shard " + std::to_string(number.value_or(0) + 1) + " of " + std::to_string(count.value_or(1)) +
                  ", its name says " + std::to_string(index + 1) + " of " + std::to_string(files_.size()),
              files_[index]->path(), "shards are named name-00001-of-0000n.gguf and lie in one folder");
}

const TensorInfo* GgufSource::find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &infos_[it->second];
}

uint64_t GgufSource::bytes_on_disk() const {
  uint64_t sum = 0;
  for (const auto& file : files_) sum += file->size();
  return sum;
}

void GgufSource::read(std::string_view name, Range rows, Range cols, WeightMatrix& into) const {
  const TensorInfo& info = require(name);
  const Place& place = places_[static_cast<size_t>(&info - infos_.data())];
  check_rect(info, rows, cols, files_[place.file]->path());
  into.resize(info.format, rows.size(), cols.size());
  if (rows.empty() || cols.empty()) return;
  if (place.type->decode != nullptr) return read_blocks(info, place, rows, cols, into);
  const size_t size = place.type->block_bytes;
  read_rect(*files_[place.file], {place.offset, info.cols() * size, rows, {cols.begin * size, cols.end * size}}, into.codes.data());
}

void GgufSource::read_blocks(const TensorInfo& info, const Place& place, Range rows, Range cols, WeightMatrix& into) const {
  const size_t block = place.type->block, block_bytes = place.type->block_bytes;
  const Range bytes{cols.begin / block * block_bytes, ceil_div(cols.end, block) * block_bytes};
  CodeTile tile;
  for_each_piece(*files_[place.file], {place.offset, info.cols() / block * block_bytes, rows, bytes}, block_bytes,
                 [&](size_t row, size_t first_byte, std::span<const std::byte> piece) {
                   size_t column = first_byte / block_bytes * block;
                   for (size_t at = 0; at < piece.size(); at += block_bytes, column += block) {
                     if (!place.type->decode(piece.data() + at, 0, 1, tile))
                       throw Error(Code::data_loss,
                                   "tensor " + shown(info.name) + " has a scale that is not finite, in row " + std::to_string(row),
                                   files_[place.file]->path(), "the file is broken; fetch it again");
                     const size_t begin = std::max(column, cols.begin), end = std::min(column + block, cols.end);
                     place_row(tile, {begin - column, end - column}, row - rows.begin, begin - cols.begin, into);
                   }
                 });
}

void GgufSource::read_stored(std::string_view name, Range rows, Range cols, StoredRows& into) const {
  const TensorInfo& info = require(name);
  const Place& place = places_[static_cast<size_t>(&info - infos_.data())];
  if (place.type->decode == nullptr) return TensorSource::read_stored(name, rows, cols, into);
  check_rect(info, rows, cols, files_[place.file]->path());
  const size_t block = place.type->block, block_bytes = place.type->block_bytes;
  const Range bytes{cols.begin / block * block_bytes, ceil_div(cols.end, block) * block_bytes};
  into.blocks = place.type;
  into.rows = rows.size();
  into.cols = cols.size();
  into.skip = cols.begin % block;
  into.stride = read_strided(*files_[place.file], {place.offset, info.cols() / block * block_bytes, rows, bytes}, into.bytes);
}

std::vector<std::string> gguf_shards(const std::string& path) {
  // ...-00001-of-00003.gguf
  constexpr std::string_view kEnding = "-00001-of-00001.gguf";
  const size_t stem = path.size() - std::min(path.size(), kEnding.size());
  const std::string_view ending = std::string_view(path).substr(stem);
  const auto number = [&](size_t at) {
    unsigned value = 0;
    const char* end = ending.data() + at + 5;
    return std::from_chars(ending.data() + at, end, value).ptr == end ? value : 0;
  };
  if (ending.size() != kEnding.size() || ending.substr(6, 4) != "-of-" || ending.substr(15) != ".gguf" || ending[0] != '-') return {path};
  const unsigned index = number(1), count = number(10);
  if (index == 0 || count == 0 || index > count || count > kShardsMax) return {path};
  const auto shard = [&](unsigned i) {
    char text[32];
    std::snprintf(text, sizeof text, "-%05u-of-%05u.gguf", i, count);
    return path.substr(0, stem) + text;
  };
  if (index != 1)
    throw Error(Code::invalid_argument, "this is shard " + std::to_string(index) + " of " + std::to_string(count), path,
                "give the first one: " + shard(1));
  std::vector<std::string> paths;
  for (unsigned i = 1; i <= count; ++i) {
    paths.push_back(shard(i));
    if (!std::filesystem::exists(paths.back()))
      throw Error(Code::not_found, "shard " + std::to_string(i) + " of " + std::to_string(count) + " is missing", paths.back(),
                  "all shards must lie in one folder");
  }
  return paths;
}

}  // namespace verbund::formats
