#include "engine/request.h"

#include <cmath>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace verbund::engine {
namespace {

using testing::HasSubstr;

Request valid() {
  Request r;
  r.prompt = {1, 2, 3};
  r.max_tokens = 10;
  return r;
}

std::string refusal(const Request& r) {
  try {
    r.validate(100, 64);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::invalid_argument);
    return e.what();
  }
  return "accepted";
}

std::string refusal(const std::function<void(Request&)>& change) {
  Request r = valid();
  change(r);
  return refusal(r);
}

TEST(Request, AcceptsWhatHasADefinedResult) {
  Request r = valid();
  r.params = {.temperature = 0,
              .top_k = 10'000'000,
              .top_p = 0,
              .min_p = 1,
              .repetition_penalty = 0.5f,
              .frequency_penalty = -2,
              .presence_penalty = 2,
              .logit_bias = {{0, -100.f}, {99, 100.f}}};
  r.stop = {"\n", "Ende"};
  r.max_tokens = 0;
  EXPECT_EQ(refusal(r), "accepted");
}

TEST(Request, NamesTheWrongField) {
  EXPECT_THAT(refusal([](Request& r) { r.score_from = 4; }), HasSubstr("score_from is position 4 of a prompt of 3 tokens"));
  EXPECT_EQ(refusal([](Request& r) { r.score_from = 3; }), "accepted");
  const float nan = std::nanf(""), inf = INFINITY;
  for (float t : {-1.f, nan, inf}) EXPECT_THAT(refusal([&](Request& r) { r.params.temperature = t; }), HasSubstr("temperature"));
  for (float p : {-0.1f, 2.f, nan}) EXPECT_THAT(refusal([&](Request& r) { r.params.top_p = p; }), HasSubstr("top_p"));
  for (float p : {-0.1f, 1.1f, nan}) EXPECT_THAT(refusal([&](Request& r) { r.params.min_p = p; }), HasSubstr("min_p"));
  for (float p : {0.f, -1.f, nan, inf})
    EXPECT_THAT(refusal([&](Request& r) { r.params.repetition_penalty = p; }), HasSubstr("repetition_penalty"));
  for (float p : {nan, inf, -inf}) {
    EXPECT_THAT(refusal([&](Request& r) { r.params.frequency_penalty = p; }), HasSubstr("frequency_penalty"));
    EXPECT_THAT(refusal([&](Request& r) { r.params.presence_penalty = p; }), HasSubstr("presence_penalty"));
    EXPECT_THAT(refusal([&](Request& r) { r.params.logit_bias = {{5, p}}; }), HasSubstr("logit_bias of token 5"));
  }
  EXPECT_THAT(refusal([](Request& r) { r.params.top_k = -1; }), HasSubstr("top_k"));
  for (int32_t id : {-1, 100}) {
    EXPECT_THAT(refusal([&](Request& r) { r.params.logit_bias = {{id, 1.f}}; }), HasSubstr("logit_bias"));
    EXPECT_THAT(refusal([&](Request& r) { r.prompt[1] = id; }), HasSubstr("prompt[1] is token id " + std::to_string(id)));
    EXPECT_THAT(refusal([&](Request& r) { r.generated = {id}; }), HasSubstr("generated[0]"));
  }
}

TEST(Request, PromptAgainstContext) {
  EXPECT_THAT(refusal([](Request& r) { r.prompt.clear(); }), HasSubstr("prompt is empty"));
  EXPECT_THAT(refusal([](Request& r) { r.prompt.assign(65, 1); }), AllOf(HasSubstr("65"), HasSubstr("64")));
  EXPECT_THAT(refusal([](Request& r) { r.prompt.assign(64, 1); }), AllOf(HasSubstr("64 tokens"), HasSubstr("together with the answer")));
  EXPECT_EQ(refusal([](Request& r) { r.prompt.assign(63, 1); }), "accepted");
  EXPECT_EQ(refusal([](Request& r) { r.prompt.assign(64, 1), r.max_tokens = 0; }), "accepted");
  EXPECT_THAT(refusal([](Request& r) { r.prompt.assign(60, 1), r.generated.assign(5, 1); }), HasSubstr("65"));
}

TEST(Request, StopStrings) {
  EXPECT_THAT(refusal([](Request& r) { r.stop = {"a", ""}; }), HasSubstr("stop[1] is empty"));
  EXPECT_THAT(refusal([](Request& r) { r.stop = {"\xc3\x28"}; }), HasSubstr("stop[0] is not valid UTF-8"));
  EXPECT_THAT(refusal([](Request& r) { r.stop.assign(10'000, "x"); }), HasSubstr("10000 strings"));
  EXPECT_THAT(refusal([](Request& r) { r.stop = {std::string(kStopBytesMax + 1, 'x')}; }), HasSubstr("4097 bytes"));
}

TEST(Request, SeedIsKeptOrDrawnOnce) {
  SamplingParams given{.seed = 0};
  EXPECT_EQ(ensure_seed(given), 0u);
  SamplingParams a, b;
  EXPECT_EQ(ensure_seed(a), ensure_seed(a));
  EXPECT_NE(ensure_seed(a), ensure_seed(b));
}

}  // namespace
}  // namespace verbund::engine
