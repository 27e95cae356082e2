// Prefill and decode of a model through the real engine: an Instance with its runners, scheduler, sampler and mesh.
//
//   bench_model MODEL [--ranks 2] [--threads 1] [--transport tcp] [--isa avx2] [--prefill 512,2048] [--decode 0,1024,0x16] [--json]
//
// One instance, loaded once, measures all that is asked for, each figure `--repeat` times in turns. Prefill: tokens of a prompt
// that no cache knows, over the time from its submission to the first token. Decode: tokens over time from the moment when
// every sequence has its first token until the first of them ends; their prompts (DEPTH tokens, at least one) are in the
// prefix cache by then. Tokens are random, sampling is greedy, end tokens are ignored.
// Also told: how long planning and loading took, and how many bytes the ranks have read from files by then; with --trace also
// what rank 0 does between two steps of the largest batch (scheduling, sampling, sending events), from its own trace.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "base/error.h"
#include "cli/model_folder.h"
#include "engine/instance.h"
#include "machine.h"
#include "model/family.h"
#include "model/model_text.h"

namespace verbund::bench {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kStall = 120s;  // without any event: something hangs

struct Options {
  std::string model, program;
  size_t ranks = 1, stages = 1;
  unsigned threads = 1;
  std::string transport = "shm", isa = "auto", kv_type = "f16", backend = "native";
  std::vector<uint32_t> prefill{512, 2048};
  std::vector<std::string> decode{"0", "512", "1024", "2048", "0x4", "0x16"};
  uint32_t tokens = 64, prefill_chunk = engine::RunnerConfig{}.prefill_chunk;
  int repeat = 5;
  bool fast_dense = false, trace = false, json = false;
};

struct Test {
  bool prefill;
  uint32_t depth;  // prefill: tokens of the prompt
  uint32_t batch;
  std::vector<double> samples;  // tokens/s
  std::string name() const {
    if (prefill) return "prefill " + std::to_string(depth);
    return "decode after " + std::to_string(depth) + (batch == 1 ? "" : ", " + std::to_string(batch) + " sequences");
  }
};

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

Test decode_test(const std::string& text) {
  Test test{false, 0, 1, {}};
  const char* end = text.data() + text.size();
  auto [at, problem] = std::from_chars(text.data(), end, test.depth);
  if (problem == std::errc() && at != end && *at == 'x') {
    const auto rest = std::from_chars(at + 1, end, test.batch);
    at = rest.ptr, problem = rest.ec;
  }
  if (problem != std::errc() || at != end || test.batch == 0 || test.batch > 256)
    throw Error(Code::invalid_argument, "--decode: '" + text + "' is not DEPTH or DEPTHxSEQUENCES", {}, "write for example 1024 or 0x16");
  return test;
}

std::vector<Test> tests_of(const Options& o) {
  std::vector<Test> tests;
  for (const uint32_t n : o.prefill) tests.push_back({true, n, 1, {}});
  for (const std::string& text : o.decode) tests.push_back(decode_test(text));
  if (tests.empty()) throw Error(Code::invalid_argument, "nothing to measure: --prefill and --decode are empty");
  return tests;
}

struct Statistics {
  double mean = 0, deviation = 0, median = 0;
  explicit Statistics(std::vector<double> v) {
    std::sort(v.begin(), v.end());
    const auto n = static_cast<double>(v.size());
    for (const double x : v) mean += x / n;
    for (const double x : v) deviation += (x - mean) * (x - mean) / std::max(1.0, n - 1);
    deviation = std::sqrt(deviation);
    median = (v[v.size() / 2] + v[(v.size() - 1) / 2]) / 2;
  }
};

// Bytes that a process has read from files and sockets; 0 where the system does not tell.
uint64_t bytes_read(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/io");
  uint64_t bytes = 0;
  for (std::string key; file >> key >> bytes;)
    if (key == "rchar:") return bytes;
  return 0;
}

// Mean seconds of a step with `sequences` decoding sequences at rank 0, and of what lies between it and the next one.
nlohmann::json between_steps(const nlohmann::json& trace, uint32_t sequences) {
  enum Field : size_t { kName, kLayer, kStep, kRows, kSequences, kBytes, kBegin, kDuration };
  std::map<std::string, double> sums;
  double steps = 0, periods = 0;
  std::optional<double> last_begin;
  for (const auto& e : trace) {
    const std::string name = e.at(kName);
    const bool full = e.at(kSequences) == sequences && e.at(kRows) == sequences;
    if (name != "step" && name != "schedule" && name != "sample" && name != "publish") continue;
    if (full) sums[name] += e.at(kDuration).get<double>() / 1e9;
    if (name != "step") continue;
    const double begin = e.at(kBegin).get<double>() / 1e9;
    if (full && last_begin) periods += begin - *last_begin, steps += 1;
    last_begin = full ? std::optional(begin) : std::nullopt;
  }
  if (steps == 0) return nullptr;
  const double period = periods / steps, step = sums["step"] / steps, sample = sums["sample"] / steps;
  return {{"sequences", sequences},
          {"period_s", period},
          {"step_s", step},
          {"sample_s", sample},
          {"other_s", std::max(0.0, period - step - sample)}};
}

class ModelBench {
 public:
  explicit ModelBench(const Options& options)
      : o_(options), path_(std::filesystem::absolute(cli::resolve_model(o_.model)).string()), tests_(tests_of(o_)) {
    const formats::ModelFiles files = formats::open_model(path_);
    const model::DecoderSpec spec = model::read_spec(files);
    vocabulary_ = std::min(model::load_text(files, spec).tokenizer->size(), spec.vocabulary);
    for (const Test& t : tests_) {
      // Sequences of a batch do not start in the same step: the first is ahead of the last by as many tokens.
      context_ = std::max(context_, t.depth + (t.prefill ? 1 : o_.tokens + t.batch + 2));
      batch_ = std::max(batch_, t.batch);
      blocks_ = std::max(blocks_, blocks_of(context_) * t.batch);
    }
    if (context_ > spec.context_max)
      throw Error(Code::invalid_argument,
                  "this takes " + std::to_string(context_) + " positions; the model is made for " + std::to_string(spec.context_max));
  }

  int run() {
    engine::Instance instance(config());
    const auto begun = Clock::now();
    instance.plan();
    planned_s_ = seconds(Clock::now() - begun);
    instance.load({}, {});
    loaded_s_ = seconds(Clock::now() - begun);
    for (const engine::RankReport& r : instance.reports()) read_.push_back(bytes_read(r.pid));
    for (int i = -1; i < o_.repeat; ++i)  // the first round warms up
      for (Test& t : tests_) {
        const double rate = t.prefill ? prefill(instance, t.depth) : decode(instance, t);
        if (i >= 0) t.samples.push_back(rate);
      }
    instance.stop();
    reports_ = instance.reports();
    show();
    return 0;
  }

 private:
  static uint32_t blocks_of(uint32_t positions) { return static_cast<uint32_t>(ceil_div(positions, compute::kKvBlock)) + 1; }

  engine::InstanceConfig config() const {
    engine::InstanceConfig c;
    c.program = o_.program;
    engine::RunnerConfig& r = c.runner;
    r.model = path_;
    r.parallel.ranks = o_.ranks;
    r.parallel.stages = o_.stages;
    r.backend = o_.backend;
    r.transport = o_.transport;
    r.isa = o_.isa;
    r.fast_dense = o_.fast_dense;
    r.threads = o_.threads;
    r.kv_type = o_.kv_type;
    r.context = context_;
    r.kv_blocks = 2 * blocks_;  // prompts stay in the prefix cache between rounds
    r.max_running = batch_;
    r.prefill_chunk = o_.prefill_chunk;
    r.trace = o_.trace;
    r.token_budget = r.prefill_chunk + r.max_running;
    return c;
  }

  std::vector<int32_t> random_tokens(uint32_t n, uint64_t seed) const {
    std::mt19937_64 random(seed);
    std::vector<int32_t> ids(n);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % vocabulary_);
    return ids;
  }

  engine::Request request(std::vector<int32_t> prompt, uint32_t tokens) {
    engine::Request r;
    r.id = ++last_id_;
    r.prompt = std::move(prompt);
    r.params.temperature = 0;
    r.max_tokens = tokens;
    r.ignore_eos = true;
    return r;
  }

  // Submits, then hands each token's request and time to `seen` until every request has ended.
  void complete(engine::Instance& instance, const std::vector<engine::Request>& requests,
                const std::function<void(uint64_t, Clock::time_point, bool last)>& seen) {
    for (const engine::Request& r : requests) instance.submit(r, false);
    size_t running = requests.size();
    for (auto heard = Clock::now(); running > 0;) {
      for (const engine::InstanceEvent& e : instance.poll(100ms)) {
        heard = Clock::now();
        if (e.error) throw *e.error;
        if (e.token) seen(e.request, heard, e.finish.has_value());
        running -= e.finish ? 1 : 0;
      }
      if (Clock::now() - heard > kStall) throw Error(Code::deadline_exceeded, "no token for two minutes", "bench_model");
    }
  }

  double prefill(engine::Instance& instance, uint32_t tokens) {
    const std::vector<engine::Request> requests{request(random_tokens(tokens, ++last_seed_), 1)};
    const auto begun = Clock::now();
    Clock::time_point first{};
    complete(instance, requests, [&](uint64_t, Clock::time_point at, bool) { first = at; });
    return tokens / seconds(first - begun);
  }

  double decode(engine::Instance& instance, const Test& test) {
    const uint32_t depth = std::max(1u, test.depth);
    std::vector<engine::Request> fill, requests;
    for (uint32_t i = 0; i < test.batch; ++i) {
      const std::vector<int32_t> prompt = random_tokens(depth, kDepthSeed + i);
      fill.push_back(request(prompt, 1));
      requests.push_back(request(prompt, o_.tokens + test.batch));
    }
    if (depth > compute::kKvBlock) complete(instance, fill, [](uint64_t, Clock::time_point, bool) {});
    std::map<uint64_t, Clock::time_point> firsts;
    std::vector<Clock::time_point> times;
    Clock::time_point begin{}, end = Clock::time_point::max();
    complete(instance, requests, [&](uint64_t id, Clock::time_point at, bool last) {
      times.push_back(at);
      if (firsts.emplace(id, at).second) begin = std::max(begin, at);
      if (last) end = std::min(end, at);
    });
    const auto counted = std::count_if(times.begin(), times.end(), [&](auto at) { return at > begin && at <= end; });
    return static_cast<double>(counted) / seconds(end - begin);
  }

  void show() const {
    nlohmann::json out{{"machine", machine()},      {"model", path_},      {"backend", reports_.front().backend},
                       {"ranks", o_.ranks},         {"stages", o_.stages}, {"threads", o_.threads},
                       {"transport", o_.transport}, {"kv", o_.kv_type},    {"plan_s", planned_s_},
                       {"load_s", loaded_s_},       {"bytes_read", read_}, {"tests", nlohmann::json::array()}};
    for (const engine::RankReport& r : reports_) out["weight_bytes"].push_back(r.weight_bytes);
    if (o_.trace) out["between_steps"] = between_steps(reports_.front().trace, batch_);
    for (const Test& t : tests_) {
      const Statistics s(t.samples);
      out["tests"].push_back({{"name", t.name()},
                              {"kind", t.prefill ? "prefill" : "decode"},
                              {"depth", t.depth},
                              {"batch", t.batch},
                              {"tokens_per_s", s.mean},
                              {"deviation", s.deviation},
                              {"median", s.median},
                              {"samples", t.samples}});
    }
    o_.json ? static_cast<void>(std::printf("%s\n", out.dump(2).c_str())) : print(out);
  }

  void print(const nlohmann::json& out) const {
    std::printf("%s\n%s; %s; %zu rank(s) over %s, KV %s; loaded in %.3f s\n\n%-36s %10s %8s %10s %10s %5s\n",
                describe(out["machine"]).c_str(), path_.c_str(), reports_.front().backend.c_str(), o_.ranks,
                o_.ranks == 1 ? "nothing" : o_.transport.c_str(), o_.kv_type.c_str(), loaded_s_, "test", "tokens/s", "+-", "min", "max",
                "runs");
    for (const Test& t : tests_) {
      const Statistics s(t.samples);
      const auto [low, high] = std::minmax_element(t.samples.begin(), t.samples.end());
      std::printf("%-36s %10.1f %8.1f %10.1f %10.1f %5zu\n", t.name().c_str(), s.mean, s.deviation, *low, *high, t.samples.size());
    }
    if (!out.contains("between_steps") || out["between_steps"].is_null()) return;
    const auto& between = out["between_steps"];
    const auto us = [&](const char* key) { return 1e6 * between[key].get<double>(); };
    std::printf("\nrank 0, %u sequences: a step takes %.0f us, sampling %.0f us, scheduling and events %.0f us\n",
                between["sequences"].get<unsigned>(), us("step_s"), us("sample_s"), us("other_s"));
  }

  static constexpr uint64_t kDepthSeed = uint64_t{1} << 32;

  const Options& o_;
  std::string path_;
  std::vector<Test> tests_;
  size_t vocabulary_ = 0;
  uint32_t context_ = 1, batch_ = 1, blocks_ = 1;
  uint64_t last_id_ = 0, last_seed_ = 0;
  double planned_s_ = 0, loaded_s_ = 0;
  std::vector<uint64_t> read_;
  std::vector<engine::RankReport> reports_;
};

void declare(CLI::App& app, Options& o) {
  app.add_option("MODEL", o.model, "a folder, a GGUF file, or the name of a model in the model folder")->required();
  app.add_option("--ranks", o.ranks, "processes of the instance")->check(CLI::Range(1, 64))->capture_default_str();
  app.add_option("--stages", o.stages, "pipeline stages")->check(CLI::Range(1, 64))->capture_default_str();
  app.add_option("--threads", o.threads, "threads of each rank")->check(CLI::Range(1, 1024))->capture_default_str();
  app.add_option("--transport", o.transport, "shm, tcp or mlx")->capture_default_str();
  app.add_option("--backend", o.backend, "native or mlx")->capture_default_str();
  app.add_option("--isa", o.isa, "instruction set of the kernels, as in `verbund run`")->capture_default_str();
  app.add_flag("--fast-dense", o.fast_dense, "dense products in bf16, as in `verbund run`");
  app.add_option("--kv", o.kv_type, "format of keys and values")->capture_default_str();
  app.add_option("--prefill", o.prefill, "prompt lengths; 0: none")->delimiter(',')->capture_default_str();
  app.add_option("--decode", o.decode, "depths as DEPTH or DEPTHxSEQUENCES; none: -")->delimiter(',')->capture_default_str();
  app.add_option("--tokens", o.tokens, "tokens of each sequence in a decode test")->check(CLI::Range(1, 100000))->capture_default_str();
  app.add_option("--prefill-chunk", o.prefill_chunk, "prompt tokens of one step")->check(CLI::Range(1, 1 << 20))->capture_default_str();
  app.add_option("--repeat", o.repeat, "samples of each figure")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--verbund", o.program, "the program whose runners compute (default: beside this one)");
  app.add_flag("--trace", o.trace, "also tell what rank 0 does between two steps of the largest batch");
  app.add_flag("--json", o.json, "print one JSON object with every sample");
}

}  // namespace
}  // namespace verbund::bench

int main(int argc, char** argv) {
  using namespace verbund;
  bench::Options options;
  CLI::App app{"Prefill and decode rates of a model through the real engine, at several depths, batch sizes, ranks and transports"};
  bench::declare(app, options);
  CLI11_PARSE(app, argc, argv);
  try {
    std::erase(options.prefill, 0u);
    std::erase(options.decode, "-");
    if (options.program.empty()) options.program = (std::filesystem::path(executable_path()).parent_path() / "verbund").string();
    return bench::ModelBench(options).run();
  } catch (const Error& e) {
    std::fprintf(stderr, "bench_model: %s\n", e.what());
    return mapping(e.code()).exit_code;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_model: %s\n", e.what());
    return 1;
  }
}
