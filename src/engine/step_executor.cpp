#include "engine/step_executor.h"

#include <algorithm>

namespace verbund::engine {

StepExecutor::StepExecutor(const Parts& parts) : p_(parts), shard_(parts.shards.ranks[static_cast<size_t>(parts.world.rank())]) {}

const std::vector<float>& StepExecutor::run(const StepPlan& plan) {
  if (p_.trace) p_.trace->set_step(plan.sequence);
  flatten(plan);
  if (!shard_.first_stage()) receive_hidden(tokens_.size());
  // Test hook: this rank leaves a collective out, as a bug would. The others must find out and not hang.
  if (p_.faults.skip_rank == p_.world.rank() && p_.faults.skip_step == plan.sequence) return logits_;
  output_ = p_.decoder.forward({tokens_, segments_, sampled_rows_, hidden_}, p_.tp, p_.wait, p_.trace);
  if (!shard_.last_stage()) {
    TraceSpan span(p_.trace, "send hidden");
    p_.world.send(std::as_bytes(std::span(output_.hidden)), static_cast<int>(shard_.rank + shard_.tp_size), Deadline::after(p_.wait));
  }
  TraceSpan span(p_.trace, "collect logits");
  collect_logits(sampled_rows_.size());
  return logits_;
}

void StepExecutor::flatten(const StepPlan& plan) {
  tokens_.clear();
  segments_.clear();
  sampled_rows_.clear();
  for (const PlanSegment& s : plan.segments) {
    const auto first = static_cast<uint32_t>(tokens_.size());
    const auto rows = static_cast<uint32_t>(s.tokens.size());
    tokens_.insert(tokens_.end(), s.tokens.begin(), s.tokens.end());
    segments_.push_back({first, rows, s.first_position, s.blocks});
    for (uint32_t i = rows - s.sample_rows; i < rows; ++i) sampled_rows_.push_back(first + i);
  }
}

void StepExecutor::receive_hidden(size_t rows) {
  TraceSpan span(p_.trace, "receive hidden");
  hidden_.resize(rows * p_.spec.hidden);
  p_.world.recv(std::as_writable_bytes(std::span(hidden_)), static_cast<int>(shard_.rank - shard_.tp_size), Deadline::after(p_.wait));
}

// The vocabulary is sharded over the last stage; each of its ranks sends its columns to rank 0.
void StepExecutor::collect_logits(size_t sampled) {
  logits_.clear();
  if (sampled == 0) return;
  if (shard_.rank != 0) {
    if (shard_.last_stage() && !shard_.vocabulary.empty()) p_.world.send(std::as_bytes(std::span(output_.logits)), 0, Deadline::after(p_.wait));
    return;
  }
  const size_t width = p_.spec.vocabulary;
  logits_.resize(sampled * width);
  for (const model::RankShard& from : p_.shards.ranks) {
    if (!from.last_stage() || from.vocabulary.empty()) continue;
    const size_t n = from.vocabulary.size();
    const std::vector<float>* columns = &output_.logits;
    if (from.rank != 0) {
      piece_.resize(sampled * n);
      p_.world.recv(std::as_writable_bytes(std::span(piece_)), static_cast<int>(from.rank), Deadline::after(p_.wait));
      columns = &piece_;
    }
    for (size_t row = 0; row < sampled; ++row)
      std::copy_n(columns->begin() + static_cast<long>(row * n), n, logits_.begin() + static_cast<long>(row * width + from.vocabulary.begin));
  }
}

}  // namespace verbund::engine
