// Which model, on which local nodes, computed how: the options that every command with an instance has, each declared once.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "engine/instance.h"

namespace verbund::cli {

struct InstanceOptions {
  std::string model;
  size_t local = 2, stages = 1;
  std::string shares, layers;  // "3:2:1", "20:10"
  std::string backend = "native", transport = "shm", queue_pair = "auto", isa = "auto", kv_type = "f16";
  bool fast_dense = false;
  bool require_rdma = false;
  std::string speculate = "off", draft_model;
  uint32_t draft_rows = 16;
  std::optional<unsigned> threads;
  std::optional<std::string> memory;  // "60MB"

  void declare_model(CLI::App& app);
  void declare_placement(CLI::App& app);
  void declare_computation(CLI::App& app);
  void declare_speculation(CLI::App& app);

  model::ParallelConfig parallel() const;  // throws invalid_argument
  // Everything these options decide; context, chunk, blocks and running sequences are the command's, and the token budget:
  // it adds runner.draft_rows.
  engine::InstanceConfig instance_config(const std::string& path) const;
  uint64_t memory_budget() const;  // only if memory is set; throws invalid_argument
};

}  // namespace verbund::cli
