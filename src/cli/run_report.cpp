#include "cli/run_report.h"

#include <algorithm>
#include <fstream>
#include <limits>

#include "base/bytes.h"
#include "cli/terminal.h"

namespace verbund::cli {
namespace {

struct Speeds {
  uint64_t prefill_tokens, decode_tokens;
  double prefill, decode;  // tokens/s
};

// Prefill ends with the first token; decode is the tokens after it.
Speeds speeds_of(const nlohmann::json& f) {
  const auto count = [&](const char* key) { return f.value(key, uint64_t(0)); };
  const auto rate = [](uint64_t n, double s) { return s > 0 ? static_cast<double>(n) / s : 0.0; };
  Speeds s{};
  s.prefill_tokens = count("prompt_tokens") - count("cached_tokens");
  s.decode_tokens = count("output_tokens") > 0 ? count("output_tokens") - 1 : 0;
  s.prefill = rate(s.prefill_tokens, f.value("prefill_s", 0.0));
  s.decode = rate(s.decode_tokens, f.value("decode_s", 0.0));
  return s;
}

// Each link once, the lower rank first.
nlohmann::json links_of(const RunResult& r) {
  nlohmann::json links = nlohmann::json::array();
  for (const engine::RankReport& rank : r.ranks)
    for (const auto& l : rank.links)
      if (const auto peer = l.value("peer", uint64_t(0)); peer > rank.rank)
        links.push_back({{"a", rank.rank},
                         {"b", peer},
                         {"transport", l.value("transport", "")},
                         {"note", l.value("note", "")},
                         {"bytes", l.value("bytes_sent", uint64_t(0)) + l.value("bytes_received", uint64_t(0))}});
  return links;
}

std::string join(const std::vector<std::string>& parts, const char* between) {
  std::string text;
  for (const std::string& p : parts) text += (text.empty() ? "" : between) + p;
  return text;
}

}  // namespace

nlohmann::json to_json(const RunResult& r) {
  const Speeds s = speeds_of(r.figures);
  nlohmann::json ranks = nlohmann::json::array();
  for (const engine::RankReport& rank : r.ranks) {
    const model::RankShard& shard = r.shards.at(rank.rank);
    ranks.push_back({{"rank", rank.rank},
                     {"node", rank.rank},
                     {"stage", shard.stage},
                     {"share", shard.share},
                     {"layers", {shard.layers.begin, shard.layers.end}},
                     {"backend", rank.backend},
                     {"weight_bytes", rank.weight_bytes},
                     {"kv_bytes", rank.kv_bytes},
                     {"planned_bytes", rank.planned.total()},
                     {"planned", engine::to_json(rank.planned)},
                     {"peak_rss_bytes", rank.peak_rss_bytes}});
  }
  nlohmann::json j{{"text", r.text},
                   {"token_ids", r.token_ids},
                   {"finish_reason", r.finish_reason},
                   {"seed", r.seed},
                   {"timings",
                    {{"load_s", r.load_s},
                     {"ttft_s", r.ttft_s},
                     {"prefill_tokens", s.prefill_tokens},
                     {"prefill_tokens_per_s", s.prefill},
                     {"decode_tokens", s.decode_tokens},
                     {"decode_tokens_per_s", s.decode}}},
                   {"ranks", ranks},
                   {"links", links_of(r)}};
  if (r.figures.contains("drafted_tokens"))
    j["speculation"] = {{"drafted_tokens", r.figures["drafted_tokens"]}, {"accepted_tokens", r.figures["accepted_tokens"]}};
  if (r.figures.contains("logits_sha256")) j["logits_sha256"] = r.figures["logits_sha256"];
  return j;
}

std::string to_table(const RunResult& r) {
  std::vector<std::vector<std::string>> rows{{"node", "rank", "stage", "layers", "share", "weights", "KV cache", "planned", "peak RSS"}};
  for (const engine::RankReport& rank : r.ranks) {
    const model::RankShard& shard = r.shards.at(rank.rank);
    rows.push_back({std::to_string(rank.rank), std::to_string(rank.rank), std::to_string(shard.stage),
                    std::to_string(shard.layers.begin) + "-" + std::to_string(shard.layers.end - 1), fixed(shard.share * 100, 0) + " %",
                    format_bytes(rank.weight_bytes), format_bytes(rank.kv_bytes), format_bytes(rank.planned.total()),
                    format_bytes(rank.peak_rss_bytes)});
  }
  std::string text = table(rows, 0);
  std::vector<std::string> links;
  for (const auto& l : links_of(r))
    links.push_back(l["a"].dump() + "-" + l["b"].dump() + " " + l["transport"].get<std::string>() + " (" +
                    format_bytes(l["bytes"].get<uint64_t>()) + ")");
  text += "  links     " + (links.empty() ? "none" : join(links, ", ")) + "\n";
  for (const auto& l : links_of(r))
    if (const auto note = l["note"].get<std::string>(); !note.empty())
      text += "  warning   " + l["a"].dump() + "-" + l["b"].dump() + " " + l["transport"].get<std::string>() + ": " + note + "\n";
  text += "  backend   " + (r.ranks.empty() ? "" : r.ranks.front().backend) + "\n";
  const Speeds s = speeds_of(r.figures);
  text += "  load      " + milliseconds(r.load_s) + "\n";
  text += "  TTFT      " + milliseconds(r.ttft_s) + "\n";
  text += "  prefill   " + std::to_string(s.prefill_tokens) + " tokens, " + fixed(s.prefill, 1) + " tokens/s\n";
  text += "  decode    " + std::to_string(s.decode_tokens) + " tokens, " + fixed(s.decode, 1) + " tokens/s\n";
  if (const auto drafted = r.figures.value("drafted_tokens", uint64_t(0)); drafted > 0)
    text +=
        "  guesses   " + std::to_string(r.figures.value("accepted_tokens", uint64_t(0))) + " right of " + std::to_string(drafted) + "\n";
  return text;
}

// Times begin at zero with the first event of any rank; ranks share the clock of this machine.
void write_trace(const std::string& path, const RunResult& r) {
  enum Field : size_t { kName, kLayer, kStep, kRows, kSequences, kBytes, kBegin, kDuration };
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const engine::RankReport& rank : r.ranks)
    for (const auto& e : rank.trace) first = std::min(first, e.at(kBegin).get<int64_t>());
  const auto us = [](int64_t ns) { return static_cast<double>(ns) / 1e3; };

  nlohmann::json events = nlohmann::json::array();
  for (const engine::RankReport& rank : r.ranks) {
    const std::string name = "rank " + std::to_string(rank.rank) + " (process " + std::to_string(rank.pid) + ", " + rank.backend + ")";
    events.push_back({{"name", "process_name"}, {"ph", "M"}, {"pid", rank.rank}, {"args", {{"name", name}}}});
    std::vector<std::string> links;
    for (const auto& l : rank.links) links.push_back(l.value("transport", "") + " to rank " + std::to_string(l.value("peer", uint64_t(0))));
    events.push_back({{"name", "process_labels"}, {"ph", "M"}, {"pid", rank.rank}, {"args", {{"labels", join(links, ", ")}}}});
    events.push_back({{"name", "process_sort_index"}, {"ph", "M"}, {"pid", rank.rank}, {"args", {{"sort_index", rank.rank}}}});
    events.push_back({{"name", "thread_name"}, {"ph", "M"}, {"pid", rank.rank}, {"tid", 0}, {"args", {{"name", "steps"}}}});
    for (const auto& e : rank.trace) {
      nlohmann::json args{{"step", e.at(kStep)}, {"rows", e.at(kRows)}, {"sequences", e.at(kSequences)}};
      if (e.at(kLayer) >= 0) args["layer"] = e.at(kLayer);
      if (e.at(kBytes) >= 0) args["bytes"] = e.at(kBytes);
      events.push_back({{"name", e.at(kName)},
                        {"cat", e.at(kBytes) >= 0 ? "between ranks" : "operation"},
                        {"ph", "X"},
                        {"pid", rank.rank},
                        {"tid", 0},
                        {"ts", us(e.at(kBegin).get<int64_t>() - first)},
                        {"dur", us(e.at(kDuration).get<int64_t>())},
                        {"args", std::move(args)}});
    }
  }
  std::ofstream file(path);
  file << nlohmann::json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}};
  if (!file.flush()) throw Error(Code::unavailable, "cannot write the trace", path);
}

}  // namespace verbund::cli
