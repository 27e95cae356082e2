// Which tokens of which requests the next step computes (docs/DESIGN.md section 5.4). Deterministic: no clock, no socket,
// no randomness; the same calls give the same plans. Lives at rank 0 and belongs to the rank loop's thread.
//
//   add() / cancel() at any time; then   plan = next()  ->  run it  ->  events = commit(plan, sample)
//
// - Decodes first, one row each. Then prefill chunks, round robin with a quantum of prefill_chunk rows, so that a long
//   prompt delays others by one chunk at a time. A step with decodes carries at most prefill_chunk rows of prefill: the
//   gap between two tokens of a stream is bounded by that. Higher priority first, equals by arrival.
// - A request is admitted when the KV blocks of all its tokens are there. When a decode needs a block and none is left,
//   the youngest of the lowest priority is preempted: its blocks go (full ones stay cached), it waits in its old place, and
//   its prompt and output are computed again. Exactness makes that invisible; no token is sampled twice.
// - Full blocks of a request are shared with later ones that begin alike; at least one token is always computed.
// - With a drafter a decode carries guessed tokens behind its last one, as long as the step has at most draft_rows rows of decode. Those
//   that turn out right are kept, with what was computed for them; where the first is wrong the sampled token stands instead.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/drafter.h"
#include "engine/kv_blocks.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/step_plan.h"

namespace verbund::engine {

struct SchedulerConfig {
  uint32_t token_budget = 512;   // rows of a step
  uint32_t prefill_chunk = 256;  // rows of one sequence's prefill in a step
  uint32_t max_running = 256;    // sequences that hold KV; at most token_budget of them are used, so every one gets a row
  uint32_t score_rows = 0;       // rows of logits of a step beyond one a sequence, for prompts that are scored
  uint32_t draft_rows = 0;       // decode rows of a step up to which guessed tokens fill it; 0: none
  uint32_t max_waiting = 4096;   // requests that wait; more are refused with resource_exhausted
  uint32_t context_max = 0;      // tokens of a sequence, prompt and output
  uint32_t blocks = 0;           // KV blocks; must hold one sequence of context_max
  uint32_t vocabulary = 0;       // ids below this have a token
};

struct Usage {
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;  // of the prompt, taken from the prefix cache when it was first admitted
  uint32_t output_tokens = 0;
  uint32_t preemptions = 0;
  uint32_t drafted_tokens = 0, accepted_tokens = 0;  // of speculation
};

// What happened to a request. In the order of things, per request.
struct Event {
  uint64_t request = 0;
  std::optional<int32_t> token;        // a new token (an end token too)
  std::optional<FinishReason> finish;  // the request is over and forgotten
  Usage usage;                         // until then
};

// A live request, as the sampler and callers see it.
struct Sequence {
  Request request;
  std::vector<int32_t> tokens;  // prompt and output so far; tokens.size() is the position of the next one
  TokenHistory history;         // kept only if params.needs_history()
  size_t output_size() const { return tokens.size() - request.prompt.size(); }
};

struct SchedulerStats {
  size_t waiting = 0, running = 0;
  uint64_t steps = 0, rows = 0, preemptions = 0, finished = 0;
  uint64_t drafted = 0, accepted = 0;  // tokens
  BlockStats blocks;
};

class Scheduler {
 public:
  // drafter: guesses for speculative decoding, or null; must outlive the scheduler. Throws invalid_argument.
  explicit Scheduler(const SchedulerConfig& config, Drafter* drafter = nullptr);
  ~Scheduler();

  // Throws invalid_argument naming the field (with both numbers if the prompt exceeds the context), resource_exhausted
  // if the queue is full. Nothing has happened then.
  void add(Request request);
  // Ends a request from outside: cancelled by its client, stopped by a stop string, failed. From the next step on no rank
  // computes it; a token sampled by the step in progress is dropped. False if there is no such request or it ends already.
  bool finish(uint64_t id, FinishReason reason);
  bool cancel(uint64_t id) { return finish(id, FinishReason::cancelled); }

  // The next step, or nullopt if there is nothing to do. One plan at a time: commit() or abandon() it first.
  std::optional<StepPlan> next();
  // The step has run. sample(segment, i): the token that row i of its wanted rows speaks of, asked for in plan order; find() has all
  // tokens before it by then. Not asked for rows behind a guessed token that was wrong or behind a request's end. nullopt: the
  // request ends here and finish() has been or will be called before next(). Returns everything that happened since events were
  // last taken.
  using SampleRow = std::function<std::optional<int32_t>(const PlanSegment& segment, uint32_t row)>;
  std::vector<Event> commit(const StepPlan& plan, const SampleRow& sample);
  // The step has failed; none of its rows count. Its requests are planned again unless they are finished meanwhile.
  void abandon(const StepPlan& plan);
  // What happened outside of steps (cancelled, max_tokens 0); for when next() gives nothing.
  std::vector<Event> take_events();

  const Sequence* find(uint64_t id) const;  // live ones; valid until its finish event, so all of a plan's
  bool idle() const;                        // nothing waits, nothing runs
  SchedulerStats stats() const;

 private:
  struct State;
  struct ByRank {  // higher priority, then earlier arrival
    bool operator()(const State* a, const State* b) const;
  };
  using RankedSet = std::set<State*, ByRank>;

  void grow_decodes();
  void ensure_block(State& state);
  void preempt(State& victim);
  void admit();
  bool try_admit(State& state);
  void plan_decodes(StepPlan& plan);
  void plan_prefills(StepPlan& plan);
  void draft(std::span<State* const> decoding);
  bool reserve_draft_block(State& state);
  void add_segment(StepPlan& plan, State& state, size_t rows);
  void close(const StepPlan& plan);
  void advance(State& state, size_t rows);
  void commit(State& state, const PlanSegment& segment, const SampleRow& sample);
  std::optional<FinishReason> append_token(State& state, int32_t token);
  Usage usage_of(const State& state) const;
  std::optional<FinishReason> ending_of(const Sequence& sequence) const;
  void retire(State& state, FinishReason reason, std::optional<int32_t> last_token = {});

  SchedulerConfig config_;
  Drafter* drafter_;
  BlockManager kv_;
  std::unordered_map<uint64_t, std::unique_ptr<State>> states_;
  RankedSet waiting_, running_;
  std::vector<Event> events_;
  std::optional<uint64_t> outstanding_;  // sequence number of the plan that runs now
  uint64_t sequence_ = 0, arrivals_ = 0, turns_ = 0;
  uint64_t rows_ = 0, preemptions_ = 0, finished_ = 0, drafted_ = 0, accepted_ = 0;
};

}  // namespace verbund::engine
