// Rank 0's loop: takes requests from the mailbox, schedules, announces each step, samples and sends events.
// Other ranks run follow(). Both return when the instance is told to stop and throw what ended them otherwise.
#pragma once

#include <functional>
#include <memory>
#include <unordered_map>

#include "base/error.h"
#include "engine/answer.h"
#include "engine/grammar_compiler.h"
#include "engine/mailbox.h"
#include "engine/plan_channel.h"
#include "engine/scheduler.h"
#include "engine/step_executor.h"

namespace verbund::engine {

void follow(PlanChannel& channel, StepExecutor& executor);

class Leader {
 public:
  using Send = std::function<void(nlohmann::json)>;  // events to the owner; from this thread

  Leader(const SchedulerConfig& config, size_t vocabulary, std::shared_ptr<const text::Tokenizer> tokenizer, std::vector<int32_t> eos,
         PlanChannel& channel, StepExecutor& executor, Mailbox& mailbox, Send send, std::unique_ptr<Drafter> drafter = nullptr);
  void run();

 private:
  bool drain(std::chrono::milliseconds wait);  // false: told to stop
  void submit(const nlohmann::json& message);
  void add(Request request, std::unique_ptr<Answer> answer);
  void add_compiled();
  void cancel(uint64_t id);
  std::optional<StepPlan> schedule();
  void step(const StepPlan& plan);
  uint32_t candidates_of(const PlanSegment& segment, uint32_t ids) const;
  std::optional<int32_t> sample_row(const PlanSegment& segment, uint32_t index, const SampledRow& row);
  void publish(const std::vector<Event>& events);
  void end_with_error(uint64_t id, const Error& error);
  void fail_request(uint64_t id, const Error& error);
  void tell_stats();

  size_t vocabulary_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::unique_ptr<Drafter> drafter_;
  Scheduler scheduler_;
  Sampler sampler_;
  PlanChannel& channel_;
  StepExecutor& executor_;
  Mailbox& mailbox_;
  Send send_;
  GrammarCompiler grammars_;
  std::unordered_map<uint64_t, std::pair<Request, std::unique_ptr<Answer>>> compiling_;  // wait for their grammar
  std::chrono::steady_clock::time_point told_{};                                         // stats
  std::unordered_map<uint64_t, std::unique_ptr<Answer>> answers_;                        // unique_ptr: a stream of text does not move
};

}  // namespace verbund::engine
