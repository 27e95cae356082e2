// What a runner is told when it starts: which model, which place in the instance, which backend and transport, how much
// memory may be used for what. Travels as JSON in the first frame.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "model/shares.h"

namespace verbund::engine {

// Test hooks (`verbund run --fault ...`, hidden): they make faults happen at a chosen moment and change no result.
struct Faults {
  uint64_t jitter_seed = 0;   // jitter:SEED     random wire and arrival order
  uint32_t slow_plan_ms = 0;  // slow-plan:MS    pause before a rank plans
  uint32_t slow_load_ms = 0;  // slow-load:MS    pause before the weights are read
  int32_t skip_rank = -1;     // skip:RANK@STEP  this rank leaves out the reduction of one step
  uint64_t skip_step = 0;
};
Faults parse_faults(const std::vector<std::string>& texts);  // throws invalid_argument

struct RunnerConfig {
  std::string model;  // path
  size_t rank = 0;
  model::ParallelConfig parallel;
  std::string backend = "native";   // native | mlx
  std::string transport = "shm";    // shm | tcp | verbs | mlx
  std::string queue_pair = "auto";  // of verbs: auto | rc | uc
  bool require_rdma = false;        // of verbs: no pair of ranks may use TCP instead
  std::string isa = "auto";
  bool fast_dense = false;  // native: dense products in bf16 (compute/numerics.h point 1)
  unsigned threads = 1;
  uint32_t context = 0;  // positions of a sequence
  uint32_t kv_blocks = 0;
  std::string kv_type = "f16";  // f16 | f32
  uint32_t token_budget = 512;
  uint32_t prefill_chunk = 256;
  uint32_t max_running = 8;
  std::string drafter = "off";  // off | ngram | model (speculative decoding, drafter.h)
  std::string draft_model;      // path
  uint32_t draft_rows = 0;      // decode rows of a step up to which guesses fill it
  uint32_t score_rows = 0;      // rows of logits of a step beyond one a sequence (Request::score_from)
  uint64_t epoch = 1;
  std::string secret;                            // of the data links
  std::chrono::milliseconds wait{60'000};        // data waits; dead peers are noticed earlier, by heartbeats
  std::chrono::milliseconds load_wait{900'000};  // until the slowest rank has loaded
  bool trace = false;
  Faults faults;
};

nlohmann::json to_json(const RunnerConfig& config);
RunnerConfig runner_config_from_json(const nlohmann::json& json);  // throws invalid_argument

// Bytes of a rank by purpose; what `planned_bytes` adds up.
struct MemoryPlan {
  uint64_t weights = 0, kv = 0, activations = 0, tables = 0, transport = 0, tokenizer = 0;
  uint64_t process = 0;  // code, libraries, model headers: what the process holds before loading
  uint64_t total() const { return weights + kv + activations + tables + transport + tokenizer + process; }
};
nlohmann::json to_json(const MemoryPlan& plan);
MemoryPlan memory_plan_from_json(const nlohmann::json& json);

}  // namespace verbund::engine
