#include "engine/step_plan.h"

#include <concepts>
#include <string>
#include <type_traits>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "compute/backend.h"
#include "engine/candidates.h"

namespace verbund::engine {
namespace {

constexpr uint32_t kMagic = 0x32505356;  // "VSP2"
constexpr uint64_t kHeaderBytes = 4 + 4 + 8 + 4 + 4;
constexpr uint64_t kSegmentBytes = 8 + 4 + 4 + 4 + 4 + 4;  // without tokens and blocks
constexpr uint64_t kChecksumBytes = 8;

[[noreturn]] void refuse(const std::string& problem) {
  throw Error({Code::data_loss, Lost::instance, "step plan: " + problem, "decode_plan", ""});
}

class Writer {
 public:
  explicit Writer(size_t bytes) { out_.reserve(bytes); }
  template <std::integral T>
  void put(T value) {
    const auto bits = static_cast<std::make_unsigned_t<T>>(value);
    for (size_t i = 0; i < sizeof(T); ++i) out_.push_back(static_cast<std::byte>(bits >> (8 * i)));
  }
  template <std::integral T>
  void put_all(const std::vector<T>& values) {
    for (T value : values) put(value);
  }
  std::span<const std::byte> bytes() const { return out_; }
  std::vector<std::byte> take() { return std::move(out_); }

 private:
  std::vector<std::byte> out_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}
  template <std::integral T>
  T get() {
    if (rest_.size() < sizeof(T)) refuse("ends too early");
    std::make_unsigned_t<T> bits = 0;
    for (size_t i = 0; i < sizeof(T); ++i) bits |= static_cast<std::make_unsigned_t<T>>(std::to_integer<uint64_t>(rest_[i]) << (8 * i));
    rest_ = rest_.subspan(sizeof(T));
    return static_cast<T>(bits);
  }
  // The count comes from the input: it is compared with what is left before anything is allocated.
  template <std::integral T>
  std::vector<T> get_all(uint32_t count) {
    if (count > rest_.size() / sizeof(T)) refuse("ends too early");
    std::vector<T> values(count);
    for (T& value : values) value = get<T>();
    return values;
  }
  size_t left() const { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
};

uint64_t encoded_bytes(const StepPlan& plan) {
  uint64_t bytes = kHeaderBytes + kChecksumBytes;
  for (const PlanSegment& s : plan.segments) bytes += kSegmentBytes + 4 * (s.tokens.size() + s.blocks.size());
  return bytes;
}

void check_segment(const PlanSegment& s, const PlanLimits& limits) {
  const std::string who = "request " + std::to_string(s.request) + ": ";
  if (s.tokens.empty()) refuse(who + "no tokens");
  if (s.sample_rows > s.tokens.size())
    refuse(who + std::to_string(s.sample_rows) + " rows of logits of " + std::to_string(s.tokens.size()) + " rows");
  if (s.candidates > kCandidatesMax)
    refuse(who + std::to_string(s.candidates) + " candidates, at most " + std::to_string(kCandidatesMax) + " are allowed");
  const uint64_t end = uint64_t{s.first_position} + s.tokens.size();
  if (end > limits.context) refuse(who + "position " + std::to_string(end - 1) + " in a context of " + std::to_string(limits.context));
  if (s.blocks.size() != ceil_div(end, compute::kKvBlock))
    refuse(who + std::to_string(s.blocks.size()) + " KV blocks for " + std::to_string(end) + " positions");
  for (int32_t token : s.tokens)
    if (token < 0 || static_cast<uint32_t>(token) >= limits.vocabulary)
      refuse(who + "token id " + std::to_string(token) + " of a vocabulary of " + std::to_string(limits.vocabulary));
  for (uint32_t block : s.blocks)
    if (block >= limits.blocks) refuse(who + "KV block " + std::to_string(block) + " of " + std::to_string(limits.blocks));
}

PlanSegment read_segment(Reader& in) {
  PlanSegment s;
  s.request = in.get<uint64_t>();
  s.first_position = in.get<uint32_t>();
  const auto tokens = in.get<uint32_t>(), blocks = in.get<uint32_t>();
  s.sample_rows = in.get<uint32_t>();
  s.candidates = in.get<uint32_t>();
  s.tokens = in.get_all<int32_t>(tokens);
  s.blocks = in.get_all<uint32_t>(blocks);
  return s;
}

}  // namespace

size_t StepPlan::rows() const {
  size_t rows = 0;
  for (const PlanSegment& s : segments) rows += s.tokens.size();
  return rows;
}

size_t StepPlan::sampled_rows() const {
  size_t rows = 0;
  for (const PlanSegment& s : segments) rows += s.sample_rows;
  return rows;
}

// Every row could be a segment of its own, each as long as the context and with all its blocks.
uint64_t plan_bytes_max(const PlanLimits& limits) {
  const uint64_t blocks = ceil_div(limits.context, compute::kKvBlock);
  return kHeaderBytes + kChecksumBytes + uint64_t{limits.rows} * (kSegmentBytes + 4 + 4 * blocks);
}

std::vector<std::byte> encode(const StepPlan& plan) {
  Writer out(encoded_bytes(plan));
  out.put(kMagic);
  out.put(static_cast<uint32_t>(plan.segments.size()));
  out.put(plan.sequence);
  out.put(static_cast<uint32_t>(plan.rows()));
  out.put(plan.ids);
  for (const PlanSegment& s : plan.segments) {
    out.put(s.request);
    out.put(s.first_position);
    out.put(static_cast<uint32_t>(s.tokens.size()));
    out.put(static_cast<uint32_t>(s.blocks.size()));
    out.put(s.sample_rows);
    out.put(s.candidates);
    out.put_all(s.tokens);
    out.put_all(s.blocks);
  }
  out.put(checksum(out.bytes()));
  return out.take();
}

StepPlan decode_plan(std::span<const std::byte> bytes, const PlanLimits& limits) {
  if (bytes.size() < kHeaderBytes + kChecksumBytes) refuse(std::to_string(bytes.size()) + " bytes are too few");
  if (bytes.size() > plan_bytes_max(limits))
    refuse(std::to_string(bytes.size()) + " bytes, at most " + std::to_string(plan_bytes_max(limits)) + " are allowed");
  const auto content = bytes.first(bytes.size() - kChecksumBytes);
  if (Reader(bytes.last(kChecksumBytes)).get<uint64_t>() != checksum(content)) refuse("checksum does not match");

  Reader in(content);
  if (in.get<uint32_t>() != kMagic) refuse("is no step plan (magic)");
  const auto segments = in.get<uint32_t>();
  StepPlan plan;
  plan.sequence = in.get<uint64_t>();
  const auto rows = in.get<uint32_t>();
  plan.ids = in.get<uint32_t>();
  if (plan.ids > limits.vocabulary) refuse(std::to_string(plan.ids) + " token ids of a vocabulary of " + std::to_string(limits.vocabulary));
  if (rows > limits.rows) refuse(std::to_string(rows) + " rows, at most " + std::to_string(limits.rows) + " are allowed");
  if (segments > in.left() / kSegmentBytes) refuse("ends too early");
  plan.segments.reserve(segments);
  for (uint32_t i = 0; i < segments; ++i) {
    plan.segments.push_back(read_segment(in));
    check_segment(plan.segments.back(), limits);
    if (plan.segments.back().candidates > 0 && plan.ids == 0) refuse("candidates of no token ids");
  }
  if (in.left() != 0) refuse(std::to_string(in.left()) + " bytes too many");
  if (plan.rows() != rows) refuse("says " + std::to_string(rows) + " rows and has " + std::to_string(plan.rows()));
  if (plan.sampled_rows() > limits.logit_rows)
    refuse(std::to_string(plan.sampled_rows()) + " rows of logits, at most " + std::to_string(limits.logit_rows) + " are allowed");
  return plan;
}

}  // namespace verbund::engine
