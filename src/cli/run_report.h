// What `verbund run` says after the answer: the table for people, the object for machines, the trace file.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/instance.h"
#include "model/shares.h"

namespace verbund::cli {

struct RunResult {
  std::string text;
  std::vector<int32_t> token_ids;
  std::string finish_reason;
  uint64_t seed = 0;
  double load_s = 0, ttft_s = 0;
  nlohmann::json figures;  // of the engine: prompt_tokens, prefill_s, ...
  std::vector<engine::RankReport> ranks;
  std::vector<model::RankShard> shards;
};

nlohmann::json to_json(const RunResult& result);
std::string to_table(const RunResult& result);
void write_trace(const std::string& path, const RunResult& result);  // Chrome trace format

}  // namespace verbund::cli
