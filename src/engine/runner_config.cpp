#include "engine/runner_config.h"

#include <charconv>

#include "base/error.h"

namespace verbund::engine {
namespace {

template <class T>
bool parse_number(std::string_view text, T& value) {
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  return problem == std::errc() && end == text.data() + text.size();
}

}  // namespace

Faults parse_faults(const std::vector<std::string>& texts) {
  Faults f;
  for (const std::string& text : texts) {
    const size_t colon = text.find(':');
    const std::string_view kind = std::string_view(text).substr(0, colon);
    const std::string_view value = colon == std::string::npos ? std::string_view() : std::string_view(text).substr(colon + 1);
    const size_t at = value.find('@');
    const bool ok = kind == "jitter"      ? parse_number(value, f.jitter_seed)
                    : kind == "slow-plan" ? parse_number(value, f.slow_plan_ms)
                    : kind == "slow-load" ? parse_number(value, f.slow_load_ms)
                    : kind == "skip"      ? at != std::string_view::npos && parse_number(value.substr(0, at), f.skip_rank) &&
                                           parse_number(value.substr(at + 1), f.skip_step)
                                     : false;
    if (!ok)
      throw Error(Code::invalid_argument, "'" + text + "' is not a fault", {}, "jitter:SEED, slow-plan:MS, slow-load:MS, skip:RANK@STEP");
  }
  return f;
}

nlohmann::json to_json(const RunnerConfig& c) {
  return {{"model", c.model},
          {"rank", c.rank},
          {"ranks", c.parallel.ranks},
          {"stages", c.parallel.stages},
          {"shares", c.parallel.shares},
          {"layers", c.parallel.layers},
          {"backend", c.backend},
          {"transport", c.transport},
          {"queue_pair", c.queue_pair},
          {"require_rdma", c.require_rdma},
          {"isa", c.isa},
          {"fast_dense", c.fast_dense},
          {"threads", c.threads},
          {"context", c.context},
          {"kv_blocks", c.kv_blocks},
          {"kv_type", c.kv_type},
          {"token_budget", c.token_budget},
          {"prefill_chunk", c.prefill_chunk},
          {"max_running", c.max_running},
          {"score_rows", c.score_rows},
          {"drafter", c.drafter},
          {"draft_model", c.draft_model},
          {"draft_rows", c.draft_rows},
          {"epoch", c.epoch},
          {"secret", c.secret},
          {"wait_ms", c.wait.count()},
          {"load_wait_ms", c.load_wait.count()},
          {"trace", c.trace},
          {"faults",
           {{"jitter_seed", c.faults.jitter_seed},
            {"slow_plan_ms", c.faults.slow_plan_ms},
            {"slow_load_ms", c.faults.slow_load_ms},
            {"skip_rank", c.faults.skip_rank},
            {"skip_step", c.faults.skip_step}}}};
}

RunnerConfig runner_config_from_json(const nlohmann::json& j) {
  RunnerConfig c;
  try {
    j.at("model").get_to(c.model);
    j.at("rank").get_to(c.rank);
    j.at("ranks").get_to(c.parallel.ranks);
    j.at("stages").get_to(c.parallel.stages);
    j.at("shares").get_to(c.parallel.shares);
    j.at("layers").get_to(c.parallel.layers);
    j.at("backend").get_to(c.backend);
    j.at("transport").get_to(c.transport);
    j.at("queue_pair").get_to(c.queue_pair);
    j.at("require_rdma").get_to(c.require_rdma);
    j.at("isa").get_to(c.isa);
    j.at("fast_dense").get_to(c.fast_dense);
    j.at("threads").get_to(c.threads);
    j.at("context").get_to(c.context);
    j.at("kv_blocks").get_to(c.kv_blocks);
    j.at("kv_type").get_to(c.kv_type);
    j.at("token_budget").get_to(c.token_budget);
    j.at("prefill_chunk").get_to(c.prefill_chunk);
    j.at("max_running").get_to(c.max_running);
    j.at("score_rows").get_to(c.score_rows);
    j.at("drafter").get_to(c.drafter);
    j.at("draft_model").get_to(c.draft_model);
    j.at("draft_rows").get_to(c.draft_rows);
    j.at("epoch").get_to(c.epoch);
    j.at("secret").get_to(c.secret);
    c.wait = std::chrono::milliseconds(j.at("wait_ms").get<int64_t>());
    c.load_wait = std::chrono::milliseconds(j.at("load_wait_ms").get<int64_t>());
    j.at("trace").get_to(c.trace);
    const auto& f = j.at("faults");
    f.at("jitter_seed").get_to(c.faults.jitter_seed);
    f.at("slow_plan_ms").get_to(c.faults.slow_plan_ms);
    f.at("slow_load_ms").get_to(c.faults.slow_load_ms);
    f.at("skip_rank").get_to(c.faults.skip_rank);
    f.at("skip_step").get_to(c.faults.skip_step);
  } catch (const nlohmann::json::exception& e) {
    throw Error(Code::invalid_argument, std::string("the runner's configuration is malformed: ") + e.what());
  }
  return c;
}

nlohmann::json to_json(const MemoryPlan& p) {
  return {
      {"weights", p.weights},     {"kv", p.kv},          {"activations", p.activations}, {"tables", p.tables}, {"transport", p.transport},
      {"tokenizer", p.tokenizer}, {"process", p.process}};
}

MemoryPlan memory_plan_from_json(const nlohmann::json& j) {
  const auto get = [&](const char* key) { return j.is_object() ? j.value(key, uint64_t(0)) : 0; };
  return {get("weights"), get("kv"), get("activations"), get("tables"), get("transport"), get("tokenizer"), get("process")};
}

}  // namespace verbund::engine
