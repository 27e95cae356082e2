#include "engine/scheduler.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"

namespace verbund::engine {

struct Scheduler::State {
  Sequence sequence;
  uint64_t arrival = 0;
  Usage usage;
  bool running = false;
  bool was_admitted = false;

  // KV, while running. Positions [0, computed) are in the blocks; the first `published` blocks are shared ones.
  std::vector<uint32_t> blocks;
  size_t computed = 0;
  size_t published = 0;
  ChainId chain = kChainStart;

  // Prefill round robin: lower turns go first; a used-up quantum means a new turn behind all others.
  uint64_t turn = 0;
  uint32_t quantum = 0;

  size_t next_scored = 0;  // position of the first token of the prompt that is yet to be scored; 0: there is none
  DraftPace pace;
  std::vector<int32_t> draft;          // guessed tokens behind the last one, in the outstanding plan
  size_t planned = 0;                  // rows in the outstanding plan, without those
  std::optional<FinishReason> ending;  // finished from outside while in the outstanding plan

  size_t rows_left() const { return sequence.tokens.size() - computed; }
  bool decoding() const { return rows_left() == 1; }
  // How many of the next `rows` rows, the last of them, logits are wanted of: of all that speak of a token to be scored, and
  // of the last of the sequence.
  size_t logit_rows(size_t rows) const {
    const size_t end = computed + rows, last = end == sequence.tokens.size() ? 1 : 0;
    return next_scored > 0 && next_scored <= end ? end - std::max(computed, next_scored - 1) : last;
  }
};

bool Scheduler::ByRank::operator()(const State* a, const State* b) const {
  const int32_t pa = a->sequence.request.priority, pb = b->sequence.request.priority;
  return pa != pb ? pa > pb : a->arrival < b->arrival;
}

Scheduler::Scheduler(const SchedulerConfig& config, Drafter* drafter) : config_(config), drafter_(drafter), kv_(config.blocks) {
  const std::pair<const char*, uint32_t> sizes[] = {{"token_budget", config.token_budget}, {"prefill_chunk", config.prefill_chunk},
                                                    {"max_running", config.max_running},   {"max_waiting", config.max_waiting},
                                                    {"context_max", config.context_max},   {"vocabulary", config.vocabulary}};
  for (const auto& [name, value] : sizes)
    if (value == 0) throw Error(Code::invalid_argument, std::string(name) + " must be at least 1", "scheduler");
  const uint64_t need = ceil_div(config.context_max, kKvBlock);
  if (config.blocks < need)
    throw Error(Code::invalid_argument,
                "a context of " + std::to_string(config.context_max) + " tokens needs " + std::to_string(need) + " KV blocks, there are " +
                    std::to_string(config.blocks),
                "scheduler", "give more memory or a context of at most " + std::to_string(config.blocks * kKvBlock) + " tokens");
  // Then a step has a row for every running sequence, and none waits for another's decodes.
  config_.max_running = std::min(config.max_running, config.token_budget);
}

Scheduler::~Scheduler() = default;

// ---- requests in and out

void Scheduler::add(Request request) {
  request.validate(config_.vocabulary, config_.context_max);
  if (states_.contains(request.id))
    throw Error(Code::invalid_argument, "id " + std::to_string(request.id) + " is in use by a live request");
  if (waiting_.size() >= config_.max_waiting)
    throw Error(Code::resource_exhausted, "the queue is full: " + std::to_string(waiting_.size()) + " requests wait", {},
                "try again later");

  auto state = std::make_unique<State>();
  Sequence& sequence = state->sequence;
  sequence.tokens = request.prompt;
  sequence.tokens.insert(sequence.tokens.end(), request.generated.begin(), request.generated.end());
  if (request.params.needs_history()) {
    sequence.history.add_prompt(request.prompt);
    for (int32_t id : request.generated) sequence.history.add_output(id);
  }
  if (request.score_from < request.prompt.size()) state->next_scored = request.score_from;
  sequence.request = std::move(request);
  state->arrival = ++arrivals_;
  State& added = *state;
  states_.emplace(sequence.request.id, std::move(state));
  waiting_.insert(&added);
  if (const auto reason = ending_of(sequence)) retire(added, *reason);
}

bool Scheduler::finish(uint64_t id, FinishReason reason) {
  const auto it = states_.find(id);
  if (it == states_.end() || it->second->ending) return false;
  // The step in progress writes into its blocks: they are given back when it is over.
  if (it->second->planned > 0)
    it->second->ending = reason;
  else
    retire(*it->second, reason);
  return true;
}

std::optional<FinishReason> Scheduler::ending_of(const Sequence& sequence) const {
  const Request& request = sequence.request;
  const bool at_end =
      sequence.output_size() > 0 && !request.ignore_eos && std::ranges::find(request.eos, sequence.tokens.back()) != request.eos.end();
  if (at_end) return FinishReason::stop;
  if (sequence.output_size() >= request.max_tokens || sequence.tokens.size() >= config_.context_max) return FinishReason::length;
  return std::nullopt;
}

void Scheduler::retire(State& state, FinishReason reason, std::optional<int32_t> last_token) {
  kv_.release(state.blocks);
  (state.running ? running_ : waiting_).erase(&state);
  const uint64_t id = state.sequence.request.id;
  events_.push_back({.request = id, .token = last_token, .finish = reason, .usage = usage_of(state)});
  ++finished_;
  if (drafter_) drafter_->forget(id);
  states_.erase(id);
}

Usage Scheduler::usage_of(const State& state) const {
  Usage usage = state.usage;
  usage.prompt_tokens = static_cast<uint32_t>(state.sequence.request.prompt.size());
  usage.output_tokens = static_cast<uint32_t>(state.sequence.output_size());
  return usage;
}

// ---- planning

std::optional<StepPlan> Scheduler::next() {
  if (outstanding_)
    throw Error(Code::internal, "step " + std::to_string(*outstanding_) + " has neither been committed nor abandoned", "scheduler");
  grow_decodes();
  admit();
  if (running_.empty()) return std::nullopt;
  StepPlan plan;
  plan.sequence = ++sequence_;
  plan.ids = config_.vocabulary;
  plan_decodes(plan);
  plan_prefills(plan);
  outstanding_ = plan.sequence;
  return plan;
}

// Best rank first, and victims are taken from the other end: what has its block keeps it.
void Scheduler::grow_decodes() {
  const std::vector<State*> ranked(running_.begin(), running_.end());
  for (State* state : ranked)
    if (state->running && state->decoding()) ensure_block(*state);
}

void Scheduler::ensure_block(State& state) {
  while (state.blocks.size() * kKvBlock <= state.computed) {
    if (const auto block = kv_.allocate()) {
      state.blocks.push_back(*block);
      continue;
    }
    State& victim = **running_.rbegin();
    preempt(victim);
    if (&victim == &state) return;
  }
}

// What is known of its KV is set anew when it is admitted again.
void Scheduler::preempt(State& victim) {
  running_.erase(&victim);
  kv_.release(victim.blocks);
  victim.blocks.clear();
  victim.running = false;
  waiting_.insert(&victim);
  ++victim.usage.preemptions;
  ++preemptions_;
}

// Strictly in order: a large request at the front is not overtaken for ever by small ones.
void Scheduler::admit() {
  while (!waiting_.empty() && running_.size() < config_.max_running)
    if (!try_admit(**waiting_.begin())) return;
}

bool Scheduler::try_admit(State& state) {
  const std::span<const int32_t> tokens = state.sequence.tokens;
  // One token is always computed, and every row that speaks of one to be scored.
  const size_t reusable = ((state.next_scored > 0 ? state.next_scored : tokens.size()) - 1) / kKvBlock;
  const BlockManager::Prefix prefix = kv_.find_prefix(tokens, reusable);
  const size_t need = ceil_div(tokens.size(), kKvBlock) - prefix.blocks.size();
  // One block of reserve for each running sequence: it lasts kKvBlock steps, so that what is admitted is not preempted at once.
  const size_t reserve = running_.size();
  if (kv_.available() - prefix.unreferenced < need + reserve) return false;

  kv_.share(prefix);
  state.blocks = prefix.blocks;
  for (size_t i = 0; i < need; ++i) state.blocks.push_back(kv_.allocate().value());
  state.published = prefix.blocks.size();
  state.computed = state.published * kKvBlock;
  state.chain = prefix.chain;
  if (!std::exchange(state.was_admitted, true))
    state.usage.cached_tokens = static_cast<uint32_t>(std::min(state.computed, state.sequence.request.prompt.size()));
  state.turn = ++turns_;
  state.quantum = config_.prefill_chunk;
  waiting_.erase(&state);
  state.running = true;
  running_.insert(&state);
  return true;
}

void Scheduler::plan_decodes(StepPlan& plan) {
  std::vector<State*> decoding;
  for (State* state : running_)
    if (state->decoding()) decoding.push_back(state);
  draft(decoding);
  for (State* state : decoding) add_segment(plan, *state, 1);
}

// Best rank first, as long as there is room in the step and in the KV memory without taking a block from anybody.
void Scheduler::draft(std::span<State* const> decoding) {
  const size_t rows_max = std::min(config_.draft_rows, config_.token_budget);
  if (!drafter_ || decoding.size() >= rows_max) return;
  size_t room = rows_max - decoding.size();
  std::vector<State*> states;
  std::vector<DraftWish> wishes;
  for (size_t i = 0; i < decoding.size() && room > 0; ++i) {
    State& state = *decoding[i];
    const Sequence& sequence = state.sequence;
    // The row behind the last guess gives one more token.
    const size_t useful =
        std::min<size_t>(sequence.request.max_tokens - sequence.output_size(), config_.context_max - sequence.tokens.size());
    const size_t share = ceil_div(room, decoding.size() - i);
    const uint32_t max = state.pace.next(static_cast<uint32_t>(std::min({share, useful - 1, size_t{kDraftMax}})));
    if (max == 0) continue;
    states.push_back(&state);
    wishes.push_back({sequence.request.id, sequence.tokens, max});
    room -= max;
  }
  if (wishes.empty()) return;
  std::vector<std::vector<int32_t>> drafts = drafter_->draft(wishes);
  for (size_t i = 0; i < states.size(); ++i) {
    State& state = *states[i];
    const size_t last = state.computed + drafts[i].size();  // position
    while (state.blocks.size() * kKvBlock <= last && reserve_draft_block(state)) {}
    drafts[i].resize(std::min(drafts[i].size(), state.blocks.size() * kKvBlock - state.computed - 1));
    state.draft = std::move(drafts[i]);
  }
}

bool Scheduler::reserve_draft_block(State& state) {
  if (kv_.available() <= running_.size()) return false;
  state.blocks.push_back(kv_.allocate().value());
  return true;
}

void Scheduler::plan_prefills(StepPlan& plan) {
  std::vector<State*> prefilling;
  for (State* state : running_)
    if (!state->decoding()) prefilling.push_back(state);
  std::ranges::sort(prefilling, [](const State* a, const State* b) {
    const int32_t pa = a->sequence.request.priority, pb = b->sequence.request.priority;
    return pa != pb ? pa > pb : a->turn < b->turn;
  });
  size_t room = config_.token_budget - plan.rows();
  size_t score_room = config_.score_rows;
  if (!plan.segments.empty()) room = std::min<size_t>(room, config_.prefill_chunk);  // bounds the gap between a stream's tokens
  for (State* state : prefilling) {
    size_t rows = std::min({room, size_t{state->quantum}, state->rows_left()});
    if (rows == 0) break;
    if (const size_t wanted = state->logit_rows(rows); wanted > score_room + 1) rows -= wanted - (score_room + 1);
    score_room -= std::max<size_t>(state->logit_rows(rows), 1) - 1;
    add_segment(plan, *state, rows);
    room -= rows;
    state->quantum -= static_cast<uint32_t>(rows);
    if (state->quantum == 0) {
      state->quantum = config_.prefill_chunk;
      state->turn = ++turns_;
    }
  }
}

void Scheduler::add_segment(StepPlan& plan, State& state, size_t rows) {
  const size_t end = state.computed + rows, drafted = state.draft.size();
  const auto& tokens = state.sequence.tokens;
  PlanSegment& segment = plan.segments.emplace_back();
  segment.request = state.sequence.request.id;
  segment.first_position = static_cast<uint32_t>(state.computed);
  segment.sample_rows = static_cast<uint32_t>(state.logit_rows(rows) + drafted);
  segment.tokens.assign(tokens.begin() + static_cast<ptrdiff_t>(state.computed), tokens.begin() + static_cast<ptrdiff_t>(end));
  segment.tokens.insert(segment.tokens.end(), state.draft.begin(), state.draft.end());
  segment.blocks.assign(state.blocks.begin(), state.blocks.begin() + static_cast<ptrdiff_t>(ceil_div(end + drafted, kKvBlock)));
  state.planned = rows;
}

// ---- results

std::vector<Event> Scheduler::commit(const StepPlan& plan, const SampleRow& sample) {
  close(plan);
  rows_ += plan.rows();
  for (const PlanSegment& segment : plan.segments) commit(*states_.at(segment.request), segment, sample);
  return take_events();
}

void Scheduler::commit(State& state, const PlanSegment& segment, const SampleRow& sample) {
  Sequence& sequence = state.sequence;
  const std::vector<int32_t> draft = std::exchange(state.draft, {});
  size_t rows = state.planned;  // that hold tokens of the sequence
  const bool samples = state.computed + rows == sequence.tokens.size();
  const size_t known = segment.sample_rows - (samples ? draft.size() + 1 : 0);  // rows that speak of tokens it has already
  std::optional<FinishReason> ending;
  std::optional<int32_t> last;
  size_t accepted = 0;
  for (uint32_t i = 0; i < segment.sample_rows && !ending; ++i) {
    const std::optional<int32_t> token = sample(segment, i);
    if (!token || state.ending) break;
    if (i < known) continue;
    ending = append_token(state, *token);
    if (ending)
      last = token;
    else
      events_.push_back({.request = sequence.request.id, .token = token, .finish = {}, .usage = usage_of(state)});
    if (accepted == draft.size() || *token != draft[accepted]) break;
    ++accepted;
  }
  state.planned = 0;
  state.pace.observe(static_cast<uint32_t>(draft.size()), static_cast<uint32_t>(accepted));
  state.usage.drafted_tokens += static_cast<uint32_t>(draft.size());
  state.usage.accepted_tokens += static_cast<uint32_t>(accepted);
  drafted_ += draft.size();
  accepted_ += accepted;
  advance(state, std::min(rows + accepted, sequence.tokens.size() - state.computed));
  if (state.ending)
    retire(state, *state.ending);
  else if (ending)
    retire(state, *ending, last);
}

void Scheduler::abandon(const StepPlan& plan) {
  close(plan);
  for (const PlanSegment& segment : plan.segments) {
    State& state = *states_.at(segment.request);
    state.planned = 0;
    state.draft.clear();
    if (state.ending) retire(state, *state.ending);
  }
}

void Scheduler::close(const StepPlan& plan) {
  if (outstanding_ != plan.sequence)
    throw Error(Code::internal, "step " + std::to_string(plan.sequence) + " is not the one in progress", "scheduler");
  outstanding_.reset();
}

void Scheduler::advance(State& state, size_t rows) {
  state.computed += rows;
  // A row speaks of the token after it; what was scored once is not scored again after a preemption.
  if (state.next_scored > 0) state.next_scored = std::max(state.next_scored, state.computed + 1);
  if (state.next_scored >= state.sequence.request.prompt.size()) state.next_scored = 0;
  const std::span<const int32_t> tokens = state.sequence.tokens;
  for (; (state.published + 1) * kKvBlock <= state.computed; ++state.published) {
    uint32_t& block = state.blocks[state.published];
    const auto known = kv_.publish(block, state.chain, tokens.subspan(state.published * kKvBlock, kKvBlock));
    block = known.block;
    state.chain = known.chain;
  }
}

std::optional<FinishReason> Scheduler::append_token(State& state, int32_t token) {
  Sequence& sequence = state.sequence;
  sequence.tokens.push_back(token);
  if (sequence.request.params.needs_history()) sequence.history.add_output(token);
  return ending_of(sequence);
}

std::vector<Event> Scheduler::take_events() { return std::exchange(events_, {}); }

// ---- what is seen from outside

const Sequence* Scheduler::find(uint64_t id) const {
  const auto it = states_.find(id);
  return it == states_.end() ? nullptr : &it->second->sequence;
}

bool Scheduler::idle() const { return states_.empty(); }

SchedulerStats Scheduler::stats() const {
  return {.waiting = waiting_.size(),
          .running = running_.size(),
          .steps = sequence_,
          .rows = rows_,
          .preemptions = preemptions_,
          .finished = finished_,
          .drafted = drafted_,
          .accepted = accepted_,
          .blocks = kv_.stats()};
}

}  // namespace verbund::engine
