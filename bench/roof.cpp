// What this machine can do at best; every other figure is read against it.
//
//   bench_roof [--threads 1,2] [--sizes 1MiB,96MiB] [--seconds 0.4] [--json]
//
// Bandwidth: each thread reads its part of a buffer of the given size, front to back, again and again, with and without a
// software prefetch; the better of the two counts. Peaks: multiply-adds with operands in registers or the first-level cache.
#include "roof.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "base/bytes.h"
#include "base/error.h"
#include "base/unix.h"
#include "machine.h"

namespace verbund::bench {
namespace {

struct Options {
  std::vector<std::string> sizes{"1MiB", "8MiB", "96MiB", "256MiB", "1GiB"};
  std::vector<unsigned> threads;
  double seconds = 0.4;
  bool json = false;
};

nlohmann::json measure(const Options& options) {
  nlohmann::json out{{"machine", machine()}, {"bandwidth", nlohmann::json::array()}, {"peaks", nlohmann::json::array()}};
  for (const std::string& size : options.sizes)
    for (const unsigned threads : options.threads) {
      const Bandwidth b = read_bandwidth(parse_bytes(size), threads, options.seconds);
      out["bandwidth"].push_back({{"bytes", b.bytes},
                                  {"threads", b.threads},
                                  {"bytes_per_s", b.best()},
                                  {"plain_bytes_per_s", b.plain},
                                  {"prefetched_bytes_per_s", b.prefetched}});
    }
  for (const unsigned threads : options.threads)
    for (const Peak& p : peaks(threads, options.seconds / 4))
      out["peaks"].push_back({{"name", p.name},
                              {"instructions", p.instructions},
                              {"isa", p.isa},
                              {"threads", threads},
                              {"available", p.available},
                              {"multiply_adds_per_s", p.per_s}});
  return out;
}

void print(const nlohmann::json& out) {
  std::printf("%s\n\n%-10s %8s %10s %10s %12s\n", describe(out["machine"]).c_str(), "read", "threads", "GB/s", "plain", "prefetched");
  for (const auto& b : out["bandwidth"])
    std::printf("%-10s %8u %10.1f %10.1f %12.1f\n", format_bytes(b["bytes"].get<uint64_t>()).c_str(), b["threads"].get<unsigned>(),
                b["bytes_per_s"].get<double>() / 1e9, b["plain_bytes_per_s"].get<double>() / 1e9,
                b["prefetched_bytes_per_s"].get<double>() / 1e9);
  std::printf("\n%-14s %8s %22s   %s\n", "peak", "threads", "T multiply-adds/s", "instructions");
  for (const auto& p : out["peaks"]) {
    char rate[32] = "not on this machine";
    if (p["available"].get<bool>()) std::snprintf(rate, sizeof rate, "%.3f", p["multiply_adds_per_s"].get<double>() / 1e12);
    std::printf("%-14s %8u %22s   %s\n", p["name"].get<std::string>().c_str(), p["threads"].get<unsigned>(), rate,
                p["instructions"].get<std::string>().c_str());
  }
}

}  // namespace
}  // namespace verbund::bench

int main(int argc, char** argv) {
  using namespace verbund;
  bench::Options options;
  for (const unsigned n : std::set<unsigned>{1, 2, available_cores()}) options.threads.push_back(n);
  CLI::App app{
      "The roofs of this machine: bytes read a second per working-set size and thread count, and multiply-adds a second of "
      "each instruction set"};
  app.add_option("--sizes", options.sizes, "working sets of all threads together")->delimiter(',')->capture_default_str();
  app.add_option("--threads", options.threads, "thread counts")->delimiter(',')->check(CLI::Range(1, 1024))->capture_default_str();
  app.add_option("--seconds", options.seconds, "time for each figure of bandwidth; peaks take a quarter")
      ->check(CLI::Range(0.01, 60.0))
      ->capture_default_str();
  app.add_flag("--json", options.json, "print one JSON object");
  CLI11_PARSE(app, argc, argv);
  try {
    const nlohmann::json out = bench::measure(options);
    if (options.json)
      std::printf("%s\n", out.dump(2).c_str());
    else
      bench::print(out);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_roof: %s\n", e.what());
    return 1;
  }
}
