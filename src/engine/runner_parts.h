// What a runner is made of, in the order in which it comes up: model headers and plan, links, weights, loop.
// Used by the runner's main thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/trace.h"
#include "compute/mlx_module.h"
#include "engine/leader.h"
#include "engine/runner_config.h"
#include "formats/model_files.h"
#include "mesh/connect.h"
#include "model/decoder.h"
#include "model/model_text.h"

namespace verbund::engine {

class RunnerParts {
 public:
  // Opens the model's headers, makes the backend and counts every byte; loads nothing.
  explicit RunnerParts(RunnerConfig config);
  ~RunnerParts();

  const RunnerConfig& config() const { return config_; }
  nlohmann::json planned() const;

  void connect(const std::vector<std::string>& endpoints, const std::function<void(mesh::Mesh&)>& made);
  void load(const std::function<void(uint64_t bytes, uint64_t total)>& progress);
  nlohmann::json ready() const;
  void serve(Mailbox& mailbox, Leader::Send send);  // until told to stop
  nlohmann::json report() const;

 private:
  bool leads() const { return config_.rank == 0; }
  std::chrono::nanoseconds wait() const { return config_.wait; }
  // Rows of a step whose logits are wanted: one of each running sequence, those of scored prompts, and those of guessed tokens.
  uint32_t logit_rows_max() const {
    const uint32_t sequences = std::min(config_.token_budget, config_.max_running);
    return std::min(config_.token_budget, sequences + config_.draft_rows + config_.score_rows);
  }
  uint64_t drafter_bytes() const;
  std::unique_ptr<Drafter> make_drafter() const;
  size_t token_ids() const { return text_.tokenizer ? std::min(text_.tokenizer->size(), spec_.vocabulary) : spec_.vocabulary; }
  const model::RankShard& shard() const { return shards_.ranks[config_.rank]; }

  RunnerConfig config_;
  formats::ModelFiles files_;
  model::DecoderSpec spec_;
  model::ShardPlan shards_;
  model::DecoderOptions options_;
  std::unique_ptr<compute::Backend> backend_;
  MemoryPlan memory_;
  std::unique_ptr<mesh::Listener> listener_;
  std::unique_ptr<compute::MlxReservation> mlx_port_;  // of the mlx transport's ring
  std::unique_ptr<mesh::Mesh> world_, tp_;
  std::unique_ptr<model::Decoder> decoder_;
  model::ModelText text_;
  std::unique_ptr<Trace> trace_;
};

}  // namespace verbund::engine
