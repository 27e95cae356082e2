// Measures llama.cpp through its public C API in the same places where `verbund run --json` measures itself: load, time to
// first token, prefill and decode rate, for one prompt and greedy tokens. llama-bench reports neither load nor first token.
//
//   llama_probe MODEL.gguf --prompt-file FILE [--threads N] [--max-tokens N]
//
// Prints one JSON object. Whether the file is in the page cache is up to the caller.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "llama.h"

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Options {
  std::string model, prompt_file;
  int threads = 1;
  int max_tokens = 128;
};

struct Result {
  double load_s = 0, ttft_s = 0, decode_s = 0;
  std::vector<llama_token> prompt, tokens;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    auto value = [&] {
      if (i + 1 >= argc) throw std::runtime_error("a value is missing after " + arg);
      return std::string(argv[++i]);
    };
    if (arg == "--prompt-file")
      options.prompt_file = value();
    else if (arg == "--threads")
      options.threads = std::stoi(value());
    else if (arg == "--max-tokens")
      options.max_tokens = std::stoi(value());
    else
      options.model = arg;
  }
  if (options.model.empty() || options.prompt_file.empty() || options.threads < 1 || options.max_tokens < 1)
    throw std::runtime_error("usage: llama_probe MODEL.gguf --prompt-file FILE [--threads N] [--max-tokens N]");
  return options;
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<llama_token> tokenize(const llama_vocab* vocab, const std::string& text) {
  std::vector<llama_token> ids(text.size() + 8);
  const int n = llama_tokenize(vocab, text.data(), static_cast<int>(text.size()), ids.data(), static_cast<int>(ids.size()),
                               /*add_special=*/false, /*parse_special=*/true);
  if (n <= 0) throw std::runtime_error("the prompt has no tokens");
  ids.resize(static_cast<size_t>(n));
  return ids;
}

llama_token greedy(llama_context* context, int vocabulary) {
  const float* logits = llama_get_logits_ith(context, -1);  // waits for the computation
  return static_cast<llama_token>(std::max_element(logits, logits + vocabulary) - logits);
}

void step(llama_context* context, llama_token* ids, size_t count) {
  if (llama_decode(context, llama_batch_get_one(ids, static_cast<int>(count))) != 0) throw std::runtime_error("llama_decode failed");
}

Result measure(const Options& options) {
  const std::string text = read_file(options.prompt_file);
  Result result;
  const auto start = Clock::now();
  llama_model* model = llama_model_load_from_file(options.model.c_str(), llama_model_default_params());
  if (!model) throw std::runtime_error("cannot load " + options.model);
  const llama_vocab* vocab = llama_model_get_vocab(model);
  result.prompt = tokenize(vocab, text);

  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(result.prompt.size()) + static_cast<uint32_t>(options.max_tokens) + 8;
  params.n_threads = params.n_threads_batch = options.threads;
  llama_context* context = llama_init_from_model(model, params);
  if (!context) throw std::runtime_error("cannot create a context");
  result.load_s = seconds_since(start);

  const int vocabulary = llama_vocab_n_tokens(vocab);
  const auto asked = Clock::now();
  // In pieces of n_batch tokens: llama_decode refuses more at a time.
  const size_t batch = llama_n_batch(context);
  for (size_t at = 0; at < result.prompt.size(); at += batch)
    step(context, result.prompt.data() + at, std::min(batch, result.prompt.size() - at));
  llama_token next = greedy(context, vocabulary);
  result.tokens.push_back(next);
  result.ttft_s = seconds_since(asked);

  const auto first = Clock::now();
  while (result.tokens.size() < static_cast<size_t>(options.max_tokens)) {
    step(context, &next, 1);
    next = greedy(context, vocabulary);
    result.tokens.push_back(next);
  }
  result.decode_s = seconds_since(first);
  llama_free(context);
  llama_model_free(model);
  return result;
}

void print_list(const char* name, const std::vector<llama_token>& ids) {
  std::printf("\"%s\": [", name);
  for (size_t i = 0; i < ids.size(); ++i) std::printf("%s%d", i ? ", " : "", ids[i]);
  std::printf("]");
}

void print(const Result& r) {
  const size_t decoded = r.tokens.size() - 1;
  std::printf(
      "{\"timings\": {\"load_s\": %.6f, \"ttft_s\": %.6f, \"prefill_tokens\": %zu, \"prefill_tokens_per_s\": %.3f, "
      "\"decode_tokens\": %zu, \"decode_tokens_per_s\": %.3f}, ",
      r.load_s, r.ttft_s, r.prompt.size(), static_cast<double>(r.prompt.size()) / r.ttft_s, decoded,
      decoded ? static_cast<double>(decoded) / r.decode_s : 0.0);
  print_list("prompt_ids", r.prompt);
  std::printf(", ");
  print_list("token_ids", r.tokens);
  std::printf("}\n");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = parse(argc, argv);
    llama_log_set(
        [](ggml_log_level level, const char* text, void*) {
          if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
        },
        nullptr);
    llama_backend_init();
    print(measure(options));
    llama_backend_free();
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "llama_probe: %s\n", e.what());
    return 1;
  }
}
