// Guesses: where they come from, how long they are, and what the scheduler makes of right and wrong ones.
#include "engine/drafter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/ngram_drafter.h"
#include "engine/scheduler_driver.h"

namespace verbund::engine {
namespace {

using namespace scheduler_test;
using testing::ElementsAre;
using testing::IsEmpty;

Tokens guess(NgramDrafter& drafter, const Tokens& tokens, uint32_t max = kDraftMax, uint64_t id = 1) {
  const DraftWish wish{id, tokens, max};
  return drafter.draft({&wish, 1}).at(0);
}

TEST(NgramDrafter, GoesOnAsItDidLastTime) {
  NgramDrafter d;
  EXPECT_THAT(guess(d, {1}), IsEmpty());
  EXPECT_THAT(guess(d, {1, 2, 3, 4, 5, 6, 7, 8}), IsEmpty());
  EXPECT_THAT(guess(d, {1, 2, 3, 4, 5, 6, 7, 8, 9, 2, 3}), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(guess(d, {1, 2, 3, 4, 5, 6, 7, 8, 9, 2, 3}, 3), ElementsAre(4, 5, 6));
  EXPECT_THAT(guess(d, {1, 2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4}), ElementsAre(5, 6, 7, 8, 9, 2));
}

TEST(NgramDrafter, TakesThePlaceWhereMostAgrees) {
  NgramDrafter d;
  EXPECT_THAT(guess(d, {7, 8, 1, 2, 50, 51, 9, 9, 8, 1, 2, 60, 61, 30, 7, 8, 1, 2}, 2), ElementsAre(50, 51));
  EXPECT_THAT(guess(d, {7, 8, 1, 2, 50, 51, 9, 9, 8, 1, 2, 60, 61, 30, 4, 8, 1, 2}, 2, 2), ElementsAre(60, 61));  // the later of equals
}

TEST(NgramDrafter, ALoopGoesOn) {
  NgramDrafter d;
  EXPECT_THAT(guess(d, {5, 6, 7, 5, 6, 7, 5, 6}, 8), ElementsAre(7, 5, 6, 7, 5, 6, 7, 5));
  EXPECT_THAT(guess(d, {5, 5, 5, 5}, 4, 2), ElementsAre(5, 5, 5, 5));
}

// The same in one piece and token by token, over the growth of its tables.
TEST(NgramDrafter, LearnsStepByStep) {
  Tokens tokens;
  for (int32_t i = 0; i < 3000; ++i) tokens.push_back((i * i / 7) % 40);
  NgramDrafter stepwise;
  for (size_t n = 1; n <= tokens.size(); ++n) {
    const Tokens part(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(n));
    const Tokens got = guess(stepwise, part);
    if (n % 97 != 0) continue;
    NgramDrafter whole;
    EXPECT_EQ(got, guess(whole, part)) << n;
  }
  stepwise.forget(1);
  EXPECT_THAT(guess(stepwise, {1, 2}), IsEmpty());
}

TEST(DraftPace, FollowsWhatIsRight) {
  DraftPace pace;
  EXPECT_EQ(pace.next(64), 4u);
  pace.observe(4, 4);
  EXPECT_EQ(pace.next(64), 8u);
  EXPECT_EQ(pace.next(3), 3u);
  pace.observe(8, 3);
  EXPECT_EQ(pace.next(64), 3u);
  for (int i = 0; i < 10; ++i) pace.observe(kDraftMax, kDraftMax);
  EXPECT_EQ(pace.next(1000), kDraftMax);
  // Wrong ones become rarer, and one that is right makes up for them.
  std::vector<int> pauses;
  for (int miss = 0; miss < 7; ++miss) {
    pace.observe(1, 0);
    int pause = 0;
    while (pace.next(64) == 0) ++pause;
    pauses.push_back(pause);
  }
  EXPECT_THAT(pauses, ElementsAre(0, 2, 6, 14, 30, 30, 30));
  pace.observe(1, 1);
  EXPECT_EQ(pace.next(64), 2u);
}

// ---- in the scheduler

struct Scripted : Drafter {
  std::function<Tokens(const DraftWish&)> of;
  std::vector<uint32_t> asked;
  std::vector<std::vector<int32_t>> draft(std::span<const DraftWish> wishes) override {
    std::vector<std::vector<int32_t>> drafts;
    for (const DraftWish& wish : wishes) asked.push_back(wish.max), drafts.push_back(of(wish));
    return drafts;
  }
  void forget(uint64_t) override {}
};

Tokens right(const DraftWish& wish) {
  Tokens whole(wish.tokens.begin(), wish.tokens.end()), draft;
  for (uint32_t i = 0; i < wish.max; ++i) draft.push_back(next_token(whole)), whole.push_back(draft.back());
  return draft;
}

SchedulerConfig speculating() {
  SchedulerConfig config = small();
  config.draft_rows = 16;
  return config;
}

TEST(Speculation, RightGuessesSaveSteps) {
  Scripted drafter;
  drafter.of = right;
  Driver d(speculating(), &drafter);
  d.scheduler.add(request(1, 10, 60));
  d.run();
  EXPECT_EQ(d.answers[1].tokens, solo(request(1, 10, 60), 512));
  EXPECT_EQ(d.answers[1].usage.output_tokens, 60u);
  // 1 with the prompt, then 5, 9, 16, 16; the last step guesses no more than can be used.
  EXPECT_THAT(drafter.asked, ElementsAre(4, 8, 15, 15, 12));
  EXPECT_EQ(d.plans.size(), 6u);
  EXPECT_EQ(d.answers[1].usage.drafted_tokens, d.answers[1].usage.accepted_tokens);
  expect_all_blocks_back(d.scheduler);
}

TEST(Speculation, WhatFollowsAWrongGuessIsDropped) {
  Scripted drafter;
  drafter.of = [](const DraftWish& wish) {
    Tokens draft = right(wish);
    if (draft.size() > 2) draft[2] = (draft[2] + 1) % kVocabulary;
    return draft;
  };
  Driver d(speculating(), &drafter);
  d.scheduler.add(request(1, 10, 60));
  d.run();
  EXPECT_EQ(d.answers[1].tokens, solo(request(1, 10, 60), 512));
  EXPECT_GT(d.answers[1].usage.accepted_tokens, 30u);
  EXPECT_GT(d.answers[1].usage.drafted_tokens, d.answers[1].usage.accepted_tokens);
}

TEST(Speculation, AnEndTokenAmongGuessesEndsTheAnswer) {
  Request r = request(1, 10, 60);
  const Tokens whole = solo(r, 512);
  for (size_t at = 1; at < 20; ++at) {
    Scripted drafter;
    drafter.of = right;
    Driver d(speculating(), &drafter);
    r.eos = {whole[at]};
    d.scheduler.add(r);
    d.run();
    EXPECT_EQ(d.answers[1].tokens, solo(r, 512));
    EXPECT_EQ(d.answers[1].finish, FinishReason::stop);
    EXPECT_EQ(d.answers[1].usage.output_tokens, d.answers[1].tokens.size());
    expect_all_blocks_back(d.scheduler);
  }
}

TEST(Speculation, ARequestThatEndsWhileSamplingGetsNoMoreTokens) {
  Scripted drafter;
  drafter.of = right;
  Driver d(speculating(), &drafter);
  d.scheduler.add(request(1, 10, 60));
  d.step();
  const StepPlan plan = d.scheduler.next().value();
  ASSERT_EQ(plan.segments[0].sample_rows, 5u);
  const Tokens sampled = d.rank.run(plan);
  d.take(d.scheduler.commit(plan, [&](const PlanSegment& s, uint32_t row) -> std::optional<int32_t> {
    if (row < 2) return sampled[row];
    EXPECT_TRUE(d.scheduler.finish(s.request, FinishReason::error));
    return std::nullopt;
  }));
  EXPECT_EQ(d.answers[1].tokens.size(), 3u);
  EXPECT_EQ(d.answers[1].finish, FinishReason::error);
  expect_all_blocks_back(d.scheduler);
}

TEST(Speculation, BusyStepsHaveNoGuessesAndNoBlockIsTakenForThem) {
  Scripted drafter;
  drafter.of = right;
  SchedulerConfig config = speculating();
  config.draft_rows = 4;
  Driver d(config, &drafter);
  for (uint64_t id = 1; id <= 4; ++id) d.scheduler.add(request(id, 10, 20, static_cast<int32_t>(id)));
  d.run();
  EXPECT_THAT(drafter.asked, IsEmpty());
  // Two sequences that fill the memory: guesses reach to the end of the last block only.
  config = {.token_budget = 64,
            .prefill_chunk = 64,
            .max_running = 4,
            .draft_rows = 16,
            .max_waiting = 9,
            .context_max = 64,
            .blocks = 2,
            .vocabulary = kVocabulary};
  Driver full(config, &drafter);
  full.scheduler.add(request(1, 28, 20));
  full.run();
  EXPECT_EQ(full.answers[1].tokens, solo(request(1, 28, 20), 64));
  EXPECT_EQ(full.answers[1].usage.preemptions, 0u);
}

}  // namespace
}  // namespace verbund::engine
