#include "engine/step_plan.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/bytes.h"
#include "base/error.h"

namespace verbund::engine {
namespace {

using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

StepPlan example() {
  StepPlan plan;
  plan.sequence = 0x1122334455667788ull;
  plan.ids = 49150;
  plan.segments.push_back({.request = 7, .first_position = 40, .sample_rows = 1, .tokens = {5}, .blocks = {9, 3}});
  plan.segments.push_back({.request = ~0ull, .first_position = 0, .sample_rows = 0, .tokens = {1, 2, 3, 49151}, .blocks = {0}});
  plan.segments.push_back({.request = 2, .first_position = 31, .sample_rows = 2, .candidates = 256, .tokens = {8, 9}, .blocks = {1, 2}});
  return plan;
}

std::string refusal(std::span<const std::byte> bytes, const PlanLimits& limits = {}) {
  try {
    decode_plan(bytes, limits);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::data_loss);
    EXPECT_EQ(e.lost(), Lost::instance);
    return e.what();
  }
  return "accepted";
}

// Wrong content under a right checksum: what a diverged or hostile peer could send.
Bytes with_u32(Bytes bytes, size_t offset, uint32_t value) {
  for (size_t i = 0; i < 4; ++i) bytes[offset + i] = static_cast<std::byte>(value >> (8 * i));
  const uint64_t sum = checksum(std::span(bytes).first(bytes.size() - 8));
  for (size_t i = 0; i < 8; ++i) bytes[bytes.size() - 8 + i] = static_cast<std::byte>(sum >> (8 * i));
  return bytes;
}

TEST(StepPlan, RoundTrip) {
  const StepPlan plan = example();
  EXPECT_EQ(plan.rows(), 7u);
  EXPECT_EQ(plan.sampled_rows(), 3u);
  EXPECT_EQ(decode_plan(encode(plan)), plan);
  EXPECT_EQ(decode_plan(encode(StepPlan{.sequence = 1, .segments = {}})), (StepPlan{.sequence = 1, .segments = {}}));
}

TEST(StepPlan, WireForm) {
  StepPlan plan;
  plan.sequence = 2;
  plan.ids = 300;
  plan.segments.push_back({.request = 3, .first_position = 1, .sample_rows = 1, .candidates = 9, .tokens = {258}, .blocks = {4}});
  const Bytes bytes = encode(plan);
  const uint8_t start[] = {'V', 'S', 'P', '2', 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 44, 1, 0, 0,              // header
                           3,   0,   0,   0,   0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1,  0, 0, 0, 9, 0, 0, 0,  // segment
                           2,   1,   0,   0,   4, 0, 0, 0};
  ASSERT_EQ(bytes.size(), sizeof start + 8);
  for (size_t i = 0; i < sizeof start; ++i) EXPECT_EQ(std::to_integer<int>(bytes[i]), start[i]) << i;
}

TEST(StepPlan, EveryChangedByteIsDetected) {
  const Bytes good = encode(example());
  for (size_t i = 0; i < good.size(); ++i)
    for (int flip = 1; flip < 256; ++flip) {
      Bytes bad = good;
      bad[i] ^= static_cast<std::byte>(flip);
      ASSERT_NE(refusal(bad), "accepted") << "byte " << i << " xor " << flip;
    }
}

TEST(StepPlan, EveryTruncationAndExtensionIsDetected) {
  Bytes bytes = encode(example());
  for (size_t n = 0; n < bytes.size(); ++n) ASSERT_NE(refusal(std::span(bytes).first(n)), "accepted") << n;
  bytes.push_back(std::byte{0});
  EXPECT_THAT(refusal(bytes), HasSubstr("checksum"));
}

TEST(StepPlan, WrongContentUnderARightChecksum) {
  const Bytes good = encode(example());
  constexpr size_t kFirstSegment = 24;
  EXPECT_EQ(refusal(with_u32(good, 4, 3)), "accepted");  // unchanged
  EXPECT_THAT(refusal(with_u32(good, 0, 1)), HasSubstr("magic"));
  EXPECT_THAT(refusal(with_u32(good, 4, 0xffffffff)), HasSubstr("ends too early"));  // segments
  EXPECT_THAT(refusal(with_u32(good, 4, 2)), HasSubstr("bytes too many"));
  EXPECT_THAT(refusal(with_u32(good, 16, 8)), HasSubstr("says 8 rows and has 7"));
  EXPECT_THAT(refusal(with_u32(good, 16, 0xffffffff)), HasSubstr("rows, at most"));
  EXPECT_THAT(refusal(with_u32(good, kFirstSegment + 8, 64)), HasSubstr("2 KV blocks for 65 positions"));
  EXPECT_THAT(refusal(with_u32(good, kFirstSegment + 8, 0xffffffff)), HasSubstr("position 4294967295"));
  EXPECT_THAT(refusal(with_u32(good, kFirstSegment + 12, 0xffffffff)), HasSubstr("ends too early"));  // tokens
  EXPECT_THAT(refusal(with_u32(good, kFirstSegment + 12, 0)), HasSubstr("no tokens"));
  EXPECT_THAT(refusal(with_u32(good, kFirstSegment + 16, 0x40000001)), HasSubstr("ends too early"));  // blocks
  EXPECT_THAT(refusal(with_u32(good, kFirstSegment + 20, 2)), HasSubstr("2 rows of logits of 1 rows"));
  EXPECT_THAT(refusal(with_u32(good, kFirstSegment + 24, 257)), HasSubstr("257 candidates, at most 256"));
  EXPECT_THAT(refusal(with_u32(good, kFirstSegment + 24, 0xffffffff)), HasSubstr("candidates, at most 256"));
  EXPECT_THAT(refusal(with_u32(good, kFirstSegment + 28, 0xffffffff)), HasSubstr("token id -1"));
  EXPECT_THAT(refusal(with_u32(good, 20, 0)), HasSubstr("candidates of no token ids"));
  EXPECT_THAT(refusal(with_u32(good, 20, 0xffffffff)), HasSubstr("4294967295 token ids of a vocabulary of"));
}

TEST(StepPlan, LimitsOfARank) {
  const Bytes bytes = encode(example());
  const PlanLimits enough{.rows = 7, .logit_rows = 3, .context = 41, .blocks = 10, .vocabulary = 49152};
  EXPECT_EQ(refusal(bytes, enough), "accepted");
  EXPECT_LE(bytes.size(), plan_bytes_max(enough));
  PlanLimits limits = enough;
  limits.rows = 6;
  EXPECT_THAT(refusal(bytes, limits), HasSubstr("7 rows, at most 6"));
  limits = enough, limits.logit_rows = 2;
  EXPECT_THAT(refusal(bytes, limits), HasSubstr("3 rows of logits, at most 2"));
  limits = enough, limits.context = 40;
  EXPECT_THAT(refusal(bytes, limits), HasSubstr("request 7: position 40 in a context of 40"));
  limits = enough, limits.blocks = 9;
  EXPECT_THAT(refusal(bytes, limits), HasSubstr("KV block 9 of 9"));
  limits = enough, limits.vocabulary = 49151;
  EXPECT_THAT(refusal(bytes, limits), HasSubstr("token id 49151 of a vocabulary of 49151"));
  limits = enough, limits.vocabulary = 49149;
  EXPECT_THAT(refusal(bytes, limits), HasSubstr("49150 token ids of a vocabulary of 49149"));
  EXPECT_THAT(refusal(bytes, {.rows = 1, .context = 32, .blocks = 1, .vocabulary = 1}), HasSubstr("bytes, at most"));
}

TEST(StepPlan, RandomBytesUnderARightChecksumNeverCrash) {
  std::mt19937 random(1);
  const Bytes good = encode(example());
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    const size_t offset = random() % ((good.size() - 12) / 4) * 4;
    accepted += refusal(with_u32(good, offset, random() % 3 ? random() % 70 : random())) == "accepted";
  }
  EXPECT_GT(accepted, 0);  // ids, sequence numbers, tokens may be anything
  EXPECT_LT(accepted, 15000);
}

}  // namespace
}  // namespace verbund::engine
