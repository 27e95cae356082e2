// `verbund run`: one answer from a model on this machine's nodes.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <iterator>

#include "base/bytes.h"
#include "base/unix.h"
#include "cli/commands.h"
#include "cli/memory_fit.h"
#include "cli/model_folder.h"
#include "cli/run_options.h"
#include "cli/run_report.h"
#include "cli/terminal.h"
#include "engine/instance.h"
#include "model/family.h"
#include "model/model_text.h"
#include "model/shard_weights.h"

namespace verbund::cli {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kContextAlso = 512;
constexpr uint64_t kMainRequest = 1;
constexpr uint64_t kPromptBytesMax = 64u << 20;

volatile sig_atomic_t interrupted = 0;

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = [](int signal) { interrupted = signal; };
  sigemptyset(&action.sa_mask);
  for (int s : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(s, &action, nullptr);  // no SA_RESTART: waits end at once
}

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

std::string read_stdin() {
  if (::isatty(STDIN_FILENO))
    throw Error(Code::invalid_argument, "there is no prompt", {}, "give it as the second argument or on standard input");
  std::string text;
  char buffer[64 * 1024];
  for (ssize_t n; (n = ::read(STDIN_FILENO, buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<size_t>(n));
    if (text.size() > kPromptBytesMax)
      throw Error(Code::invalid_argument, "the prompt on standard input is larger than " + format_bytes(kPromptBytesMax));
  }
  if (interrupted) throw Error(Code::cancelled, "interrupted");
  return text;
}

class Run {
 public:
  explicit Run(const RunOptions& options) : o_(options) {}

  int execute() {
    catch_interrupts();
    open();
    const auto begun = Clock::now();
    engine::Instance instance(instance_config());
    place(instance, begun);
    const int code = answer(instance);
    instance.stop();
    result_.ranks = instance.reports();
    if (code == 0) show();
    if (!o_.trace.empty()) write_trace(o_.trace, result_);
    return code;
  }

 private:
  void open() {
    path_ = resolve_model(o_.model);
    files_ = formats::open_model(path_);
    spec_ = model::read_spec(files_);
    shards_ = model::make_shard_plan(spec_, model::units_of(files_, spec_), o_.parallel());
    text_ = model::load_text(files_, spec_);
    files_.metadata.clear();
    result_.shards = shards_.ranks;

    prompt_ = encode_prompt(o_.prompt_given ? o_.prompt : read_stdin());
    const uint32_t model_context = static_cast<uint32_t>(std::min<size_t>(spec_.context_max, UINT32_MAX));
    context_ = o_.context.value_or(std::min<uint32_t>(model_context, needed_context()));
    if (context_ > model_context)
      throw Error(Code::invalid_argument, "--context " + std::to_string(context_) + " is more than the " + std::to_string(model_context) +
                                              " positions this model is made for");
    main_ = request(kMainRequest, prompt_, sampling());
    main_.validate(vocabulary(), context_);
  }

  // What the prompt and the longest answer take, in whole KV blocks. Other requests beside them (--also) want some room.
  uint32_t needed_context() const {
    const uint64_t tokens = std::max<uint64_t>(prompt_.size() + uint64_t(o_.max_tokens) + 1, o_.also > 0 ? kContextAlso : 0);
    return static_cast<uint32_t>(round_up(tokens, compute::kKvBlock));
  }

  std::vector<int32_t> encode_prompt(const std::string& prompt) const {
    if (const auto bad = find_invalid_utf8(prompt))
      throw Error(Code::invalid_argument, "the prompt is not valid UTF-8 at byte " + std::to_string(*bad));
    if (o_.raw || !text_.chat_template) {
      const std::string text = o_.system.empty() ? prompt : o_.system + "\n\n" + prompt;
      return text_.tokenizer->encode(text, {.add_special = true, .parse_special = true});
    }
    text::ChatTemplate::Input input;
    if (!o_.system.empty()) input.messages.push_back({{"role", "system"}, {"content", o_.system}});
    input.messages.push_back({{"role", "user"}, {"content", prompt}});
    input.bos_token = text_.bos_token;
    input.eos_token = text_.eos_token;
    // The template writes the special tokens itself.
    return text_.tokenizer->encode(text::ChatTemplate(*text_.chat_template).render(input), {.add_special = false, .parse_special = true});
  }

  size_t vocabulary() const { return std::min(text_.tokenizer->size(), spec_.vocabulary); }

  engine::SamplingParams sampling() {
    engine::SamplingParams s = o_.sampling;
    s.seed = o_.seed;
    result_.seed = engine::ensure_seed(s);
    return s;
  }

  engine::Request request(uint64_t id, std::vector<int32_t> prompt, const engine::SamplingParams& params) const {
    engine::Request r;
    r.id = id;
    r.prompt = std::move(prompt);
    r.params = params;
    r.max_tokens = o_.max_tokens;
    r.eos = text_.eos;
    r.ignore_eos = o_.ignore_eos;
    r.stop = o_.stop;
    return r;
  }

  engine::InstanceConfig instance_config() const {
    engine::InstanceConfig c = o_.instance_config(path_);
    engine::RunnerConfig& r = c.runner;
    r.max_running = o_.also + 1;
    r.trace = !o_.trace.empty();
    r.faults = engine::parse_faults(o_.faults);
    if (r.faults.skip_rank >= static_cast<int32_t>(o_.local))
      throw Error(Code::invalid_argument, "--fault skip: there is no rank " + std::to_string(r.faults.skip_rank));
    set_context(r, context_);
    return c;
  }

  void set_context(engine::RunnerConfig& r, uint32_t context) const {
    r.context = context;
    const auto prompt = static_cast<uint32_t>(prompt_.size());  // a step never needs more rows than this
    r.prefill_chunk = std::max(1u, o_.prefill_chunk == 0 ? prompt : std::min(o_.prefill_chunk, prompt));
    r.token_budget = r.prefill_chunk + r.max_running + r.draft_rows;  // one chunk beside everybody's decode
    r.kv_blocks = static_cast<uint32_t>(ceil_div(context, compute::kKvBlock)) * r.max_running;
  }

  // Plans, checks the budget (a context that nobody asked for shrinks to what fits), loads.
  void place(engine::Instance& instance, Clock::time_point begun) {
    instance.plan();
    if (o_.memory) fit(instance, o_.memory_budget());
    ProgressLine line("loading " + o_.model + " on " + std::to_string(o_.local) + (o_.local == 1 ? " node" : " nodes"));
    instance.load([&](uint64_t done, uint64_t total) { line.update(done, total); }, [] { return interrupted != 0; });
    result_.load_s = seconds_since(begun);
  }

  void fit(engine::Instance& instance, uint64_t budget) {
    const auto over = [&] {
      for (const auto& r : instance.reports())
        if (r.planned.total() > budget) return true;
      return false;
    };
    if (!over()) return;
    const uint32_t needed = static_cast<uint32_t>(prompt_.size()) + 1;
    const uint32_t possible = context_that_fits(instance.reports(), context_, budget);
    if (o_.context || possible < needed + std::min(o_.max_tokens, 64u)) throw does_not_fit(instance.reports(), context_, needed, budget);
    const uint32_t planned = std::exchange(context_, possible);
    instance.replan([&](engine::RunnerConfig& r) { set_context(r, context_); });
    if (over()) throw does_not_fit(instance.reports(), context_, needed, budget);
    std::fprintf(stderr, "%s\n",
                 dim("context " + std::to_string(context_) + " instead of " + std::to_string(planned) + ", to fit into " +
                     format_bytes(budget) + " a node")
                     .c_str());
  }

  int answer(engine::Instance& instance) {
    const auto begun = Clock::now();
    instance.submit(main_, o_.hash_logits);
    for (uint32_t i = 0; i < o_.also; ++i) instance.submit(companion(i), false);
    for (;;) {
      for (engine::InstanceEvent& e : instance.poll(100ms)) {
        if (e.request != kMainRequest) continue;
        if (e.error) throw *e.error;
        if (e.token) {
          if (result_.token_ids.empty()) result_.ttft_s = seconds_since(begun);
          result_.token_ids.push_back(*e.token);
        }
        emit(e.text);
        if (e.finish) {
          result_.finish_reason = *e.finish;
          result_.figures = e.figures;
          if (!o_.json) std::fputs("\n", stdout), std::fflush(stdout);
          return 0;
        }
      }
      if (interrupted) {
        if (!o_.json) std::fputs("\n", stdout), std::fflush(stdout);
        return 128 + interrupted;
      }
    }
  }

  // Hidden --also: other prompts of other lengths with other settings, to share steps with the main one.
  engine::Request companion(uint32_t i) const {
    std::string text = "Item " + std::to_string(i) + ":";
    for (uint32_t k = 0; k < 1 + 7 * i; ++k) text += " word" + std::to_string(k * i);
    engine::SamplingParams params;
    params.temperature = i % 2 ? 0.8f : 0.0f;
    params.repetition_penalty = i % 3 ? 1.1f : 1.0f;
    params.seed = i;
    engine::Request r = request(kMainRequest + 1 + i, text_.tokenizer->encode(text, {}), params);
    if (r.prompt.size() >= context_) r.prompt.resize(context_ / 2 + 1);
    return r;
  }

  void emit(const std::string& text) {
    result_.text += text;
    if (o_.json || text.empty()) return;
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
      throw Error(Code::unavailable, "the answer cannot be written: " + errno_text(errno), "standard output");
  }

  void show() const {
    if (o_.json)
      std::cout << to_json(result_).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
    else
      std::fprintf(stderr, "\n%s", dim(to_table(result_)).c_str());
  }

  const RunOptions& o_;
  std::string path_;
  formats::ModelFiles files_;
  model::DecoderSpec spec_;
  model::ShardPlan shards_;
  model::ModelText text_;
  std::vector<int32_t> prompt_;
  uint32_t context_ = 0;
  engine::Request main_;
  RunResult result_;
};

}  // namespace

Command add_run(CLI::App& app) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* sub = app.add_subcommand("run", "One answer from a model on this machine's nodes");
  options->declare(*sub);
  return [options, sub] {
    options->prompt_given = sub->get_option("PROMPT")->count() > 0;
    return Run(*options).execute();
  };
}

}  // namespace verbund::cli
