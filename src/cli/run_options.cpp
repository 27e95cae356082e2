#include "cli/run_options.h"

#include <charconv>

#include "base/error.h"

namespace verbund::cli {
namespace {

template <class T>
std::vector<T> split_numbers(const std::string& text, const char* option) {
  std::vector<T> numbers;
  for (size_t begin = 0; !text.empty() && begin <= text.size();) {
    const size_t end = std::min(text.find(':', begin), text.size());
    T value{};
    const auto [rest, problem] = std::from_chars(text.data() + begin, text.data() + end, value);
    if (problem != std::errc() || rest != text.data() + end)
      throw Error(Code::invalid_argument, std::string(option) + ": '" + text + "' is not a list of numbers", {}, "write for example 3:2:1");
    numbers.push_back(value);
    begin = end + 1;
  }
  return numbers;
}

constexpr uint32_t kTokensMax = 16u << 20;

// CLI11 lets -1 and too large numbers wrap around.
std::string is_seed(const std::string& text) {
  uint64_t value = 0;
  const auto [rest, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  return problem == std::errc() && rest == text.data() + text.size() ? "" : "'" + text + "' is not a number from 0 to 2^64 - 1";
}

}  // namespace

void RunOptions::declare(CLI::App& app) {
  app.add_option("MODEL", model, "A folder, a GGUF file, or the name of a model in the model folder (smollm2)")->required();
  app.add_option("PROMPT", prompt, "What to ask; read from standard input if not given");
  app.add_option("--system", system, "System message")->group("Prompt");
  app.add_flag("--raw", raw, "Continue the prompt as it is, without the chat template")->group("Prompt");

  const char* where = "Placement";
  app.add_option("--local", local, "Nodes on this machine")->check(CLI::Range(1, 64))->capture_default_str()->group(where);
  app.add_option("--stages", stages, "Pipeline stages, of local / stages ranks each")
      ->check(CLI::Range(1, 64))
      ->capture_default_str()
      ->group(where);
  app.add_option("--shares", shares, "Proportions of the ranks in a stage, as 3:2:1")->group(where);
  app.add_option("--layers", layers, "Layers of the stages, as 20:10")->group(where);
  app.add_option("--memory", memory, "Memory budget of each node, as 60MB or 1.5GiB; what does not fit is refused")->group(where);
  app.add_option("--transport", transport, "Links between ranks: shm, tcp, or mlx (MLX ring)")
      ->check(CLI::IsMember({"shm", "tcp", "mlx"}))
      ->capture_default_str()
      ->group(where);

  const char* how = "Computation";
  app.add_option("--backend", backend, "native (CPU kernels) or mlx; Metal and CUDA through MLX are not tried on such hardware yet")
      ->check(CLI::IsMember({"native", "mlx"}))
      ->capture_default_str()
      ->group(how);
  app.add_option(
         "--isa", isa,
         "Instruction set of the native kernels: auto, amx, avx512, avx512bw, avx2, neon_i8mm, neon_dotprod, neon, scalar; `verbund "
         "version` lists what runs here")
      ->capture_default_str()
      ->group(how);
  app.add_option("--threads", threads, "Threads of each rank (default: cores / ranks)")->check(CLI::Range(1, 1024))->group(how);
  app.add_option(
         "--context", context,
         "Positions of a sequence, prompt and answer (default: what prompt and answer need, as far as the model and --memory allow)")
      ->check(CLI::Range(1u, kTokensMax))
      ->group(how);
  app.add_option("--prefill-chunk", prefill_chunk, "Prompt tokens of one step; 0: all")
      ->check(CLI::Range(0u, kTokensMax))
      ->capture_default_str()
      ->group(how);
  app.add_option("--kv", kv_type, "Format of keys and values: f16, q8 (half the bytes) or f32")
      ->check(CLI::IsMember({"f16", "q8", "f32"}))
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

model::ParallelConfig RunOptions::parallel() const {
  model::ParallelConfig p;
  p.ranks = local;
  p.stages = stages;
  p.shares = split_numbers<double>(shares, "--shares");
  p.layers = split_numbers<size_t>(layers, "--layers");
  return p;
}

}  // namespace verbund::cli
