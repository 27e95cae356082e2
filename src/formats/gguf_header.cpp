#include "formats/gguf_header.h"

#include <algorithm>
#include <bit>
#include <unordered_set>

#include "base/error.h"
#include "formats/gguf_cursor.h"

namespace verbund::formats {
namespace {

using nlohmann::json;

// Caps far above any real model and far below what would hurt: the largest vocabularies have about 260,000 entries in
// three arrays, the largest models a few thousand tensors.
constexpr uint64_t kTensorsMax = 1 << 18, kKeysMax = 1 << 16, kArrayElementsMax = 1 << 22;
constexpr uint64_t kKeyBytesMax = 65535, kNameBytesMax = 64, kStringBytesMax = 16 << 20, kStringBytesTotalMax = 256 << 20;
constexpr uint64_t kAlignmentMax = 1 << 20;
constexpr int kNestingMax = 4;
constexpr uint32_t kDimensionsMax = 4;

enum class ValueType : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64, count_ };

size_t least_bytes(ValueType type) {
  switch (type) {
    case ValueType::u8:
    case ValueType::i8:
    case ValueType::boolean: return 1;
    case ValueType::u16:
    case ValueType::i16: return 2;
    case ValueType::u32:
    case ValueType::i32:
    case ValueType::f32: return 4;
    case ValueType::array: return 12;
    default: return 8;
  }
}

class Parser {
 public:
  explicit Parser(const ByteSource& source) : source_(source), in_(source) {}

  GgufHeader run() {
    const auto [tensor_count, key_count] = preamble();
    header_.metadata = json::object();
    for (uint64_t i = 0; i < key_count; ++i) key_and_value(i, key_count);
    const uint64_t alignment = this->alignment();
    for (uint64_t i = 0; i < tensor_count; ++i) tensor(i, tensor_count, alignment);
    place_data(alignment);
    return std::move(header_);
  }

 private:
  struct Counts {
    uint64_t tensors, keys;
  };

  Counts preamble() {
    if (in_.number<uint32_t>() != 0x46554747) in_.fail("it does not begin with 'GGUF'");
    header_.version = in_.number<uint32_t>();
    if (header_.version != 0 && (header_.version & 0xffff) == 0)
      throw Error(Code::unimplemented, "the GGUF file is big-endian", source_.path(),
                  "convert it to little-endian (gguf-convert-endian of the gguf package)");
    if (header_.version != 2 && header_.version != 3)
      throw Error(Code::unimplemented, "GGUF version " + std::to_string(header_.version) + " is not read, only 2 and 3", source_.path(),
                  "convert the model anew with a current converter");
    in_.enter("the counts");
    const uint64_t tensors = in_.number<uint64_t>(), keys = in_.number<uint64_t>();
    constexpr uint64_t kLeastTensor = 8 + 4 + 4 + 8, kLeastKey = 8 + 4 + 1;
    check_count(tensors, "tensors", kLeastTensor, kTensorsMax);
    check_count(keys, "metadata keys", kLeastKey, kKeysMax);
    return {tensors, keys};
  }

  void check_count(uint64_t count, const char* what, uint64_t least_bytes_each, uint64_t max) {
    if (count > in_.remaining() / least_bytes_each)
      in_.fail(std::to_string(count) + " " + what + " are announced, more than the " + std::to_string(in_.remaining()) +
               " bytes left can hold");
    if (count > max) in_.fail(std::to_string(count) + " " + what + " are announced, at most " + std::to_string(max) + " are allowed");
  }

  void key_and_value(uint64_t index, uint64_t count) {
    in_.enter("metadata key " + std::to_string(index + 1) + " of " + std::to_string(count));
    std::string key = string(kKeyBytesMax);
    if (header_.metadata.contains(key)) in_.fail("the key " + shown(key) + " occurs twice");
    in_.enter("the value of " + shown(key));
    json value = this->value(value_type(), 0);
    header_.metadata[std::move(key)] = std::move(value);
  }

  std::string string(uint64_t bytes_max) {
    std::string text = in_.text(std::min(bytes_max, kStringBytesTotalMax - string_bytes_));
    string_bytes_ += text.size();
    return text;
  }

  ValueType value_type() {
    const uint32_t type = in_.number<uint32_t>();
    if (type >= static_cast<uint32_t>(ValueType::count_)) in_.fail("value type " + std::to_string(type) + " does not exist");
    return static_cast<ValueType>(type);
  }

  json value(ValueType type, int depth) {
    switch (type) {
      case ValueType::u8: return in_.number<uint8_t>();
      case ValueType::i8: return in_.number<int8_t>();
      case ValueType::u16: return in_.number<uint16_t>();
      case ValueType::i16: return in_.number<int16_t>();
      case ValueType::u32: return in_.number<uint32_t>();
      case ValueType::i32: return in_.number<int32_t>();
      case ValueType::u64: return in_.number<uint64_t>();
      case ValueType::i64: return in_.number<int64_t>();
      case ValueType::f32: return in_.number<float>();
      case ValueType::f64: return in_.number<double>();
      case ValueType::boolean: return boolean();
      case ValueType::string: return string(kStringBytesMax);
      case ValueType::array: return array(depth + 1);
      case ValueType::count_: break;
    }
    in_.fail("a value of no type");
  }

  bool boolean() {
    const uint8_t v = in_.number<uint8_t>();
    if (v > 1) in_.fail("a bool is " + std::to_string(v) + ", neither 0 nor 1");
    return v == 1;
  }

  json array(int depth) {
    if (depth > kNestingMax) in_.fail("arrays are nested deeper than " + std::to_string(kNestingMax));
    const ValueType type = value_type();
    const uint64_t count = in_.number<uint64_t>();
    check_count(count, "array elements", least_bytes(type), kArrayElementsMax - array_elements_);
    array_elements_ += count;
    json::array_t elements;
    elements.reserve(count);
    for (uint64_t i = 0; i < count; ++i) elements.push_back(value(type, depth));
    return json(std::move(elements));
  }

  uint64_t alignment() {
    const auto it = header_.metadata.find("general.alignment");
    if (it == header_.metadata.end()) return 32;
    in_.enter("the alignment");
    if (!it->is_number_integer() || it->get<int64_t>() < 0)
      in_.fail("general.alignment is " + it->dump().substr(0, 40) + ", not a count of bytes");
    const uint64_t alignment = it->get<uint64_t>();
    if (!std::has_single_bit(alignment) || alignment > kAlignmentMax)
      in_.fail("general.alignment is " + std::to_string(alignment) + ", not a power of two up to " + std::to_string(kAlignmentMax));
    return alignment;
  }

  void tensor(uint64_t index, uint64_t count, uint64_t alignment) {
    in_.enter("tensor " + std::to_string(index + 1) + " of " + std::to_string(count));
    GgufTensor t;
    t.name = in_.text(kNameBytesMax);
    if (t.name.empty()) in_.fail("a tensor has no name");
    if (!names_.insert(t.name).second) in_.fail("the tensor " + shown(t.name) + " occurs twice");
    in_.enter("tensor " + shown(t.name));
    read_shape(t);
    read_type(t);
    t.offset = in_.number<uint64_t>();
    if (t.offset % alignment != 0)
      in_.fail("its offset " + std::to_string(t.offset) + " is no multiple of the alignment " + std::to_string(alignment));
    header_.tensors.push_back(std::move(t));
  }

  void read_shape(GgufTensor& t) {
    const uint32_t dimensions = in_.number<uint32_t>();
    if (dimensions > kDimensionsMax)
      in_.fail("it has " + std::to_string(dimensions) + " dimensions, at most " + std::to_string(kDimensionsMax) + " are possible");
    for (uint32_t i = 0; i < dimensions; ++i) {
      const uint64_t size = in_.number<uint64_t>();
      if (size == 0) in_.fail("a dimension is 0");
      t.shape.insert(t.shape.begin(), size);
    }
  }

  void read_type(GgufTensor& t) {
    const uint32_t id = in_.number<uint32_t>();
    t.type = find_gguf_type(id);
    if (t.type == nullptr)
      throw Error(Code::unimplemented, "tensor " + shown(t.name) + " has the type " + gguf_type_name(id) + ", which is not read",
                  source_.path(), "use a file in F16, BF16, Q8_0, MXFP4 or one of Q2_K to Q6_K");
    const uint64_t columns = t.shape.empty() ? 1 : t.shape.back();
    if (columns % t.type->block != 0)
      in_.fail("rows of " + std::to_string(columns) + " elements do not divide into blocks of " + std::to_string(t.type->block) + " (" +
               std::string(t.type->name) + ")");
    std::optional<uint64_t> bytes = checked_mul(columns / t.type->block, t.type->block_bytes);
    for (size_t i = 0; bytes && i + 1 < t.shape.size(); ++i) bytes = checked_mul(*bytes, t.shape[i]);
    if (!bytes || *bytes > source_.size())
      in_.fail("it would have " + (bytes ? std::to_string(*bytes) : std::string("more than 2^64")) + " bytes, the file has " +
               std::to_string(source_.size()));
    t.bytes = *bytes;
  }

  // Offsets become places in the file; everything must lie inside it, without overlap, and end where it ends.
  void place_data(uint64_t alignment) {
    header_.data_begin = round_up(in_.position(), alignment);
    in_.enter("the tensors' data");
    std::vector<GgufTensor*> by_offset;
    for (GgufTensor& t : header_.tensors) by_offset.push_back(&t);
    std::sort(by_offset.begin(), by_offset.end(), [](const GgufTensor* a, const GgufTensor* b) { return a->offset < b->offset; });
    uint64_t end = header_.data_begin;
    const GgufTensor* last = nullptr;
    for (GgufTensor* t : by_offset) {
      const auto begin = checked_add(t->offset, header_.data_begin);
      const auto past = begin ? checked_add(*begin, t->bytes) : std::nullopt;
      if (!past || *past > source_.size())
        in_.fail("tensor " + shown(t->name) + " needs the file to have " + (past ? std::to_string(*past) : std::string("more than 2^64")) +
                 " bytes, it has " + std::to_string(source_.size()));
      if (*begin < end) in_.fail("tensors " + shown(last->name) + " and " + shown(t->name) + " overlap");
      t->offset = *begin;
      end = *past;
      last = t;
    }
    if (last && source_.size() > round_up(end, alignment))
      in_.fail("the file has " + std::to_string(source_.size()) + " bytes, but its last tensor " + shown(last->name) + " ends at " +
               std::to_string(end));
  }

  const ByteSource& source_;
  GgufCursor in_;
  GgufHeader header_;
  std::unordered_set<std::string> names_;
  uint64_t string_bytes_ = 0, array_elements_ = 0;
};

}  // namespace

GgufHeader parse_gguf_header(const ByteSource& source) { return Parser(source).run(); }

}  // namespace verbund::formats
