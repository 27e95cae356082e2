#include "engine/leader.h"

#include "engine/frames.h"
#include "engine/request_json.h"

namespace verbund::engine {
namespace {

// While idle, the others hear from rank 0 this often; far below any data wait.
constexpr std::chrono::milliseconds kIdleEvery{500};
constexpr std::chrono::milliseconds kStatsEvery{200};

}  // namespace

void follow(PlanChannel& channel, StepExecutor& executor) {
  for (;;) {
    const PlanChannel::Message message = channel.receive();
    if (message.turn == Turn::stop) return;
    if (message.turn != Turn::step) continue;
    try {
      executor.run(message.plan);
    } catch (const Error& e) {
      if (e.lost() != Lost::request) throw;  // every rank meets a request's error at the same place; rank 0 ends that request
    }
  }
}

Leader::Leader(const SchedulerConfig& config, size_t vocabulary, std::shared_ptr<const text::Tokenizer> tokenizer, std::vector<int32_t> eos,
               PlanChannel& channel, StepExecutor& executor, Mailbox& mailbox, Send send, std::unique_ptr<Drafter> drafter)
    : vocabulary_(vocabulary),
      tokenizer_(std::move(tokenizer)),
      drafter_(std::move(drafter)),
      scheduler_(config, drafter_.get()),
      sampler_(vocabulary, config.vocabulary),
      channel_(channel),
      executor_(executor),
      mailbox_(mailbox),
      send_(std::move(send)),
      grammars_(tokenizer_, vocabulary, std::move(eos), [this] {
        mailbox_.push({{"op", "compiled"}});
      }) {}

void Leader::run() {
  bool busy = false;
  while (drain(busy ? std::chrono::milliseconds(0) : kIdleEvery)) {
    const std::optional<StepPlan> plan = schedule();
    publish(scheduler_.take_events());
    busy = plan.has_value();
    if (busy)
      step(*plan);
    else
      channel_.announce(Turn::idle);
    tell_stats();
  }
  channel_.announce(Turn::stop);
}

std::optional<StepPlan> Leader::schedule() {
  Trace* trace = executor_.trace();
  TraceSpan span(trace, "schedule");
  std::optional<StepPlan> plan = scheduler_.next();
  if (plan)
    for (PlanSegment& s : plan->segments) s.candidates = candidates_of(s, plan->ids);
  if (plan && trace) trace->set_step(plan->sequence, static_cast<uint32_t>(plan->rows()), static_cast<uint32_t>(plan->segments.size()));
  return plan;
}

// Of each sampled row of the segment; 0: whole rows are needed.
uint32_t Leader::candidates_of(const PlanSegment& segment, uint32_t ids) const {
  const Sequence& sequence = *scheduler_.find(segment.request);
  const bool scores = segment.first_position + segment.tokens.size() - segment.sample_rows + 1 < sequence.tokens.size();
  if (segment.sample_rows == 0 || scores || sequence.request.logprobs) return 0;
  const auto answer = answers_.find(segment.request);
  if (answer == answers_.end() || answer->second->needs_whole_row()) return 0;
  return candidates_needed(sequence.request.params, ids);
}

bool Leader::drain(std::chrono::milliseconds wait) {
  for (const nlohmann::json& message : mailbox_.take(wait)) {
    const std::string op = message.value("op", std::string());
    if (op == "stop") return false;
    if (op == "submit") submit(message);
    if (op == "cancel") cancel(message.value("id", uint64_t(0)));
    if (op == "compiled") add_compiled();
  }
  return true;
}

void Leader::submit(const nlohmann::json& message) {
  uint64_t id = 0;
  try {
    Request request = request_from_json(message.at("request"));
    id = request.id;
    ensure_seed(request.params);
    auto answer = std::make_unique<Answer>(request, message.value("hash_logits", false), tokenizer_, vocabulary_);
    if (!request.grammar) return add(std::move(request), std::move(answer));
    grammars_.start(id, *request.grammar);
    compiling_[id] = {std::move(request), std::move(answer)};
  } catch (...) { fail_request(id, current_error()); }
}

void Leader::add(Request request, std::unique_ptr<Answer> answer) {
  const uint64_t id = request.id;
  scheduler_.add(std::move(request));
  answers_[id] = std::move(answer);
}

void Leader::add_compiled() {
  for (GrammarCompiler::Compiled& compiled : grammars_.take()) {
    const auto it = compiling_.find(compiled.request);
    if (it == compiling_.end()) continue;  // cancelled meanwhile
    auto [request, answer] = std::move(it->second);
    compiling_.erase(it);
    try {
      if (compiled.error) throw *compiled.error;
      answer->constrain(std::move(compiled.matcher));
      add(std::move(request), std::move(answer));
    } catch (...) { fail_request(compiled.request, current_error()); }
  }
}

void Leader::cancel(uint64_t id) {
  if (compiling_.erase(id) == 0) scheduler_.cancel(id);
}

void Leader::step(const StepPlan& plan) {
  channel_.announce(plan);
  std::span<const SampledRow> rows;
  try {
    rows = executor_.run(plan);
  } catch (const Error& e) {
    if (e.lost() != Lost::request) throw;
    // A value left the range of the fixed-point sums. The rows are named by the backend, not by request: with several
    // requests in the step all of them end, because none of the step's results may be used.
    scheduler_.abandon(plan);
    std::vector<uint64_t> lost = executor_.failed_requests();  // of earlier steps, if a later stage told late
    for (const PlanSegment& s : plan.segments) lost.push_back(s.request);
    for (const uint64_t id : lost) {
      if (!answers_.contains(id)) continue;
      scheduler_.finish(id, FinishReason::error);
      fail_request(id, e);
    }
    return;
  }
  std::vector<Event> events;
  {
    TraceSpan span(executor_.trace(), "sample");
    const PlanSegment* segment = nullptr;
    std::span<const SampledRow> of_segment;
    events = scheduler_.commit(plan, [&](const PlanSegment& s, uint32_t row) {
      while (segment != &s) {  // the next one that has rows
        segment = segment ? segment + 1 : plan.segments.data();
        of_segment = rows.first(segment->sample_rows);
        rows = rows.subspan(segment->sample_rows);
      }
      return sample_row(s, row, of_segment[row]);
    });
  }
  TraceSpan span(executor_.trace(), "publish");
  publish(events);
}

// Row `index` of the segment's sampled rows. A request with something wrong (its grammar allows no token, its logits are no numbers)
// ends; the others of the step do not.
std::optional<int32_t> Leader::sample_row(const PlanSegment& segment, uint32_t index, const SampledRow& row) {
  const auto found = answers_.find(segment.request);
  if (found == answers_.end() || found->second->stopped()) return std::nullopt;
  Answer& answer = *found->second;
  const Sequence& sequence = *scheduler_.find(segment.request);
  const Request& request = sequence.request;
  const size_t next = segment.first_position + segment.tokens.size() - segment.sample_rows + index + 1;  // these logits speak of it
  try {
    if (next < sequence.tokens.size()) {
      if (next < request.prompt.size() && request.logprobs)
        answer.score(sampler_.logprobs(row.logits, request.prompt[next], *request.logprobs));
      else if (next < request.prompt.size())
        answer.score(row.logits, request.prompt[next]);
      return sequence.tokens[next];
    }
    if (segment.candidates > 0) {
      const int32_t token = sampler_.sample(row.candidates, request.params, sequence.tokens.size());
      answer.push(token);
      return token;
    }
    answer.hash(row.logits);
    const int32_t token = sampler_.sample(row.logits, request.params, sequence.history, sequence.tokens.size(), answer.allowed());
    answer.push(token, request.logprobs ? std::optional(sampler_.logprobs(row.logits, token, *request.logprobs)) : std::nullopt);
    return token;
  } catch (...) {
    end_with_error(segment.request, current_error());
    return std::nullopt;
  }
}

void Leader::end_with_error(uint64_t id, const Error& error) {
  scheduler_.finish(id, FinishReason::error);
  fail_request(id, Error(Code::internal, error.parts().what, error.parts().where));
}

void Leader::publish(const std::vector<Event>& events) {
  nlohmann::json list = nlohmann::json::array();
  for (const Event& e : events) {
    const auto it = answers_.find(e.request);
    if (it == answers_.end()) continue;  // ended before, by a stop string or an error
    Answer& answer = *it->second;
    nlohmann::json j{{"id", e.request}};
    std::string text;
    std::optional<FinishReason> finish = e.finish;
    if (e.token) {
      j["token"] = *e.token;
      Answer::Piece piece = answer.take();
      text = std::move(piece.text);
      if (!piece.logprobs.is_null()) j["logprobs"] = std::move(piece.logprobs);
      if (piece.stopped) {
        finish = FinishReason::stop;
        scheduler_.finish(e.request, FinishReason::stop);  // unless it ends by itself
      }
    }
    if (finish) {
      text += answer.finish();
      j["finish"] = to_string(*finish);
      j["figures"] = answer.figures(e.usage);
      answers_.erase(it);
    }
    j["text"] = std::move(text);
    list.push_back(std::move(j));
  }
  if (!list.empty()) send_({{"op", "events"}, {"events", std::move(list)}});
}

void Leader::tell_stats() {
  const auto now = std::chrono::steady_clock::now();
  if (now - told_ < kStatsEvery) return;
  told_ = now;
  const SchedulerStats s = scheduler_.stats();
  send_({{"op", "stats"},
         {"waiting", s.waiting},
         {"running", s.running},
         {"steps", s.steps},
         {"rows", s.rows},
         {"preemptions", s.preemptions},
         {"drafted", s.drafted},
         {"accepted", s.accepted},
         {"blocks", s.blocks.total},
         {"blocks_used", s.blocks.used}});
}

void Leader::fail_request(uint64_t id, const Error& error) {
  answers_.erase(id);
  send_({{"op", "events"}, {"events", nlohmann::json::array({{{"id", id}, {"error", to_json(error)}}})}});
}

}  // namespace verbund::engine
