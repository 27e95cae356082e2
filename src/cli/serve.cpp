// `verbund serve`: the HTTP API of a model on this machine's nodes, in the foreground until SIGTERM or SIGINT.
#include "serve/service.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>

#include "base/bytes.h"
#include "cli/commands.h"
#include "cli/instance_options.h"
#include "cli/memory_fit.h"
#include "cli/model_folder.h"
#include "compute/backend.h"
#include "model/family.h"

namespace verbund::cli {
namespace {

// Tokens of keys and values that are kept by default, however many sequences share them.
constexpr uint32_t kKvTokensDefault = 32768;
constexpr uint32_t kTokensMax = 16u << 20;
// Rows of logits (the whole vocabulary each) of a step for prompts whose tokens are scored.
constexpr uint32_t kScoreRows = 63;

struct ServeOptions : InstanceOptions {
  std::string tool_parser = "auto", reasoning_parser = "auto";
  std::string listen = "127.0.0.1:8372";
  std::optional<uint32_t> context, kv_tokens;
  uint32_t parallel_max = 16, queue = 256, prefill_chunk = 256;
  double drain_s = 5;
  std::string key_file = serve::default_key_file();
  std::vector<std::string> hosts, origins;
  bool insecure = false;
  std::vector<std::string> aliases;
  std::string log_level = "info";
  std::vector<std::string> faults;  // hidden: test hooks

  void declare(CLI::App& app) {
    declare_model(app);
    app.add_option("--listen", listen, "Address of the API, HOST:PORT or [IPv6]:PORT")->capture_default_str();
    app.add_option("--alias", aliases, "Further name of the model; may be given several times")->allow_extra_args(false);
    app.add_option("--tool-parser", tool_parser,
                   "How the model writes tool calls: auto (its chat template tells), none, or a name such as hermes, qwen3_coder, kimi_k2, "
                   "deepseek, glm45, minimax_m2, mistral, llama3_json, pythonic, gemma4, harmony")
        ->capture_default_str();
    app.add_option("--reasoning-parser", reasoning_parser,
                   "How the model marks its reasoning: auto, none, think, mistral, gemma4, seed or longcat")
        ->capture_default_str();
    app.add_option("--drain", drain_s, "Seconds that running requests may take to finish after SIGTERM")
        ->check(CLI::Range(0.0, 3600.0))
        ->capture_default_str();
    app.add_option("--log-level", log_level, "debug, info, warn or error")
        ->check(CLI::IsMember({"debug", "info", "warn", "error"}))
        ->capture_default_str();
    const char* access = "Access";
    app.add_option("--keys", key_file, "File of API keys (`verbund key`); once it has one, every request needs one")
        ->capture_default_str()
        ->group(access);
    app.add_flag("--insecure", insecure, "Listen beyond this machine without any key")->group(access);
    app.add_option("--allow-host", hosts, "Further name in a request's Host header; may be given several times")
        ->allow_extra_args(false)
        ->group(access);
    app.add_option("--allow-origin", origins, "Web page that may ask (CORS), as https://chat.example; may be given several times")
        ->allow_extra_args(false)
        ->group(access);
    app.add_option("--fault", faults)->group("");
    declare_placement(app);
    declare_computation(app);
    declare_speculation(app);
    const char* batch = "Batching";
    app.add_option("--context", context, "Positions of a sequence, prompt and answer (default: what the model is made for)")
        ->check(CLI::Range(1u, kTokensMax))
        ->group(batch);
    app.add_option("--parallel", parallel_max, "Sequences that run at the same time")
        ->check(CLI::Range(1u, 1024u))
        ->capture_default_str()
        ->group(batch);
    app.add_option("--queue", queue, "Requests that may wait beside them; more are refused with 429")
        ->check(CLI::Range(0u, 65536u))
        ->capture_default_str()
        ->group(batch);
    app.add_option(
           "--kv-tokens", kv_tokens,
           "Tokens whose keys and values are kept, of all sequences and the prefix cache (default: the context of all sequences, at "
           "most 32768, at least one context)")
        ->check(CLI::Range(1u, kTokensMax))
        ->group(batch);
    app.add_option("--prefill-chunk", prefill_chunk, "Prompt tokens of one step: bounds how long a long prompt holds up streams")
        ->check(CLI::Range(1u, kTokensMax))
        ->capture_default_str()
        ->group(batch);
  }
};

class Serve {
 public:
  explicit Serve(const ServeOptions& options) : o_(options) {}

  int execute() {
    auto logger = spdlog::stderr_color_mt("verbund");
    logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v");
    spdlog::set_default_logger(logger);
    spdlog::set_level(spdlog::level::from_str(o_.log_level));
    const std::string path = resolve_model(o_.model);
    formats::ModelFiles files = formats::open_model(path);
    const model::DecoderSpec spec = model::read_spec(files);
    choose_sizes(spec);
    const std::filesystem::path name(std::filesystem::path(o_.model).filename().empty() ? std::filesystem::path(o_.model).parent_path()
                                                                                        : std::filesystem::path(o_.model));
    serve::ServedModel served = serve::make_served_model(name.extension() == ".gguf" ? name.stem().string() : name.filename().string(),
                                                         files, spec, o_.tool_parser, o_.reasoning_parser);
    served.aliases = o_.aliases;
    served.context = context_;
    files = {};

    serve::Service service(config(path), std::move(served));
    spdlog::info("{} on http://{}, loading on {} {}", service.model().id, service.address(), o_.local, o_.local == 1 ? "node" : "nodes");
    service.run();
    return 0;
  }

 private:
  void choose_sizes(const model::DecoderSpec& spec) {
    const auto model_context = static_cast<uint32_t>(std::min<size_t>(spec.context_max, kTokensMax));
    context_ = o_.context.value_or(model_context);
    if (context_ > model_context)
      throw Error(Code::invalid_argument, "--context " + std::to_string(context_) + " is more than the " + std::to_string(model_context) +
                                              " positions this model is made for");
    const uint64_t all = uint64_t{context_} * o_.parallel_max;
    kv_tokens_ = o_.kv_tokens.value_or(static_cast<uint32_t>(std::max<uint64_t>(context_, std::min<uint64_t>(all, kKvTokensDefault))));
    if (kv_tokens_ < context_)
      throw Error(Code::invalid_argument,
                  "--kv-tokens " + std::to_string(kv_tokens_) + " is less than one context of " + std::to_string(context_) + " tokens", {},
                  "give a smaller --context as well");
  }

  serve::ServiceConfig config(const std::string& path) const {
    serve::ServiceConfig c;
    c.version = VERBUND_VERSION;
    c.server.listen = o_.listen;
    c.server.drain_wait = std::chrono::milliseconds(static_cast<int64_t>(o_.drain_s * 1000));
    c.limits.requests_max = o_.parallel_max + o_.queue;
    c.access = {.key_file = o_.key_file, .hosts = o_.hosts, .origins = o_.origins};
    c.insecure = o_.insecure;
    c.instance = o_.instance_config(path);
    engine::RunnerConfig& r = c.instance.runner;
    r.faults = engine::parse_faults(o_.faults);
    r.context = context_;
    r.max_running = o_.parallel_max;
    r.prefill_chunk = o_.prefill_chunk;
    r.score_rows = kScoreRows;
    r.token_budget = o_.prefill_chunk + o_.parallel_max + r.draft_rows;  // one chunk beside everybody's decode
    r.kv_blocks = static_cast<uint32_t>(ceil_div(kv_tokens_, compute::kKvBlock));
    if (o_.memory) {
      c.check = [budget = o_.memory_budget(), context = context_](engine::Instance& instance) {
        for (const auto& rank : instance.reports())
          if (rank.planned.total() > budget) throw does_not_fit(instance.reports(), context, compute::kKvBlock, budget);
      };
    }
    return c;
  }

  const ServeOptions& o_;
  uint32_t context_ = 0, kv_tokens_ = 0;
};

}  // namespace

Command add_serve(CLI::App& app) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* sub = app.add_subcommand("serve", "The HTTP API of a model: OpenAI's, Anthropic's and Ollama's clients work with it");
  options->declare(*sub);
  return [options] { return Serve(*options).execute(); };
}

}  // namespace verbund::cli
