#include "cli/run_options.h"

#include <charconv>

#include "base/error.h"

namespace verbund::cli {
namespace {

constexpr uint32_t kTokensMax = 16u << 20;

// CLI11 lets -1 and too large numbers wrap around.
std::string is_seed(const std::string& text) {
  uint64_t value = 0;
  const auto [rest, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  return problem == std::errc() && rest == text.data() + text.size() ? "" : "'" + text + "' is not a number from 0 to 2^64 - 1";
}

}  // namespace

void RunOptions::declare(CLI::App& app) {
  declare_model(app);
  app.add_option("PROMPT", prompt, "What to ask; read from standard input if not given");
  app.add_option("--system", system, "System message")->group("Prompt");
  app.add_flag("--raw", raw, "Continue the prompt as it is, without the chat template")->group("Prompt");

  declare_placement(app);
  declare_computation(app);
  declare_speculation(app);
  const char* how = "Computation";
  app.add_option(
         "--context", context,
         "Positions of a sequence, prompt and answer (default: what prompt and answer need, as far as the model and --memory allow)")
      ->check(CLI::Range(1u, kTokensMax))
      ->group(how);
  app.add_option("--prefill-chunk", prefill_chunk, "Prompt tokens of one step; 0: all")
      ->check(CLI::Range(0u, kTokensMax))
      ->capture_default_str()
      ->group(how);

  const char* choose = "Sampling";
  app.add_option("--max-tokens", max_tokens, "Longest answer, in tokens")
      ->check(CLI::Range(0u, kTokensMax))
      ->capture_default_str()
      ->group(choose);
  app.add_option("--temperature", sampling.temperature, "0: always the most likely token")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str()
      ->group(choose);
  app.add_option("--top-k", sampling.top_k, "Only the k most likely tokens; 0: off")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group(choose);
  app.add_option("--top-p", sampling.top_p, "Only the most likely tokens that together reach p; 1: off")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str()
      ->group(choose);
  app.add_option("--min-p", sampling.min_p, "Only tokens at least p times as likely as the best; 0: off")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str()
      ->group(choose);
  app.add_option("--repeat-penalty", sampling.repetition_penalty, "Makes tokens seen before less likely; 1: off")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(choose);
  app.add_option("--seed", seed, "Seed of the random draws (default: a new one each time, reported in --json)")
      ->check(is_seed)
      ->group(choose);
  app.add_option("--stop", stop, "Text that ends the answer; may be given several times")->allow_extra_args(false)->group(choose);
  app.add_flag("--ignore-eos", ignore_eos, "Go on after the model's end token")->group(choose);

  const char* output = "Output";
  app.add_flag("--json", json, "One JSON object on standard output instead of text")->group(output);
  app.add_flag("--hash-logits", hash_logits, "SHA-256 over the f32 logits of every sampled position (shown with --json)")->group(output);
  app.add_option("--trace", trace, "Write a Chrome trace of every rank and operation to this file")->group(output);

  app.add_option("--also", also)->check(CLI::Range(0, 64))->group("");
  app.add_option("--fault", faults)->group("");
}

}  // namespace verbund::cli
