// What the scheduler's tests share: a fake model, and a rank that executes plans on a real KV memory.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "engine/scheduler.h"

namespace verbund::engine::scheduler_test {

using Tokens = std::vector<int32_t>;

constexpr int32_t kVocabulary = 1000;

// The fake model: the next token is a function of the whole sequence, as for a real exact one.
inline int32_t next_token(std::span<const int32_t> sequence) {
  return static_cast<int32_t>(checksum(std::as_bytes(sequence)) % kVocabulary);
}

inline Tokens solo(const Request& request, size_t context) {
  Tokens tokens = request.prompt, output;
  while (output.size() < request.max_tokens && tokens.size() < context) {
    tokens.push_back(next_token(tokens));
    output.push_back(tokens.back());
    if (!request.ignore_eos && std::ranges::find(request.eos, tokens.back()) != request.eos.end()) break;
  }
  return output;
}

// Executes plans as the ranks would, with a real KV memory: a position is readable only if exactly its token was
// written into exactly that block, so a wrong block, order or reuse shows at once.
class FakeRank {
 public:
  explicit FakeRank(const SchedulerConfig& config) : config_(config), cells_(config.blocks * kKvBlock, -1) {}

  Tokens run(const StepPlan& sent) {
    const StepPlan plan = decode_plan(encode(sent), {.rows = config_.token_budget,
                                                     .logit_rows = config_.max_running + config_.draft_rows + config_.score_rows,
                                                     .context = config_.context_max,
                                                     .blocks = config_.blocks,
                                                     .vocabulary = config_.vocabulary});
    EXPECT_EQ(plan, sent);
    Tokens sampled;
    for (const PlanSegment& s : plan.segments) {
      for (size_t i = 0; i < s.tokens.size(); ++i) cell(s, s.first_position + i) = s.tokens[i];
      ++writes_[s.request];
    }
    for (const PlanSegment& s : plan.segments) {
      Tokens sequence;
      const size_t end = s.first_position + s.tokens.size();
      for (size_t p = 0; p < end; ++p) {
        sequence.push_back(cell(s, p));
        if (p + s.sample_rows >= end) sampled.push_back(next_token(sequence));
      }
    }
    return sampled;
  }
  size_t steps_of(uint64_t request) const { return writes_.contains(request) ? writes_.at(request) : 0; }

 private:
  int32_t& cell(const PlanSegment& s, size_t position) { return cells_[s.blocks[position / kKvBlock] * kKvBlock + position % kKvBlock]; }
  SchedulerConfig config_;
  Tokens cells_;
  std::map<uint64_t, size_t> writes_;
};

// What commit() asks for, from all rows of the plan in order.
inline Scheduler::SampleRow rows_of(const StepPlan& plan, const Tokens& sampled) {
  EXPECT_EQ(sampled.size(), plan.sampled_rows());
  return [&plan, &sampled](const PlanSegment& segment, uint32_t row) {
    size_t first = 0;
    for (const PlanSegment& s : plan.segments) {
      if (&s == &segment) break;
      first += s.sample_rows;
    }
    return std::optional(sampled.at(first + row));
  };
}

inline SchedulerConfig small() {
  return {.token_budget = 64,
          .prefill_chunk = 16,
          .max_running = 8,
          .max_waiting = 100,
          .context_max = 512,
          .blocks = 64,
          .vocabulary = kVocabulary};
}

inline Request request(uint64_t id, size_t prompt, uint32_t max_tokens, int32_t first = 1) {
  Request r;
  r.id = id;
  for (size_t i = 0; i < prompt; ++i) r.prompt.push_back(static_cast<int32_t>((first + i * 7) % kVocabulary));
  r.max_tokens = max_tokens;
  r.params.temperature = 0;
  return r;
}

struct Answer {
  Tokens tokens;
  std::optional<FinishReason> finish;
  Usage usage;
};

class Driver {
 public:
  explicit Driver(const SchedulerConfig& config, Drafter* drafter = nullptr) : scheduler(config, drafter), rank(config) {}

  // One step; false if there was nothing to do.
  bool step() {
    const auto plan = scheduler.next();
    if (plan) {
      plans.push_back(*plan);
      commit(*plan, rank.run(*plan));
    } else {
      take(scheduler.take_events());
    }
    return plan.has_value();
  }
  void commit(const StepPlan& plan, const Tokens& sampled) { take(scheduler.commit(plan, rows_of(plan, sampled))); }
  void run() {
    while (step()) ASSERT_LT(plans.size(), 100'000u);
  }
  void take(const std::vector<Event>& events) {
    for (const Event& e : events) {
      Answer& a = answers[e.request];
      EXPECT_FALSE(a.finish) << "an event after the end of " << e.request;
      if (e.token) a.tokens.push_back(*e.token);
      a.finish = e.finish;
      a.usage = e.usage;
    }
  }

  Scheduler scheduler;
  FakeRank rank;
  std::vector<StepPlan> plans;
  std::map<uint64_t, Answer> answers;
};

inline void expect_all_blocks_back(const Scheduler& scheduler) {
  const SchedulerStats s = scheduler.stats();
  EXPECT_EQ(s.blocks.used, 0u);
  EXPECT_EQ(s.blocks.free + s.blocks.cached, s.blocks.total);
  EXPECT_EQ(s.waiting + s.running, 0u);
}

}  // namespace verbund::engine::scheduler_test
