// The options of `verbund run`, each declared once (run_options.cpp).
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/instance_options.h"
#include "engine/request.h"

namespace verbund::cli {

struct RunOptions : InstanceOptions {
  std::string prompt;
  bool prompt_given = false;  // else it is read from standard input
  std::string system;
  bool raw = false, json = false, hash_logits = false, ignore_eos = false;
  std::string trace;

  std::optional<uint32_t> context;
  uint32_t prefill_chunk = 256;  // 0: the whole prompt

  uint32_t max_tokens = 512;
  engine::SamplingParams sampling{.temperature = 0.7f, .top_p = 0.95f};  // what most chat models are recommended with
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;

  uint32_t also = 0;                // hidden: this many other requests run beside the prompt
  std::vector<std::string> faults;  // hidden: test hooks

  void declare(CLI::App& app);
};

}  // namespace verbund::cli
