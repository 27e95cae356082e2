// `verbund perplexity`: how well a model predicts a text, through the same engine, kernels and cache as every answer.
//
// The text's tokens are cut into windows of --context tokens (what is left at the end is dropped); each window is one prompt, and
// the tokens of its second half are scored, so that every one of them has at least half a window before it. Perplexity is
// exp of the mean negative log-likelihood; the error is its standard error over the scored tokens.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "base/unix.h"
#include "cli/commands.h"
#include "cli/model_folder.h"
#include "cli/run_options.h"
#include "cli/terminal.h"
#include "engine/instance.h"
#include "model/family.h"
#include "model/model_text.h"

namespace verbund::cli {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kTextBytesMax = 64u << 20;
constexpr auto kStall = 600s;            // a window takes seconds
constexpr uint32_t kScoredRowsMax = 64;  // rows whose logits (the whole vocabulary each) are held at once
constexpr uint32_t kChunk = 256;         // rows of a step; those of a window's first half have no logits

struct PerplexityOptions {
  std::string model, file;
  uint32_t context = 512, windows_max = 0;
  size_t local = 1;
  unsigned threads = 0;
  std::string isa = "auto", kv_type = "f16", backend = "native";
  bool fast_dense = false, json = false;

  void declare(CLI::App& app) {
    app.add_option("MODEL", model, "Folder, GGUF file or name")->required();
    app.add_option("FILE", file, "Text in UTF-8")->required();
    app.add_option("--context", context, "Tokens of a window; its second half is scored")
        ->check(CLI::Range(8u, 1u << 20))
        ->capture_default_str();
    app.add_option("--windows", windows_max, "Windows at most; 0: the whole text")->capture_default_str();
    app.add_option("--local", local, "Nodes on this machine")->check(CLI::Range(1, 64))->capture_default_str();
    app.add_option("--threads", threads, "Threads of each rank; 0: the cores of this machine, shared")->check(CLI::Range(0u, 1024u));
    app.add_option("--isa", isa, "Instruction set of the native backend")->capture_default_str();
    app.add_flag("--fast-dense", fast_dense, "Multiply dense weights in bf16");
    app.add_option("--kv", kv_type, "Format of keys and values: f16, q8 or f32")
        ->check(CLI::IsMember({"f16", "q8", "f32"}))
        ->capture_default_str();
    app.add_option("--backend", backend, "native or mlx")->check(CLI::IsMember({"native", "mlx"}))->capture_default_str();
    app.add_flag("--json", json, "One JSON object");
  }
};

// Mean and spread of negative log-likelihoods.
struct Score {
  double sum = 0, squares = 0;
  uint64_t count = 0;
  void add(double logprob) {
    sum -= logprob;
    squares += logprob * logprob;
    ++count;
  }
  double mean() const { return sum / static_cast<double>(count); }
  double perplexity() const { return std::exp(mean()); }
  double error() const {
    const double n = static_cast<double>(count), variance = squares / n - mean() * mean();
    return perplexity() * std::sqrt(std::max(0.0, variance) / n);
  }
};

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in || std::filesystem::is_directory(path)) throw Error(Code::not_found, "the text cannot be read", path, "give a file of text");
  std::string text;
  char buffer[64 * 1024];
  while (in.read(buffer, sizeof buffer), in.gcount() > 0) {
    text.append(buffer, static_cast<size_t>(in.gcount()));
    if (text.size() > kTextBytesMax) throw Error(Code::invalid_argument, "the text is larger than " + format_bytes(kTextBytesMax), path);
  }
  if (const auto bad = find_invalid_utf8(text))
    throw Error(Code::invalid_argument, "the text is not valid UTF-8 at byte " + std::to_string(*bad), path);
  return text;
}

class Perplexity {
 public:
  explicit Perplexity(const PerplexityOptions& options) : o_(options) {}

  int execute() {
    const std::vector<int32_t> tokens = tokenise();
    size_t windows = tokens.size() / o_.context;
    if (o_.windows_max > 0) windows = std::min<size_t>(windows, o_.windows_max);
    if (windows == 0)
      throw Error(Code::invalid_argument,
                  "the text has " + std::to_string(tokens.size()) + " tokens, less than one window of " + std::to_string(o_.context),
                  o_.file, "use a longer text or a smaller --context");
    engine::Instance instance(config());
    instance.plan();
    instance.load([](uint64_t, uint64_t) {}, [] { return false; });
    const auto begun = Clock::now();
    ProgressLine line("scoring " + std::to_string(windows) + " windows");
    for (size_t w = 0; w < windows; ++w) {
      score(instance, w, {tokens.begin() + static_cast<long>(w * o_.context), tokens.begin() + static_cast<long>((w + 1) * o_.context)});
      line.update(w + 1, windows);
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - begun).count();
    instance.stop();
    show(windows, static_cast<double>(windows * o_.context) / seconds);
    return 0;
  }

 private:
  std::vector<int32_t> tokenise() {
    const std::string text = read_text(o_.file);
    path_ = resolve_model(o_.model);
    formats::ModelFiles files = formats::open_model(path_);
    const model::DecoderSpec spec = model::read_spec(files);
    if (o_.context > spec.context_max)
      throw Error(Code::invalid_argument, "--context " + std::to_string(o_.context) + " is more than the " +
                                              std::to_string(spec.context_max) + " positions this model is made for");
    return model::load_text(files, spec).tokenizer->encode(text, {.add_special = false, .parse_special = false});
  }

  engine::InstanceConfig config() const {
    engine::InstanceConfig c;
    c.program = executable_path();
    engine::RunnerConfig& r = c.runner;
    r.model = std::filesystem::absolute(path_).string();
    r.parallel.ranks = o_.local;
    r.backend = o_.backend;
    r.isa = o_.isa;
    r.fast_dense = o_.fast_dense;
    r.threads = o_.threads > 0 ? o_.threads : std::max(1u, available_cores() / static_cast<unsigned>(o_.local));
    r.kv_type = o_.kv_type;
    r.max_running = 1;
    r.context = static_cast<uint32_t>(round_up(o_.context + 1, compute::kKvBlock));
    r.prefill_chunk = std::min(kChunk, o_.context);
    r.score_rows = kScoredRowsMax - r.max_running;
    r.token_budget = r.prefill_chunk + 1;
    r.kv_blocks = r.context / compute::kKvBlock;
    return c;
  }

  void score(engine::Instance& instance, size_t window, std::vector<int32_t> tokens) {
    engine::Request request;
    request.id = window + 1;
    request.prompt = std::move(tokens);
    request.params.temperature = 0;
    request.params.seed = 0;
    request.max_tokens = 1;
    request.ignore_eos = true;
    request.score_from = o_.context / 2;
    instance.submit(request, false);
    const Clock::time_point late = Clock::now() + kStall;
    for (;;) {
      for (const engine::InstanceEvent& e : instance.poll(100ms)) {
        if (e.error) throw *e.error;
        if (!e.finish) continue;
        for (const double logprob : e.figures.at("prompt_logprobs").get<std::vector<double>>()) total_.add(logprob);
        return;
      }
      if (Clock::now() > late) throw Error(Code::deadline_exceeded, "a window was not scored within ten minutes");
    }
  }

  void show(size_t windows, double tokens_per_s) const {
    if (o_.json) {
      std::cout << nlohmann::json{{"perplexity", total_.perplexity()},
                                  {"error", total_.error()},
                                  {"mean_nll", total_.mean()},
                                  {"scored_tokens", total_.count},
                                  {"windows", windows},
                                  {"context", o_.context},
                                  {"kv", o_.kv_type},
                                  {"tokens_per_s", tokens_per_s}}
                << std::endl;
      return;
    }
    std::printf("perplexity %.4f +- %.4f over %llu tokens (%zu windows of %u, second halves), KV %s, %.0f tokens/s\n", total_.perplexity(),
                total_.error(), static_cast<unsigned long long>(total_.count), windows, o_.context, o_.kv_type.c_str(), tokens_per_s);
  }

  const PerplexityOptions& o_;
  std::string path_;
  Score total_;
};

}  // namespace

Command add_perplexity(CLI::App& app) {
  auto options = std::make_shared<PerplexityOptions>();
  CLI::App* sub = app.add_subcommand("perplexity", "How well a model predicts a text: the quality of a format of weights, keys and values");
  options->declare(*sub);
  return [options] { return Perplexity(*options).execute(); };
}

}  // namespace verbund::cli
