#include "engine/step_executor.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace verbund::engine {
namespace {

constexpr float kGood = 0, kFailed = 1;  // the last word of a frame of values
constexpr uint64_t kFailedMark = uint64_t{1} << 63;

Error failure_of_a_stage() {
  return Error({Code::invalid_argument, Lost::request,
                "an activation in an earlier or later stage is not a number or beyond 2^20: the model does not produce finite values for "
                "this input",
                "pipeline", "check the weights, or use another prompt"});
}

std::vector<Range> pieces_of(const model::ShardPlan& shards) {
  std::vector<Range> pieces;
  for (const model::RankShard& s : shards.ranks)
    if (s.last_stage() && !s.vocabulary.empty()) pieces.push_back(s.vocabulary);
  return pieces;
}

HeadRole role_of(const model::ShardPlan& shards, size_t rank) {
  return rank > 0 ? HeadRole::sends : shards.ranks.size() == 1 ? HeadRole::alone : HeadRole::gathers;
}

// The largest piece that this rank sends, or that rank 0 gets, and its flag.
size_t piece_bytes_max(const model::ShardPlan& shards, size_t rank, size_t logit_rows_max) {
  size_t bytes = 0;
  for (const model::RankShard& s : shards.ranks)
    if (s.last_stage() && s.rank > 0 && (rank == 0 || s.rank == rank))
      bytes = std::max(bytes, HeadRows::piece_bytes_max(s.vocabulary, logit_rows_max) + sizeof(float));
  return bytes;
}

size_t hidden_values_max(const model::RankShard& shard, size_t hidden, size_t rows_max) {
  return shard.first_stage() ? 0 : rows_max * hidden + 1;
}

std::vector<uint64_t> requests_of(const StepPlan& plan) {
  std::vector<uint64_t> ids;
  for (const PlanSegment& s : plan.segments) ids.push_back(s.request);
  return ids;
}

}  // namespace

StepExecutor::StepExecutor(const Parts& parts)
    : p_(parts),
      shard_(parts.shards.ranks[static_cast<size_t>(parts.world.rank())]),
      head_(role_of(parts.shards, shard_.rank), pieces_of(parts.shards), parts.logit_rows_max),
      owed_(parts.shards.ranks.size()) {
  hidden_.reserve(hidden_values_max(shard_, p_.spec.hidden, p_.rows_max));
  piece_.reserve(piece_bytes_max(p_.shards, shard_.rank, p_.logit_rows_max));
  // The flag of a frame is put behind them.
  if (shard_.last_stage())
    output_.logits.reserve(p_.logit_rows_max * shard_.vocabulary.size());
  else
    output_.hidden.reserve(p_.rows_max * p_.spec.hidden + 1);
}

// output_ is counted by the decoder.
uint64_t StepExecutor::bytes_max(const model::ShardPlan& shards, size_t rank, size_t hidden, size_t rows_max, size_t logit_rows_max) {
  return hidden_values_max(shards.ranks[rank], hidden, rows_max) * sizeof(float) + piece_bytes_max(shards, rank, logit_rows_max) +
         HeadRows::bytes_max(role_of(shards, rank), pieces_of(shards), logit_rows_max);
}

uint64_t StepExecutor::bytes() const { return hidden_.capacity() * sizeof(float) + piece_.capacity() + head_.bytes(); }

std::span<const SampledRow> StepExecutor::run(const StepPlan& plan) {
  flatten(plan);
  if (p_.trace) p_.trace->set_step(plan.sequence, static_cast<uint32_t>(tokens_.size()), static_cast<uint32_t>(segments_.size()));
  TraceSpan span(p_.trace, "step");
  head_.begin(plan);
  failed_.reset();
  if (!shard_.first_stage()) receive_hidden(tokens_.size());
  // Test hook: this rank leaves its computation out, as a bug would. The others must find out and not hang.
  const bool skipped = p_.faults.skip_rank == p_.world.rank() && p_.faults.skip_step == plan.sequence;
  if (skipped)
    output_ = {};
  else
    compute(plan);
  if (!shard_.last_stage()) send_hidden(skipped, plan);
  if (shard_.rank == 0)
    collect(plan);
  else
    send_piece(skipped, plan);
  if (failed_) throw *failed_;
  return head_.rows();
}

void StepExecutor::compute(const StepPlan& plan) {
  if (failed_) return;
  try {
    p_.decoder.forward({tokens_, segments_, sampled_rows_, hidden_}, p_.tp, p_.wait, p_.trace, output_);
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

void StepExecutor::send_hidden(bool skipped, const StepPlan& plan) {
  const size_t to = shard_.rank + shard_.tp_size;
  if (skipped) return send_or_mark({}, to, plan);
  output_.hidden.resize(tokens_.size() * p_.spec.hidden);  // a failed step has written nothing
  output_.hidden.push_back(failed_ ? kFailed : kGood);
  TraceSpan sending(p_.trace, "send hidden", -1, static_cast<int64_t>(output_.hidden.size() * sizeof(float)));
  send_or_mark(std::as_bytes(std::span(output_.hidden)), to, plan);
}

void StepExecutor::send_piece(bool skipped, const StepPlan& plan) {
  if (skipped || !sends_logits(shard_)) {
    TraceSpan sending(p_.trace, "send logits", -1, 0);
    return send_or_mark({}, 0, plan);
  }
  const float flag = failed_ ? kFailed : kGood;
  piece_.resize(head_.piece_bytes(shard_.vocabulary) + sizeof flag);
  const auto values = std::span(piece_).first(piece_.size() - sizeof flag);
  if (failed_) {
    std::fill(values.begin(), values.end(), std::byte{0});
  } else {
    TraceSpan packing(p_.trace, "pack logits");
    head_.pack(output_.logits, shard_.vocabulary, values);
  }
  std::memcpy(piece_.data() + values.size(), &flag, sizeof flag);
  TraceSpan sending(p_.trace, "send logits", -1, static_cast<int64_t>(piece_.size()));
  send_or_mark(piece_, 0, plan);
}

// A frame of values, or the step's number and whether the step is good.
void StepExecutor::send_or_mark(std::span<const std::byte> frame, size_t to, const StepPlan& plan) {
  const uint64_t mark = plan.sequence | (failed_ ? kFailedMark : 0);
  p_.world.send(frame.empty() ? std::as_bytes(std::span(&mark, 1)) : frame, static_cast<int>(to), Deadline::after(p_.wait));
}

// The vocabulary is sharded over the last stage; each of its ranks sends its piece to rank 0.
void StepExecutor::collect(const StepPlan& plan) {
  const size_t sampled = sampled_rows_.size();
  int64_t bytes = 0;
  for (const model::RankShard& from : p_.shards.ranks)
    if (from.rank != 0 && sends_logits(from)) bytes += static_cast<int64_t>(head_.piece_bytes(from.vocabulary) + sizeof kGood);
  TraceSpan collecting(p_.trace, "collect logits", -1, bytes);
  for (const model::RankShard& from : p_.shards.ranks) {
    if (from.rank != 0 && !sends_logits(from)) owed_[from.rank].push_back({plan.sequence, requests_of(plan)});
    // The ranks of this stage talk to each other all the time: their marks must not be left in the way.
    if (from.rank != 0 && (sampled > 0 || from.stage == shard_.stage || owed_[from.rank].size() > p_.owed_max)) take_marks(from.rank);
    if (sends_logits(from)) take_piece(from, plan);
  }
}

void StepExecutor::take_piece(const model::RankShard& from, const StepPlan& plan) {
  if (from.rank == 0) {
    if (failed_) return;
    if (output_.logits.size() != sampled_rows_.size() * from.vocabulary.size())
      throw Error(
          {Code::data_loss, Lost::instance, "ranks diverged: rank 0 has not computed step " + std::to_string(plan.sequence), "rank 0", {}});
    return head_.add(std::span<const float>(output_.logits), from.vocabulary);
  }
  float flag = kFailed;
  piece_.resize(head_.piece_bytes(from.vocabulary) + sizeof flag);
  p_.world.recv(piece_, static_cast<int>(from.rank), Deadline::after(p_.wait));
  const auto values = std::span<const std::byte>(piece_).first(piece_.size() - sizeof flag);
  std::memcpy(&flag, piece_.data() + values.size(), sizeof flag);
  if (flag != kGood && !failed_) failed_ = failure_of_a_stage();
  if (!failed_) head_.add(values, from.vocabulary);
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
