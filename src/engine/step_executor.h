// Runs one planned step on this rank: its part of the forward pass, the hand-over between pipeline stages, and the
// logits of the sampled rows collected at rank 0. The same code on every rank. Belongs to the rank loop's thread.
#pragma once

#include <chrono>
#include <vector>

#include "base/trace.h"
#include "engine/runner_config.h"
#include "engine/step_plan.h"
#include "mesh/mesh.h"
#include "model/decoder.h"

namespace verbund::engine {

class StepExecutor {
 public:
  struct Parts {
    model::Decoder& decoder;
    mesh::Mesh& world;                 // all ranks of the instance
    mesh::Mesh& tp;                    // this stage
    const model::ShardPlan& shards;
    const model::DecoderSpec& spec;
    std::chrono::nanoseconds wait;
    Faults faults;
    Trace* trace;
  };
  explicit StepExecutor(const Parts& parts);

  // Rank 0: logits [plan.sampled_rows(), vocabulary] in plan order; other ranks: empty. Valid until the next call.
  const std::vector<float>& run(const StepPlan& plan);

 private:
  void flatten(const StepPlan& plan);
  void receive_hidden(size_t rows);
  void collect_logits(size_t sampled);

  Parts p_;
  const model::RankShard& shard_;
  std::vector<int32_t> tokens_;
  std::vector<compute::Segment> segments_;
  std::vector<uint32_t> sampled_rows_;
  std::vector<float> hidden_, logits_, piece_;
  model::Decoder::StepOutput output_;
};

}  // namespace verbund::engine
