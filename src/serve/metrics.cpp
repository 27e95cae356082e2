#include "serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>

namespace verbund::serve {
namespace {

constexpr double kSeconds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                               1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
constexpr double kTokens[] = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};

std::string escaped(const std::string& label) {
  std::string out;
  for (const char c : label) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

void type(std::string& out, std::string_view name, std::string_view kind, std::string_view help) {
  out += fmt::format("# HELP verbund_{0} {2}\n# TYPE verbund_{0} {1}\n", name, kind, help);
}

}  // namespace

const std::span<const double> kSecondsBounds = kSeconds, kTokenBounds = kTokens;

void Histogram::observe(double value) {
  const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  ++counts_[static_cast<size_t>(at)];
  sum_ += value;
  ++total_;
}

void Histogram::write(std::string& out, const std::string& name, const std::string& labels) const {
  uint64_t sum = 0;
  for (size_t i = 0; i < bounds_.size(); ++i)
    out += fmt::format("verbund_{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bounds_[i], sum += counts_[i]);
  out += fmt::format("verbund_{}_bucket{{{},le=\"+Inf\"}} {}\n", name, labels, total_);
  out += fmt::format("verbund_{}_sum{{{}}} {}\nverbund_{}_count{{{}}} {}\n", name, labels, sum_, name, labels, total_);
}

void Metrics::count_tokens(const nlohmann::json& figures) {
  if (!figures.is_object() || !figures.contains("prompt_tokens")) return;  // failed before it was taken
  const auto number = [&](const char* key) { return figures.value(key, uint64_t(0)); };
  prompt_tokens_ += number("prompt_tokens");
  cached_tokens_ += number("cached_tokens");
  output_tokens_ += number("output_tokens");
  prompt_tokens.observe(static_cast<double>(number("prompt_tokens")));
  generation_tokens.observe(static_cast<double>(number("output_tokens")));
  prefill_seconds.observe(figures.value("prefill_s", 0.0));
  decode_seconds.observe(figures.value("decode_s", 0.0));
}

std::string Metrics::text(const Now& now) const {
  const std::string labels = "model_name=\"" + escaped(now.model) + "\"";
  std::string out;
  const auto single = [&](std::string_view name, std::string_view kind, std::string_view help, double value) {
    type(out, name, kind, help);
    out += fmt::format("verbund_{}{{{}}} {}\n", name, labels, value);
  };
  const auto histogram = [&](const char* name, const char* help, const Histogram& h) {
    type(out, name, "histogram", help);
    h.write(out, name, labels);
  };
  type(out, "build_info", "gauge", "Version of the program");
  out += fmt::format("verbund_build_info{{version=\"{}\"}} 1\n", escaped(now.version));
  single("instance_ready", "gauge", "1 if a request would be taken now", now.ready);
  single("instance_restarts_total", "counter", "Times the instance was lost and started again", static_cast<double>(now.restarts));
  single("requests_running", "gauge", "Sequences that hold KV memory", static_cast<double>(now.engine.running));
  single("requests_waiting", "gauge", "Requests in the queue",
         static_cast<double>(now.live - std::min<size_t>(now.live, now.engine.running)));
  const double blocks = static_cast<double>(now.engine.blocks);
  single("kv_cache_usage_ratio", "gauge", "Part of the KV cache that running requests hold",
         blocks > 0 ? static_cast<double>(now.engine.blocks_used) / blocks : 0);
  single("prompt_tokens_total", "counter", "Tokens of prompts", static_cast<double>(prompt_tokens_));
  single("generation_tokens_total", "counter", "Tokens generated", static_cast<double>(output_tokens_));
  single("prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache", static_cast<double>(prompt_tokens_));
  single("prefix_cache_hits_total", "counter", "Prompt tokens found there", static_cast<double>(cached_tokens_));
  single("preemptions_total", "counter", "Requests whose KV memory was taken away for a while",
         static_cast<double>(now.engine.preemptions));
  single("steps_total", "counter", "Forward passes", static_cast<double>(now.engine.steps));
  single("step_tokens_total", "counter", "Rows of all forward passes", static_cast<double>(now.engine.rows));
  single("spec_decode_draft_tokens_total", "counter", "Tokens guessed by speculative decoding", static_cast<double>(now.engine.drafted));
  single("spec_decode_accepted_tokens_total", "counter", "Guessed tokens that were right", static_cast<double>(now.engine.accepted));
  type(out, "requests_finished_total", "counter", "Requests by how they ended");
  for (const auto& [reason, count] : finished_)
    out += fmt::format("verbund_requests_finished_total{{{},reason=\"{}\"}} {}\n", labels, escaped(reason), count);
  type(out, "http_requests_total", "counter", "HTTP requests by path of the API and status");
  for (const auto& [key, count] : http_)
    out += fmt::format("verbund_http_requests_total{{route=\"{}\",code=\"{}\"}} {}\n", escaped(key.first), key.second, count);
  type(out, "memory_bytes", "gauge", "Memory of a rank by purpose");
  for (const engine::RankReport& r : now.ranks)
    for (const auto& [kind, bytes] : {std::pair("weights", r.weight_bytes), std::pair("kv", r.kv_bytes),
                                      std::pair("activations", r.planned.activations), std::pair("planned", r.planned.total())})
      out += fmt::format("verbund_memory_bytes{{{},rank=\"{}\",kind=\"{}\"}} {}\n", labels, r.rank, kind, bytes);
  histogram("time_to_first_token_seconds", "From the request's arrival to its first token", time_to_first_token);
  histogram("inter_token_latency_seconds", "Between two tokens of a stream", inter_token_latency);
  histogram("request_seconds", "From the request's arrival to its end", request_seconds);
  histogram("prefill_seconds", "Queue and prefill", prefill_seconds);
  histogram("decode_seconds", "From the first token to the last", decode_seconds);
  histogram("request_prompt_tokens", "Tokens of a prompt", prompt_tokens);
  histogram("request_generation_tokens", "Tokens of an answer", generation_tokens);
  return out;
}

}  // namespace verbund::serve
