#include "formats/safetensors_header.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/error.h"

namespace verbund::formats {
namespace {

using nlohmann::json;

constexpr uint64_t kHeaderBytesMax = 100'000'000;
constexpr size_t kTensorsMax = 1 << 20, kDimensionsMax = 8, kNameBytesMax = 1024, kDtypeBytesMax = 32;
constexpr uint64_t kElementsMax = uint64_t(1) << 48;

[[noreturn]] void broken(const ByteSource& source, const std::string& what) {
  throw Error(Code::data_loss, "broken safetensors file: " + what, source.path(), "fetch the file again");
}

// Receives the header as a stream: {name: {"dtype": text, "shape": [n...], "data_offsets": [begin, end]}, "__metadata__": {text: text}}.
class HeaderEvents final : public json::json_sax_t {
 public:
  explicit HeaderEvents(const ByteSource& source) : source_(source) {}
  std::vector<SafetensorsEntry> take() { return std::move(entries_); }

  bool key(string_t& text) override { return depth_ == 1 ? begin_entry(text) : in_metadata_ ? true : begin_field(text); }

  bool start_object(size_t) override {
    if (depth_ == 2 || field_list_ != nullptr) fail("holds an object where a value is expected");
    ++depth_;
    return true;
  }

  bool end_object() override {
    if (depth_ == 2 && !in_metadata_) finish_entry();
    --depth_;
    in_metadata_ = false;
    return true;
  }

  bool start_array(size_t) override {
    if (depth_ != 2 || in_metadata_ || field_list_ != nullptr || (field_ != Field::shape && field_ != Field::offsets))
      fail("holds a list where none is expected");
    field_list_ = field_ == Field::shape ? &shape_ : &offsets_;
    return true;
  }

  bool end_array() override { return field_list_ = nullptr, true; }

  bool number_unsigned(number_unsigned_t value) override {
    if (field_list_ == nullptr) return scalar("a number");
    if (field_list_->size() == kDimensionsMax) fail("has a list of more than " + std::to_string(kDimensionsMax) + " numbers");
    field_list_->push_back(value);
    return true;
  }

  bool string(string_t& value) override {
    if (field_ != Field::dtype || depth_ != 2 || in_metadata_ || field_list_ != nullptr) return in_metadata_ ? true : scalar("a text");
    if (value.empty() || value.size() > kDtypeBytesMax) fail("has the data type " + shown(value));
    entry_.dtype = value;
    return true;
  }

  bool number_integer(number_integer_t value) override { return scalar(std::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override { return scalar(text.substr(0, 40)); }
  bool boolean(bool) override { return scalar("a bool"); }
  bool null() override { return scalar("null"); }
  bool binary(binary_t&) override { return scalar("binary"); }

  bool parse_error(size_t byte, const std::string&, const nlohmann::detail::exception&) override {
    broken(source_, "its header is not valid JSON at byte " + std::to_string(byte + sizeof(uint64_t)));
  }

 private:
  enum class Field { none, dtype, shape, offsets, other };

  [[noreturn]] void fail(const std::string& what) const {
    broken(source_, (entry_.name.empty() ? std::string("the header") : "tensor " + shown(entry_.name)) + " " + what);
  }

  // A value that is neither a dtype nor inside a list: fine only under a key this program does not know.
  bool scalar(const std::string& what) const {
    if (depth_ == 2 && !in_metadata_ && field_ == Field::other) return true;
    fail("holds " + what + " where something else is expected");
  }

  bool begin_entry(const std::string& name) {
    entry_ = {};
    shape_.clear(), offsets_.clear();
    seen_.clear();
    field_ = Field::none;
    in_metadata_ = name == "__metadata__";
    if (!names_.insert(name).second) broken(source_, "the name " + shown(name) + " occurs twice");
    if (in_metadata_) return true;
    if (name.empty() || name.size() > kNameBytesMax)
      broken(source_, "the tensor name " + shown(name) + " has " + std::to_string(name.size()) + " bytes");
    if (entries_.size() == kTensorsMax) broken(source_, "more than " + std::to_string(kTensorsMax) + " tensors");
    entry_.name = name;
    return true;
  }

  bool begin_field(const std::string& name) {
    field_ = name == "dtype" ? Field::dtype : name == "shape" ? Field::shape : name == "data_offsets" ? Field::offsets : Field::other;
    if (field_ == Field::other) return true;
    if (std::find(seen_.begin(), seen_.end(), field_) != seen_.end()) fail("has " + shown(name) + " twice");
    seen_.push_back(field_);
    return true;
  }

  void finish_entry() {
    if (seen_.size() != 3 || entry_.dtype.empty()) fail("lacks one of dtype, shape, data_offsets");
    if (offsets_.size() != 2 || offsets_[0] > offsets_[1]) fail("has data_offsets that are no range");
    uint64_t elements = 1, extent = 1;
    for (const uint64_t n : shape_) {
      const auto product = checked_mul(extent, std::max<uint64_t>(n, 1));
      if (!product || *product > kElementsMax) fail("has an impossible shape");
      extent = *product;
      elements *= n;
    }
    entry_.shape.assign(shape_.begin(), shape_.end());
    entry_.offset = offsets_[0];
    entry_.bytes = offsets_[1] - offsets_[0];
    const auto item = safetensors_item_bytes(entry_.dtype);
    if (item && elements * *item != entry_.bytes)
      fail("of type " + entry_.dtype + " needs " + std::to_string(elements * *item) + " bytes, its data_offsets give " +
           std::to_string(entry_.bytes));
    entries_.push_back(std::move(entry_));
    entry_ = {};
  }

  const ByteSource& source_;
  std::vector<SafetensorsEntry> entries_;
  std::unordered_set<std::string> names_;
  int depth_ = 0;
  bool in_metadata_ = false;
  SafetensorsEntry entry_;
  Field field_ = Field::none;
  std::vector<Field> seen_;
  std::vector<uint64_t> shape_, offsets_;
  std::vector<uint64_t>* field_list_ = nullptr;
};

std::string header_text(const ByteSource& source) {
  uint64_t length = 0;
  if (source.size() < sizeof length)
    broken(source, "it has " + std::to_string(source.size()) + " bytes, fewer than the 8 of the header's length");
  source.read(0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > source.size() - sizeof length)
    broken(source, "the header is announced with " + std::to_string(length) + " bytes, the file has " + std::to_string(source.size()));
  if (length > kHeaderBytesMax)
    broken(source, "the header has " + std::to_string(length) + " bytes, more than the " + std::to_string(kHeaderBytesMax) + " allowed");
  std::string text(length, '\0');
  source.read(sizeof length, std::as_writable_bytes(std::span(text)));
  if (text.empty() || text[0] != '{') broken(source, "the header does not begin with '{'");
  return text;
}

void place_data(const ByteSource& source, uint64_t data_begin, std::vector<SafetensorsEntry>& entries) {
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  uint64_t end = data_begin;
  const SafetensorsEntry* last = nullptr;
  for (SafetensorsEntry& e : entries) {
    const auto begin = checked_add(e.offset, data_begin);
    const auto past = begin ? checked_add(*begin, e.bytes) : std::nullopt;
    if (!past || *past > source.size())
      broken(source, "tensor " + shown(e.name) + " needs the file to have " +
                         (past ? std::to_string(*past) : std::string("more than 2^64")) + " bytes, it has " +
                         std::to_string(source.size()));
    if (*begin < end) broken(source, "tensors " + shown(last->name) + " and " + shown(e.name) + " overlap");
    e.offset = *begin;
    end = *past;
    last = &e;
  }
  if (source.size() > end)
    broken(source, "the file has " + std::to_string(source.size()) + " bytes, its header accounts for " + std::to_string(end));
}

}  // namespace

std::optional<size_t> safetensors_item_bytes(std::string_view dtype) {
  struct Row {
    std::string_view name;
    size_t bytes;
  };
  constexpr std::array<Row, 17> kRows{{{"F64", 8},
                                       {"F32", 4},
                                       {"F16", 2},
                                       {"BF16", 2},
                                       {"I64", 8},
                                       {"I32", 4},
                                       {"I16", 2},
                                       {"I8", 1},
                                       {"U64", 8},
                                       {"U32", 4},
                                       {"U16", 2},
                                       {"U8", 1},
                                       {"BOOL", 1},
                                       {"F8_E4M3", 1},
                                       {"F8_E5M2", 1},
                                       {"F8_E8M0", 1},
                                       {"C64", 8}}};
  for (const Row& row : kRows)
    if (row.name == dtype) return row.bytes;
  return std::nullopt;
}

std::vector<SafetensorsEntry> parse_safetensors_header(const ByteSource& source) {
  const std::string text = header_text(source);
  HeaderEvents events(source);
  json::sax_parse(text, &events);
  std::vector<SafetensorsEntry> entries = events.take();
  place_data(source, sizeof(uint64_t) + text.size(), entries);
  return entries;
}

}  // namespace verbund::formats
