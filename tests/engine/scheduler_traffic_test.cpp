// Random arrivals, cancellations and failed steps against the promises of the scheduler, from seeds.
#include <algorithm>
#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "engine/scheduler.h"
#include "engine/scheduler_driver.h"

namespace verbund::engine {
namespace {

using namespace scheduler_test;

// Watches what the scheduler promises of each plan.
class Watch {
 public:
  explicit Watch(const SchedulerConfig& config) : config_(config) {}

  void before(const StepPlan& plan, const Scheduler& scheduler) {
    ASSERT_GE(plan.rows(), 1u);
    ASSERT_LE(plan.rows(), config_.token_budget);
    size_t prefill = 0, decode_rows = 0;
    bool decodes = false;
    std::map<uint32_t, uint64_t> written;
    for (const PlanSegment& s : plan.segments) {
      const Sequence& sequence = *scheduler.find(s.request);
      const size_t end = s.first_position + s.tokens.size();
      const size_t drafted = end - std::min(end, sequence.tokens.size());
      ASSERT_TRUE(drafted == 0 || (s.first_position + 1 == sequence.tokens.size() && end < config_.context_max));
      ASSERT_TRUE(std::ranges::equal(std::span(s.tokens).first(s.tokens.size() - drafted),
                                     std::span(sequence.tokens).subspan(s.first_position, s.tokens.size() - drafted)));
      ASSERT_EQ(s.sample_rows, end >= sequence.tokens.size() ? drafted + 1 : 0);
      decode_rows += s.first_position + 1 == sequence.tokens.size() ? s.tokens.size() : 0;
      ASSERT_TRUE(drafted > 0 || s.tokens.size() <= config_.prefill_chunk);
      // In order and once, unless it starts anew on a block border (admission with a prefix from the cache).
      size_t& computed = computed_[s.request];
      if (s.first_position != computed && !(drafted_.contains(s.request) && s.first_position > computed)) {
        ASSERT_EQ(s.first_position % kKvBlock, 0u);
        ASSERT_TRUE(!started_.contains(s.request) || scheduler.stats().preemptions > preemptions_at_[s.request]);
        preemptions_at_[s.request] = scheduler.stats().preemptions;
      }
      started_.insert(s.request);
      computed = end - drafted;
      if (s.first_position + 1 == sequence.tokens.size())
        decodes = true;
      else
        prefill += s.tokens.size();
      for (size_t b = s.first_position / kKvBlock; b * kKvBlock < end; ++b) ASSERT_TRUE(written.emplace(s.blocks[b], s.request).second);
    }
    // A stream gets a token in every step until it ends or is preempted.
    if (scheduler.stats().preemptions == preemptions_) {
      for (uint64_t id : streams_)
        ASSERT_TRUE(!scheduler.find(id) || std::ranges::count(plan.segments, id, &PlanSegment::request)) << "request " << id;
    }
    preemptions_ = scheduler.stats().preemptions;
    streams_.clear();
    for (const PlanSegment& s : plan.segments)
      if (s.sample_rows) streams_.push_back(s.request);
    drafted_.clear();
    for (const PlanSegment& s : plan.segments)
      if (s.sample_rows > 1) drafted_.insert(s.request);  // some of it may turn out right
    if (decode_rows > streams_.size()) { ASSERT_LE(decode_rows, config_.draft_rows); }
    // What is written now is in nobody else's table.
    for (const PlanSegment& s : plan.segments)
      for (uint32_t block : s.blocks) ASSERT_TRUE(!written.contains(block) || written[block] == s.request);
    if (decodes) { ASSERT_LE(prefill, config_.prefill_chunk); }
  }

 private:
  SchedulerConfig config_;
  std::map<uint64_t, size_t> computed_;
  std::map<uint64_t, uint64_t> preemptions_at_;
  std::set<uint64_t> started_, drafted_;
  std::vector<uint64_t> streams_;
  uint64_t preemptions_ = 0;
};

struct Totals {
  uint64_t requests = 0, cancelled = 0, preemptions = 0, hits = 0, abandoned = 0, drafted = 0, accepted = 0;
};

// Knows the fake model, and is wrong now and then; sometimes for a while.
class RandomDrafter : public Drafter {
 public:
  explicit RandomDrafter(uint32_t seed) : random_(seed) {}
  std::vector<std::vector<int32_t>> draft(std::span<const DraftWish> wishes) override {
    std::vector<std::vector<int32_t>> drafts;
    for (const DraftWish& wish : wishes) {
      EXPECT_GE(wish.max, 1u);
      Tokens whole(wish.tokens.begin(), wish.tokens.end());
      Tokens& draft = drafts.emplace_back();
      const bool lost = random_() % 4 == 0;
      for (uint32_t n = random_() % (wish.max + 1); n > 0; --n) {
        draft.push_back(lost || random_() % 8 == 0 ? static_cast<int32_t>(random_() % kVocabulary) : next_token(whole));
        whole.push_back(draft.back());
      }
      known_.insert(wish.request);
    }
    return drafts;
  }
  void forget(uint64_t request) override { known_.erase(request); }
  const std::set<uint64_t>& known() const { return known_; }

 private:
  std::mt19937 random_;
  std::set<uint64_t> known_;
};

Request random_request(uint64_t id, std::mt19937& random, const SchedulerConfig& config) {
  Request r;
  r.id = id;
  // Beginnings come from a small tree, so that prefixes are shared; ends differ.
  const size_t shared = random() % 4 * 24, own = 1 + random() % (random() % 8 == 0 ? 150 : 20);
  for (size_t i = 0; i < shared; ++i) r.prompt.push_back(static_cast<int32_t>(i / 48 == 1 ? random() % 2 * 500 + i : i));
  for (size_t i = 0; i < own; ++i) r.prompt.push_back(static_cast<int32_t>(random() % kVocabulary));
  r.prompt.resize(std::min<size_t>(r.prompt.size(), config.context_max - 1));
  r.max_tokens = random() % 10 == 0 ? kNoTokenLimit : static_cast<uint32_t>(random() % 200);
  r.eos = {0, 5, 77};
  r.priority = static_cast<int32_t>(random() % 3);
  return r;
}

Totals run_random(uint32_t seed, bool speculate) {
  std::mt19937 random(seed);
  const auto between = [&](uint32_t low, uint32_t high) { return static_cast<uint32_t>(low + random() % (high - low + 1)); };
  SchedulerConfig config{.token_budget = between(1, 80),
                         .prefill_chunk = between(1, 48),
                         .max_running = between(1, 12),
                         .max_waiting = 1000,
                         .context_max = between(60, 300),
                         .blocks = 0,
                         .vocabulary = kVocabulary};
  config.blocks = static_cast<uint32_t>(ceil_div(config.context_max, kKvBlock)) + between(0, 12);
  if (speculate) config.draft_rows = between(1, 40);
  RandomDrafter drafter(seed);
  Driver d(config, speculate ? &drafter : nullptr);
  Watch watch(config);
  std::map<uint64_t, Request> requests;
  std::set<uint64_t> cancelled;
  Totals totals;
  size_t work = 0;  // upper bound of rows still to compute without preemption
  constexpr size_t kArrivals = 30;
  for (uint64_t steps = 0; requests.size() < kArrivals || !d.scheduler.idle(); ++steps) {
    if (requests.size() < kArrivals && random() % 3 == 0)
      for (uint32_t n = between(1, 4); n > 0 && requests.size() < kArrivals; --n) {
        const Request r = random_request(requests.size() + 1, random, config);
        requests[r.id] = r;
        work += config.context_max;
        d.scheduler.add(r);
      }
    const auto cancel_one = [&] {
      const uint64_t id = 1 + random() % kArrivals;
      if (d.scheduler.cancel(id)) cancelled.insert(id);
    };
    if (random() % 25 == 0) cancel_one();
    const auto plan = d.scheduler.next();
    if (!plan) {
      EXPECT_TRUE(d.scheduler.idle());
      d.take(d.scheduler.take_events());
      continue;
    }
    const Watch before = watch;
    watch.before(*plan, d.scheduler);
    if (testing::Test::HasFatalFailure()) return totals;
    const Tokens sampled = d.rank.run(*plan);
    if (random() % 25 == 0) cancel_one();
    if (random() % 50 == 0) {
      d.scheduler.abandon(*plan);
      d.take(d.scheduler.take_events());
      ++totals.abandoned;
      watch = before;  // none of its rows count
    } else {
      d.commit(*plan, sampled);
    }
    EXPECT_LT(steps, 100 + 2 * work) << "starved";
    if (testing::Test::HasFailure()) return totals;
  }
  for (const auto& [id, r] : requests) {
    const Answer& a = d.answers[id];
    const Tokens expected = solo(r, config.context_max);
    EXPECT_TRUE(a.finish);
    if (cancelled.contains(id)) {
      EXPECT_EQ(a.finish, FinishReason::cancelled);
      EXPECT_LE(a.tokens.size(), expected.size());
      EXPECT_TRUE(std::equal(a.tokens.begin(), a.tokens.end(), expected.begin()));
    } else {
      EXPECT_EQ(a.tokens, expected) << "request " << id;
      EXPECT_NE(a.finish, FinishReason::cancelled);
    }
    EXPECT_EQ(a.usage.output_tokens, a.tokens.size());
    EXPECT_LT(a.usage.cached_tokens, r.prompt.size());
    totals.hits += a.usage.cached_tokens;
  }
  expect_all_blocks_back(d.scheduler);
  totals.requests = requests.size();
  totals.cancelled = cancelled.size();
  totals.preemptions = d.scheduler.stats().preemptions;
  totals.drafted = d.scheduler.stats().drafted;
  totals.accepted = d.scheduler.stats().accepted;
  EXPECT_TRUE(drafter.known().empty());
  return totals;
}

TEST(SchedulerTraffic, RandomTrafficIsExactOrderedFairAndLeakFree) {
  Totals sum;
  for (uint32_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Totals t = run_random(seed, seed % 2 == 0);
    sum.requests += t.requests;
    sum.drafted += t.drafted;
    sum.accepted += t.accepted;
    sum.cancelled += t.cancelled;
    sum.preemptions += t.preemptions;
    sum.hits += t.hits;
    sum.abandoned += t.abandoned;
    if (HasFailure()) return;
  }
  // The traffic has really done what it is meant to try.
  EXPECT_EQ(sum.requests, 12'000u);
  EXPECT_GT(sum.cancelled, 500u);
  EXPECT_GT(sum.preemptions, 500u);
  EXPECT_GT(sum.hits, 10'000u);
  EXPECT_GT(sum.abandoned, 500u);
  EXPECT_GT(sum.accepted, 20'000u);
  EXPECT_GT(sum.drafted - sum.accepted, 20'000u);
}

TEST(SchedulerTraffic, TheSameCallsGiveTheSamePlans) {
  const auto plans = [] {
    Driver d(small());
    std::mt19937 random(4);
    for (uint64_t id = 1; id <= 40; ++id) {
      d.scheduler.add(random_request(id, random, small()));
      d.step();
    }
    d.run();
    return d.plans;
  };
  EXPECT_EQ(plans(), plans());
}

}  // namespace
}  // namespace verbund::engine
