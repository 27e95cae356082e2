#include "engine/step_executor.h"

#include <algorithm>

#include "base/error.h"

namespace verbund::engine {
namespace {

constexpr float kGood = 0, kFailed = 1;
constexpr uint64_t kFailedMark = uint64_t{1} << 63;

Error failure_of_a_stage() {
  return Error({Code::invalid_argument, Lost::request,
                "an activation in an earlier or later stage is not a number or beyond 2^20: the model does not produce finite values for "
                "this input",
                "pipeline", "check the weights, or use another prompt"});
}

std::vector<uint64_t> requests_of(const StepPlan& plan) {
  std::vector<uint64_t> ids;
  for (const PlanSegment& s : plan.segments) ids.push_back(s.request);
  return ids;
}

}  // namespace

StepExecutor::StepExecutor(const Parts& parts)
    : p_(parts), shard_(parts.shards.ranks[static_cast<size_t>(parts.world.rank())]), owed_(parts.shards.ranks.size()) {}

const std::vector<float>& StepExecutor::run(const StepPlan& plan) {
  flatten(plan);
  if (p_.trace) p_.trace->set_step(plan.sequence, static_cast<uint32_t>(tokens_.size()), static_cast<uint32_t>(segments_.size()));
  TraceSpan span(p_.trace, "step");
  output_ = {};
  failed_.reset();
  if (!shard_.first_stage()) receive_hidden(tokens_.size());
  // Test hook: this rank leaves its computation out, as a bug would. The others must find out and not hang.
  const bool skipped = p_.faults.skip_rank == p_.world.rank() && p_.faults.skip_step == plan.sequence;
  if (!skipped) compute(plan);
  if (!shard_.last_stage()) {
    const size_t count = skipped ? 0 : tokens_.size() * p_.spec.hidden;
    TraceSpan sending(p_.trace, "send hidden", -1, static_cast<int64_t>(count * sizeof(float)));
    send_or_mark(output_.hidden, count, shard_.rank + shard_.tp_size, plan);
  }
  if (shard_.rank == 0) {
    TraceSpan collecting(p_.trace, "collect logits", -1, static_cast<int64_t>(sampled_rows_.size() * p_.spec.vocabulary * sizeof(float)));
    collect(plan);
  } else {
    const size_t count = skipped || !sends_logits(shard_) ? 0 : sampled_rows_.size() * shard_.vocabulary.size();
    TraceSpan sending(p_.trace, "send logits", -1, static_cast<int64_t>(count * sizeof(float)));
    send_or_mark(output_.logits, count, 0, plan);
  }
  if (failed_) throw *failed_;
  return logits_;
}

void StepExecutor::compute(const StepPlan& plan) {
  if (failed_) return;
  try {
    output_ = p_.decoder.forward({tokens_, segments_, sampled_rows_, hidden_}, p_.tp, p_.wait, p_.trace);
  } catch (const Error& e) {
    if (e.lost() != Lost::request) throw;
    failed_ = e;
  }
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
  TraceSpan span(p_.trace, "receive hidden", -1, static_cast<int64_t>(rows * p_.spec.hidden * sizeof(float)));
  hidden_.resize(rows * p_.spec.hidden + 1);
  p_.world.recv(std::as_writable_bytes(std::span(hidden_)), static_cast<int>(shard_.rank - shard_.tp_size), Deadline::after(p_.wait));
  if (hidden_.back() != kGood) failed_ = failure_of_a_stage();
  hidden_.pop_back();
}

// `count` values and whether they are good, or the step's number and whether the step is.
void StepExecutor::send_or_mark(std::vector<float>& values, size_t count, size_t to, const StepPlan& plan) {
  const uint64_t mark = plan.sequence | (failed_ ? kFailedMark : 0);
  if (count > 0) {
    values.resize(count);
    values.push_back(failed_ ? kFailed : kGood);
  }
  const auto bytes = count == 0 ? std::as_bytes(std::span(&mark, 1)) : std::as_bytes(std::span(values));
  p_.world.send(bytes, static_cast<int>(to), Deadline::after(p_.wait));
}

// The vocabulary is sharded over the last stage; each of its ranks sends its columns to rank 0.
void StepExecutor::collect(const StepPlan& plan) {
  const size_t width = p_.spec.vocabulary, sampled = sampled_rows_.size();
  logits_.resize(sampled * width);
  for (const model::RankShard& from : p_.shards.ranks) {
    const std::vector<float>* columns = &output_.logits;
    if (from.rank != 0 && !sends_logits(from)) owed_[from.rank].push_back({plan.sequence, requests_of(plan)});
    // The ranks of this stage talk to each other all the time: their marks must not be left in the way.
    if (from.rank != 0 && (sampled > 0 || from.stage == shard_.stage || owed_[from.rank].size() > p_.owed_max)) take_marks(from.rank);
    if (!sends_logits(from)) continue;
    const size_t n = from.vocabulary.size();
    if (from.rank != 0) {
      piece_.resize(sampled * n + 1);
      p_.world.recv(std::as_writable_bytes(std::span(piece_)), static_cast<int>(from.rank), Deadline::after(p_.wait));
      if (piece_.back() != kGood && !failed_) failed_ = failure_of_a_stage();
      piece_.pop_back();
      columns = &piece_;
    }
    if (failed_) continue;
    if (columns->size() != sampled * n)
      throw Error(
          {Code::data_loss, Lost::instance, "ranks diverged: rank 0 has not computed step " + std::to_string(plan.sequence), "rank 0", {}});
    for (size_t row = 0; row < sampled; ++row)
      std::copy_n(columns->begin() + static_cast<long>(row * n), n,
                  logits_.begin() + static_cast<long>(row * width + from.vocabulary.begin));
  }
}

void StepExecutor::take_marks(size_t rank) {
  for (; !owed_[rank].empty(); owed_[rank].pop_front()) {
    const OwedMark& owed = owed_[rank].front();
    uint64_t mark = 0;
    p_.world.recv(std::as_writable_bytes(std::span(&mark, 1)), static_cast<int>(rank), Deadline::after(p_.wait));
    const uint64_t sequence = mark & ~kFailedMark;
    if (sequence != owed.sequence)
      throw Error({Code::data_loss,
                   Lost::instance,
                   "ranks diverged: rank " + std::to_string(rank) + " has ended step " + std::to_string(sequence) + " where step " +
                       std::to_string(owed.sequence) + " was expected",
                   "rank 0",
                   {}});
    if ((mark & kFailedMark) == 0) continue;
    failed_requests_.insert(failed_requests_.end(), owed.requests.begin(), owed.requests.end());
    if (!failed_) failed_ = failure_of_a_stage();
  }
}

}  // namespace verbund::engine
