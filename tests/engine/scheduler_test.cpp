#include "engine/scheduler.h"

#include <algorithm>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/scheduler_driver.h"

namespace verbund::engine {
namespace {

using namespace scheduler_test;
using testing::HasSubstr;

// ---- one request

TEST(Scheduler, OneRequestInChunksThenTokenByToken) {
  Driver d(small());
  d.scheduler.add(request(1, 40, 3));
  d.run();
  ASSERT_EQ(d.plans.size(), 5u);
  const size_t first[] = {0, 16, 32, 40, 41}, rows[] = {16, 16, 8, 1, 1};
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(d.plans[i].sequence, i + 1);
    ASSERT_EQ(d.plans[i].segments.size(), 1u);
    EXPECT_EQ(d.plans[i].segments[0].first_position, first[i]);
    EXPECT_EQ(d.plans[i].segments[0].tokens.size(), rows[i]);
    EXPECT_EQ(d.plans[i].segments[0].sample_rows, i >= 2);
  }
  const Answer& a = d.answers[1];
  EXPECT_EQ(a.tokens, solo(request(1, 40, 3), 512));
  EXPECT_EQ(a.finish, FinishReason::length);
  EXPECT_EQ(a.usage.prompt_tokens, 40u);
  EXPECT_EQ(a.usage.output_tokens, 3u);
  EXPECT_TRUE(d.scheduler.idle());
  expect_all_blocks_back(d.scheduler);
}

TEST(Scheduler, EndsAtEndTokenMaxTokensAndContext) {
  Driver d(small());
  const Request plain = request(1, 5, 30);
  const int32_t third = solo(plain, 512)[2];
  Request eos = plain, ignoring = plain, full = request(4, 500, kNoTokenLimit);
  eos.eos = {kVocabulary - 1, third};
  ignoring.id = 2;
  ignoring.eos = eos.eos;
  ignoring.ignore_eos = true;
  eos.id = 3;
  for (const Request& r : {plain, ignoring, eos, full}) d.scheduler.add(r);
  d.run();
  EXPECT_EQ(d.answers[1].tokens.size(), 30u);
  EXPECT_EQ(d.answers[2].tokens, d.answers[1].tokens);
  EXPECT_EQ(d.answers[3].finish, FinishReason::stop);
  EXPECT_EQ(d.answers[3].tokens.size(), 3u);
  EXPECT_EQ(d.answers[3].tokens.back(), third);
  EXPECT_EQ(d.answers[4].finish, FinishReason::length);
  EXPECT_EQ(d.answers[4].tokens.size(), 12u);  // 512 in all
}

TEST(Scheduler, MaxTokensZeroEndsWithoutAStep) {
  Driver d(small());
  d.scheduler.add(request(1, 40, 0));
  EXPECT_FALSE(d.step());
  EXPECT_EQ(d.answers[1].finish, FinishReason::length);
  EXPECT_TRUE(d.answers[1].tokens.empty());
  EXPECT_EQ(d.answers[1].usage.prompt_tokens, 40u);
  EXPECT_TRUE(d.scheduler.idle());
}

TEST(Scheduler, RefusesWhatCannotRun) {
  Scheduler s(small());
  const auto refusal = [&](Request r) {
    try {
      s.add(std::move(r));
    } catch (const Error& e) { return std::string(to_string(e.code())) + ": " + e.what(); }
    return std::string("accepted");
  };
  EXPECT_THAT(refusal(request(1, 0, 5)), HasSubstr("invalid_argument: prompt is empty"));
  EXPECT_THAT(refusal(request(1, 513, 5)), AllOf(HasSubstr("513"), HasSubstr("512")));
  Request bad = request(1, 5, 5);
  bad.params.top_p = 2;
  EXPECT_THAT(refusal(bad), HasSubstr("top_p"));
  EXPECT_TRUE(s.idle());
  EXPECT_EQ(refusal(request(1, 5, 5)), "accepted");
  EXPECT_THAT(refusal(request(1, 5, 5)), HasSubstr("id 1 is in use"));
  for (uint64_t id = 2; id <= 100; ++id) s.add(request(id, 5, 5));
  EXPECT_THAT(refusal(request(101, 5, 5)), HasSubstr("resource_exhausted: the queue is full: 100"));
}

TEST(Scheduler, RefusesAnImpossibleConfiguration) {
  const auto refusal = [](auto change) {
    SchedulerConfig config = small();
    change(config);
    try {
      Scheduler s(config);
    } catch (const Error& e) { return std::string(e.what()); }
    return std::string("accepted");
  };
  EXPECT_THAT(refusal([](SchedulerConfig& c) { c.blocks = 15; }),
              AllOf(HasSubstr("needs 16 KV blocks, there are 15"), HasSubstr("at most 480")));
  EXPECT_EQ(refusal([](SchedulerConfig& c) { c.blocks = 16; }), "accepted");
  EXPECT_THAT(refusal([](SchedulerConfig& c) { c.token_budget = 0; }), HasSubstr("token_budget"));
  EXPECT_THAT(refusal([](SchedulerConfig& c) { c.prefill_chunk = 0; }), HasSubstr("prefill_chunk"));
}

TEST(Scheduler, PlansAreCommittedInTurn) {
  Scheduler s(small());
  s.add(request(1, 5, 5));
  const StepPlan plan = s.next().value();
  EXPECT_THROW(s.next(), Error);
  StepPlan other = plan;
  other.sequence = 9;
  EXPECT_THROW(s.abandon(other), Error);
  const Tokens sampled{3};
  s.commit(plan, rows_of(plan, sampled));
  EXPECT_THROW(s.commit(plan, rows_of(plan, sampled)), Error);
}

// ---- several requests

TEST(Scheduler, ALongPromptDelaysStreamsByAtMostOneChunk) {
  SchedulerConfig config = small();
  config.context_max = 2048;
  config.blocks = 200;
  Driver d(config);
  for (uint64_t id = 1; id <= 4; ++id) d.scheduler.add(request(id, 8, 200, static_cast<int32_t>(id)));
  d.step();
  d.step();
  d.scheduler.add(request(5, 2000, 1));
  while (!d.answers[5].finish) {
    ASSERT_TRUE(d.step());
    const StepPlan& plan = d.plans.back();
    ASSERT_EQ(plan.segments.size(), 5u);
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(plan.segments[i].tokens.size(), 1u);  // every stream gets its token
    EXPECT_LE(plan.segments[4].tokens.size(), 16u);
  }
  EXPECT_EQ(d.rank.steps_of(5), 125u);
}

TEST(Scheduler, LongPromptsDoNotStarveAShortOne) {
  SchedulerConfig config = small();
  config.token_budget = 16;
  Driver d(config);
  for (uint64_t id = 1; id <= 3; ++id) d.scheduler.add(request(id, 480, 1, static_cast<int32_t>(id)));
  d.step();
  d.scheduler.add(request(4, 10, 1));
  size_t steps = 0;
  for (; !d.answers[4].finish; ++steps) ASSERT_TRUE(d.step());
  EXPECT_LE(steps, 4u);  // one chunk of each long one at most
  d.run();
  std::vector<size_t> order;
  for (const StepPlan& plan : d.plans)
    for (const PlanSegment& s : plan.segments)
      if (s.sample_rows) order.push_back(s.request);
  EXPECT_EQ(order, (std::vector<size_t>{4, 1, 2, 3}));
}

TEST(Scheduler, AdmissionLeavesABlockForEachRunningSequence) {
  SchedulerConfig config = small();
  config.blocks = 16;
  Driver d(config);
  d.scheduler.add(request(1, 224, 40, 1));  // 7 blocks
  d.scheduler.add(request(2, 250, 40, 2));  // 8 blocks, one is left for request 1
  d.scheduler.add(request(3, 20, 40, 3));   // would take it
  d.step();
  EXPECT_EQ(d.scheduler.stats().running, 2u);
  EXPECT_EQ(d.scheduler.stats().blocks.free, 1u);
  d.run();
  EXPECT_EQ(d.answers[1].usage.preemptions, 0u);
  EXPECT_EQ(d.answers[3].usage.preemptions, 0u);
  EXPECT_EQ(d.answers[3].tokens, solo(request(3, 20, 40, 3), 512));
}

TEST(Scheduler, NoMoreRunThanAStepHasRows) {
  SchedulerConfig config = small();
  config.token_budget = 4;
  Driver d(config);
  for (uint64_t id = 1; id <= 6; ++id) d.scheduler.add(request(id, 5, 10, static_cast<int32_t>(id)));
  d.step();
  EXPECT_EQ(d.scheduler.stats().running, 4u);
  EXPECT_EQ(d.scheduler.stats().waiting, 2u);
  d.run();
  for (const StepPlan& plan : d.plans) EXPECT_LE(plan.rows(), 4u);
  EXPECT_EQ(d.answers.size(), 6u);
}

TEST(Scheduler, PriorityGoesFirstEqualsByArrival) {
  SchedulerConfig config = small();
  config.max_running = 1;
  Driver d(config);
  for (uint64_t id = 1; id <= 4; ++id) {
    Request r = request(id, 5, 2, static_cast<int32_t>(id));
    r.priority = id == 3 ? 1 : 0;
    d.scheduler.add(r);
  }
  d.run();
  std::vector<uint64_t> order;
  for (const StepPlan& plan : d.plans)
    if (order.empty() || order.back() != plan.segments[0].request) order.push_back(plan.segments[0].request);
  EXPECT_EQ(order, (std::vector<uint64_t>{3, 1, 2, 4}));
}

TEST(Scheduler, SameRequestAgainUsesTheCacheAndComputesAtLeastOneToken) {
  Driver d(small());
  d.scheduler.add(request(1, 96, 10));
  d.run();
  d.scheduler.add(request(2, 96, 10));
  d.run();
  EXPECT_EQ(d.answers[2].tokens, d.answers[1].tokens);
  EXPECT_EQ(d.answers[1].usage.cached_tokens, 0u);
  EXPECT_EQ(d.answers[2].usage.cached_tokens, 64u);  // 95 at most, in whole blocks
  // Prompt = previous prompt + its output.
  Request next = request(3, 96, 10);
  next.prompt.insert(next.prompt.end(), d.answers[1].tokens.begin(), d.answers[1].tokens.end());
  const Tokens expected = solo(next, 512);
  d.scheduler.add(next);
  d.run();
  EXPECT_EQ(d.answers[3].usage.cached_tokens, 96u);
  EXPECT_EQ(d.answers[3].tokens, expected);
}

TEST(Scheduler, InterleavedConversationsWithASmallCache) {
  SchedulerConfig config = small();
  config.context_max = 640;
  config.blocks = 24;
  Driver d(config);
  Tokens history[2];
  for (int c = 0; c < 2; ++c) history[c] = request(0, 70, 1).prompt;  // the shared system prompt
  uint64_t id = 0, cached = 0;
  for (int turn = 0; turn < 20; ++turn)
    for (int c = 0; c < 2; ++c) {
      Request r;
      r.id = ++id;
      for (int i = 0; i < 12; ++i) history[c].push_back(100 * (c + 1) + turn);
      r.prompt = history[c];
      r.max_tokens = 13;
      d.scheduler.add(r);
      d.run();
      ASSERT_EQ(d.answers[id].tokens, solo(r, 640)) << "turn " << turn << " of conversation " << c;
      history[c].insert(history[c].end(), d.answers[id].tokens.begin(), d.answers[id].tokens.end());
      cached += d.answers[id].usage.cached_tokens;
    }
  EXPECT_GT(cached, 3000u);
  EXPECT_GT(d.scheduler.stats().blocks.evictions, 0u);
}

TEST(Scheduler, StateIsFlatOverRepeats) {
  SchedulerConfig config = small();
  config.context_max = 12'032;
  config.blocks = 400;
  config.token_budget = config.prefill_chunk = 4096;
  Driver d(config);
  std::optional<BlockStats> third;
  for (uint64_t i = 1; i <= 80; ++i) {
    d.scheduler.add(request(i, 12'000, 2));
    d.run();
    const BlockStats s = d.scheduler.stats().blocks;
    EXPECT_EQ(s.used, 0u);
    if (i == 3) third = s;
    if (third) { EXPECT_EQ(s.cached, third->cached); }
    EXPECT_EQ(d.answers[i].tokens, d.answers[1].tokens);
  }
}

// ---- ends from outside

TEST(Scheduler, CancelWhileQueuedInPrefillAndInDecode) {
  SchedulerConfig config = small();
  config.max_running = 2;
  Driver d(config);
  d.scheduler.add(request(1, 5, 100));
  d.scheduler.add(request(2, 400, 100));
  d.scheduler.add(request(3, 5, 100));
  for (int i = 0; i < 4; ++i) d.step();
  EXPECT_TRUE(d.scheduler.cancel(3));
  EXPECT_TRUE(d.scheduler.cancel(2));
  d.step();
  EXPECT_EQ(d.plans.back().segments.size(), 1u);
  EXPECT_EQ(d.answers[2].finish, FinishReason::cancelled);
  EXPECT_EQ(d.answers[3].finish, FinishReason::cancelled);
  EXPECT_EQ(d.rank.steps_of(3), 0u);  // never started
  EXPECT_TRUE(d.scheduler.cancel(1));
  EXPECT_FALSE(d.scheduler.cancel(1));
  EXPECT_FALSE(d.scheduler.cancel(99));
  EXPECT_FALSE(d.step());
  EXPECT_EQ(d.answers[1].finish, FinishReason::cancelled);
  EXPECT_EQ(d.answers[1].usage.output_tokens, d.answers[1].tokens.size());
  expect_all_blocks_back(d.scheduler);
}

TEST(Scheduler, CancelDuringAStepDropsItsTokenAndKeepsItsBlocksUntilThen) {
  Driver d(small());
  d.scheduler.add(request(1, 5, 100));
  d.scheduler.add(request(2, 5, 100, 2));
  d.step();
  const StepPlan plan = d.scheduler.next().value();
  EXPECT_TRUE(d.scheduler.cancel(1));
  EXPECT_FALSE(d.scheduler.cancel(1));
  EXPECT_NE(d.scheduler.find(1), nullptr);  // the sampler may still ask
  EXPECT_EQ(d.scheduler.stats().blocks.used, 2u);
  d.commit(plan, d.rank.run(plan));
  EXPECT_EQ(d.scheduler.find(1), nullptr);
  EXPECT_EQ(d.answers[1].tokens.size(), 1u);
  EXPECT_EQ(d.answers[1].finish, FinishReason::cancelled);
  EXPECT_EQ(d.answers[2].tokens.size(), 2u);
  EXPECT_EQ(d.scheduler.stats().blocks.used, 1u);
}

TEST(Scheduler, AFailedStepIsRepeatedWithoutTheRequestAtFault) {
  Driver d(small());
  d.scheduler.add(request(1, 50, 20));
  d.scheduler.add(request(2, 50, 20, 2));
  for (int i = 0; i < 6; ++i) d.step();
  const StepPlan plan = d.scheduler.next().value();
  d.rank.run(plan);  // some of it was written
  EXPECT_TRUE(d.scheduler.finish(1, FinishReason::error));
  d.scheduler.abandon(plan);
  d.run();
  EXPECT_EQ(d.answers[1].finish, FinishReason::error);
  EXPECT_EQ(d.answers[2].tokens, solo(request(2, 50, 20, 2), 512));
  expect_all_blocks_back(d.scheduler);
}

// ---- replay

TEST(Scheduler, AnInterruptedAnswerGoesOnWhereItWas) {
  const Request whole = request(1, 60, 40);
  const Tokens expected = solo(whole, 512);
  for (size_t done : {1u, 20u, 39u, 40u}) {
    Driver d(small());
    Request rest = whole;
    rest.params.presence_penalty = 1;
    rest.generated.assign(expected.begin(), expected.begin() + static_cast<ptrdiff_t>(done));
    d.scheduler.add(rest);
    if (done < 40) {
      size_t counted = 0;
      for (const auto& entry : d.scheduler.find(1)->history.entries()) counted += entry.output_count;
      EXPECT_EQ(counted, done);
    }
    d.run();
    EXPECT_EQ(d.answers[1].tokens, Tokens(expected.begin() + static_cast<ptrdiff_t>(done), expected.end()));
    EXPECT_EQ(d.answers[1].usage.output_tokens, 40u);
    EXPECT_EQ(d.answers[1].usage.prompt_tokens, 60u);
  }
}

TEST(Scheduler, HistoryFollowsTheTokens) {
  Driver d(small());
  Request r = request(1, 10, 5);
  r.params.repetition_penalty = 1.1f;
  d.scheduler.add(r);
  d.scheduler.add(request(2, 10, 5));
  d.step();
  d.step();
  std::map<int32_t, uint32_t> counts;
  for (const auto& entry : d.scheduler.find(1)->history.entries()) counts[entry.id] = entry.output_count;
  const Tokens output = d.answers[1].tokens;
  ASSERT_EQ(output.size(), 2u);
  for (int32_t id : r.prompt) EXPECT_TRUE(counts.contains(id));
  for (int32_t id : output) EXPECT_EQ(counts[id], std::ranges::count(output, id));
  EXPECT_TRUE(d.scheduler.find(2)->history.entries().empty());
}

TEST(Scheduler, PreemptsTheYoungestOfTheLowestPriorityAndNobodyNotices) {
  SchedulerConfig config = small();
  config.context_max = 256;
  config.blocks = 10;
  Driver d(config);
  for (uint64_t id = 1; id <= 3; ++id) {
    Request r = request(id, 20, 200, static_cast<int32_t>(id));
    r.priority = id == 2 ? 1 : 0;
    d.scheduler.add(r);
  }
  d.run();
  for (uint64_t id = 1; id <= 3; ++id) {
    EXPECT_EQ(d.answers[id].tokens, solo(request(id, 20, 200, static_cast<int32_t>(id)), 256));
    EXPECT_EQ(d.answers[id].finish, FinishReason::length);
  }
  EXPECT_EQ(d.answers[2].usage.preemptions, 0u);
  EXPECT_GT(d.answers[3].usage.preemptions, 0u);
  EXPECT_LE(d.answers[1].usage.preemptions, d.answers[3].usage.preemptions);
  EXPECT_LE(d.scheduler.stats().preemptions, 6u);  // the reserve keeps it from thrashing
  expect_all_blocks_back(d.scheduler);
}

// Positions of the prompt that rows of logits spoke of, per request, in the order of the steps.
std::map<uint64_t, std::vector<size_t>> scored_positions(const Driver& d, const std::map<uint64_t, Request>& requests) {
  std::map<uint64_t, std::vector<size_t>> scored;
  for (const StepPlan& plan : d.plans)
    for (const PlanSegment& s : plan.segments)
      for (size_t next = s.first_position + s.tokens.size() - s.sample_rows + 1; next <= s.first_position + s.tokens.size(); ++next)
        if (next < requests.at(s.request).prompt.size()) scored[s.request].push_back(next);
  return scored;
}

TEST(Scheduler, TokensOfAScoredPromptGetTheirLogitsOnceAndAStepHasABoundedNumber) {
  for (const uint32_t score_rows : {0u, 5u, 1000u}) {
    SchedulerConfig config = small();
    config.score_rows = score_rows;
    config.blocks = 10;  // some are preempted
    config.context_max = 256;
    Driver d(config);
    std::map<uint64_t, Request> requests;
    const auto add = [&](uint64_t id, size_t prompt, uint32_t from, size_t generated) {
      Request r = request(id, prompt, 120, static_cast<int32_t>(100 * id));
      const Tokens whole = solo(r, config.context_max);
      r.generated.assign(whole.begin(), whole.begin() + static_cast<long>(generated));
      r.score_from = from;
      requests[id] = r;
      d.scheduler.add(std::move(r));
    };
    add(1, 100, 40, 0);
    add(2, 50, 1, 0);
    add(3, 60, 0, 0);
    add(4, 70, 69, 7);
    add(5, 1, 1, 0);  // nothing to score
    add(6, 90, 30, 50);
    d.run();
    EXPECT_GT(d.answers[2].usage.preemptions + d.answers[4].usage.preemptions + d.answers[6].usage.preemptions, 0u);
    const auto scored = scored_positions(d, requests);
    for (const auto& [id, r] : requests) {
      std::vector<size_t> expected;
      for (size_t p = r.score_from; r.score_from > 0 && p < r.prompt.size(); ++p) expected.push_back(p);
      EXPECT_EQ(scored.contains(id) ? scored.at(id) : std::vector<size_t>(), expected) << id << " with " << score_rows;
      Tokens tokens = r.generated;
      tokens.insert(tokens.end(), d.answers[id].tokens.begin(), d.answers[id].tokens.end());
      EXPECT_EQ(tokens, solo(request(id, r.prompt.size(), 120, static_cast<int32_t>(100 * id)), config.context_max)) << id;
    }
    for (const StepPlan& plan : d.plans) EXPECT_LE(plan.sampled_rows(), plan.segments.size() + score_rows);
    expect_all_blocks_back(d.scheduler);
  }
}

TEST(Scheduler, WhatPrecedesTheScoredTokensComesFromTheCache) {
  Driver d(small());
  d.scheduler.add(request(1, 200, 1));
  d.run();
  for (const auto& [from, cached] : std::map<uint32_t, uint32_t>{{1, 0}, {32, 0}, {33, 32}, {70, 64}, {199, 192}}) {
    Request r = request(1 + from, 200, 1);
    r.score_from = from;
    d.scheduler.add(std::move(r));
    d.run();
    EXPECT_EQ(d.answers[1 + from].usage.cached_tokens, cached) << from;
  }
}

}  // namespace
}  // namespace verbund::engine
