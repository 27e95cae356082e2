// Counters and histograms of the server, and their Prometheus text (version 0.0.4). I/O thread only.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "engine/instance.h"

namespace verbund::serve {

class Histogram {
 public:
  explicit Histogram(std::span<const double> bounds) : bounds_(bounds), counts_(bounds.size() + 1) {}
  void observe(double value);
  void write(std::string& out, const std::string& name, const std::string& labels) const;

 private:
  std::span<const double> bounds_;
  std::vector<uint64_t> counts_;
  double sum_ = 0;
  uint64_t total_ = 0;
};

extern const std::span<const double> kSecondsBounds, kTokenBounds;

class Metrics {
 public:
  Histogram time_to_first_token{kSecondsBounds}, inter_token_latency{kSecondsBounds}, request_seconds{kSecondsBounds},
      prefill_seconds{kSecondsBounds}, decode_seconds{kSecondsBounds}, prompt_tokens{kTokenBounds}, generation_tokens{kTokenBounds};

  void finished(const std::string& reason) { ++finished_[reason]; }
  void count_tokens(const nlohmann::json& figures);  // of a finished request
  void count_http(const std::string& route, int status) { ++http_[{route, status}]; }

  struct Now {  // gauges, as they are when asked
    std::string model, version;
    engine::EngineStats engine;
    std::vector<engine::RankReport> ranks;
    size_t live = 0;
    uint64_t restarts = 0;
    bool ready = false;
  };
  std::string text(const Now& now) const;

 private:
  std::map<std::string, uint64_t> finished_;
  std::map<std::pair<std::string, int>, uint64_t> http_;
  uint64_t prompt_tokens_ = 0, cached_tokens_ = 0, output_tokens_ = 0;
};

}  // namespace verbund::serve
