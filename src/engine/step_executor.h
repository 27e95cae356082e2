// Runs one planned step on this rank: its part of the forward pass, the hand-over between pipeline stages, and the
// logits of the sampled rows collected at rank 0. The same code on every rank. Belongs to the rank loop's thread.
//
// Every rank ends a step with exactly one frame to the next stage (its hidden rows) and, unless it is rank 0, one to rank 0
// (its piece of the sampled rows, head_rows.h); where it has nothing to say the frame is the step's number. So a rank that left something
// out is found by a frame that is not the expected one instead of by a timeout. Rank 0 reads the step numbers of later
// stages late, so that the stages of a pipeline may work on different prefill chunks at once.
//
// A request's error (a value outside the fixed-point range) is met by all ranks of one stage at the same place. They end the
// step with their frames all the same, which then say so: later stages pass it on, and rank 0 throws it, in this step or, if
// the step wanted no logits, before the results of a later one are used.
#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/trace.h"
#include "engine/head_rows.h"
#include "engine/runner_config.h"
#include "engine/step_plan.h"
#include "mesh/mesh.h"
#include "model/decoder.h"

namespace verbund::engine {

class StepExecutor {
 public:
  struct Parts {
    model::Decoder& decoder;
    mesh::Mesh& world;  // all ranks of the instance
    mesh::Mesh& tp;     // this stage
    const model::ShardPlan& shards;
    const model::DecoderSpec& spec;
    std::chrono::nanoseconds wait;
    size_t rows_max = 0, logit_rows_max = 0;  // of a step: tokens, and rows that are sampled
    size_t owed_max = 0;  // prefill steps that rank 0 may be ahead of later stages; 0 where links carry one order of frames only (MLX)
    Faults faults;
    Trace* trace;
  };
  explicit StepExecutor(const Parts& parts);

  // Bytes of the buffers between decoder, links and sampler, all of them allocated at once.
  static uint64_t bytes_max(const model::ShardPlan& shards, size_t rank, size_t hidden, size_t rows_max, size_t logit_rows_max);
  uint64_t bytes() const;

  // Rank 0: the plan's sampled rows in its order; other ranks: none. Valid until the next call.
  // Throws Lost::request when no result of this step may be used; failed_requests() has those of earlier steps that must end too.
  std::span<const SampledRow> run(const StepPlan& plan);
  Trace* trace() const { return p_.trace; }
  std::vector<uint64_t> failed_requests() { return std::exchange(failed_requests_, {}); }

 private:
  void flatten(const StepPlan& plan);
  void compute(const StepPlan& plan);
  void receive_hidden(size_t rows);
  void send_hidden(bool skipped, const StepPlan& plan);
  void send_piece(bool skipped, const StepPlan& plan);
  void send_or_mark(std::span<const std::byte> frame, size_t to, const StepPlan& plan);
  void collect(const StepPlan& plan);  // rank 0
  void take_piece(const model::RankShard& from, const StepPlan& plan);
  void take_marks(size_t rank);
  bool sends_logits(const model::RankShard& shard) const {
    return !sampled_rows_.empty() && shard.last_stage() && !shard.vocabulary.empty();
  }

  Parts p_;
  const model::RankShard& shard_;
  std::vector<int32_t> tokens_;
  std::vector<compute::Segment> segments_;
  std::vector<uint32_t> sampled_rows_;
  std::vector<float> hidden_;     // from the stage before
  std::vector<std::byte> piece_;  // of the sampled rows, to rank 0 or from one of the others
  HeadRows head_;
  model::Decoder::StepOutput output_;
  std::optional<Error> failed_;  // this step's request error
  struct OwedMark {
    uint64_t sequence;
    std::vector<uint64_t> requests;
  };
  std::vector<std::deque<OwedMark>> owed_;  // rank 0: steps whose end each rank has yet to report
  std::vector<uint64_t> failed_requests_;
};

}  // namespace verbund::engine
