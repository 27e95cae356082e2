// Latency and bandwidth of a mesh between real processes: all_reduce (int64, in place) and send/recv per size.
//
// Timed: one call at rank 0, after a warm-up, ranks in lockstep (each call waits for the others). Not timed: set-up, filling the vectors.
// send/recv is half of a round trip between ranks 0 and 1. Other load on the machine shows in p99 first: compare medians of one
// sitting.
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "base/unix.h"
#include "mesh/connect.h"

namespace verbund::mesh {
namespace {

struct Options {
  std::string transport = "shm";
  int ranks = 2;
  std::vector<std::string> sizes{"64", "512", "2KiB", "4608", "16KiB", "32KiB", "64KiB", "256KiB", "1MiB"};
  int repeat = 2000;
  int64_t spin_us = -1;
  bool pin = false;
  bool json = false;
};

struct Row {
  std::string operation;
  uint64_t bytes;
  double median_us, p99_us;
};

Deadline per_call() { return Deadline::after(std::chrono::seconds(30)); }

template <class Call>
Row measure(std::string operation, uint64_t bytes, int repeat, double share, Call&& call) {
  using Clock = std::chrono::steady_clock;
  for (int i = 0; i < std::max(10, repeat / 10); ++i) call();
  std::vector<double> us(static_cast<size_t>(repeat));
  for (double& value : us) {
    const auto begun = Clock::now();
    call();
    value = std::chrono::duration<double, std::micro>(Clock::now() - begun).count() * share;
  }
  std::sort(us.begin(), us.end());
  return {std::move(operation), bytes, us[us.size() / 2], us[us.size() * 99 / 100]};
}

std::vector<Row> run_rank(Mesh& mesh, const Options& options) {
  std::vector<Row> rows;
  for (const auto& text : options.sizes) {
    const uint64_t bytes = parse_bytes(text);
    // Large sizes need fewer repetitions for a steady median.
    const int repeat = static_cast<int>(std::max<uint64_t>(50, static_cast<uint64_t>(options.repeat) / (1 + bytes / 65536)));
    std::vector<int64_t> data(bytes / sizeof(int64_t), 1);
    rows.push_back(measure("all_reduce", data.size() * sizeof(int64_t), repeat, 1, [&] { mesh.all_reduce(std::span(data), per_call()); }));
    mesh.barrier(per_call());
    if (mesh.size() > 1 && mesh.rank() < 2) {
      const auto buffer = std::as_writable_bytes(std::span(data));
      rows.push_back(measure("send/recv", buffer.size(), repeat, 0.5, [&] {
        if (mesh.rank() == 0) mesh.send(buffer, 1, per_call());
        mesh.recv(buffer, 1 - mesh.rank(), per_call());
        if (mesh.rank() == 1) mesh.send(buffer, 0, per_call());
      }));
    }
    mesh.barrier(per_call());
  }
  return rows;
}

void pin_to_core(unsigned core) {
#ifdef __linux__
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  ::sched_setaffinity(0, sizeof set, &set);
#else
  (void)core;
#endif
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "unknown CPU";
}

void print(const Options& options, const std::vector<Row>& rows) {
  if (options.json) {
    nlohmann::json out{{"transport", options.transport},
                       {"ranks", options.ranks},
                       {"cores", available_cores()},
                       {"cpu", cpu_name()},
                       {"rows", nlohmann::json::array()}};
    for (const auto& row : rows)
      out["rows"].push_back({{"operation", row.operation},
                             {"bytes", row.bytes},
                             {"median_us", row.median_us},
                             {"p99_us", row.p99_us},
                             {"gb_per_s", static_cast<double>(row.bytes) / row.median_us / 1e3}});
    std::printf("%s\n", out.dump(2).c_str());
    return;
  }
  std::printf("mesh %s, %d ranks, %u cores, %s\n", options.transport.c_str(), options.ranks, available_cores(), cpu_name().c_str());
  std::printf("%-11s %10s %12s %10s %10s\n", "operation", "bytes", "median us", "p99 us", "GB/s");
  for (const auto& row : rows)
    std::printf("%-11s %10llu %12.2f %10.2f %10.2f\n", row.operation.c_str(), static_cast<unsigned long long>(row.bytes), row.median_us,
                row.p99_us, static_cast<double>(row.bytes) / row.median_us / 1e3);
}

int run(const Options& options) {
  MeshConfig config;
  config.size = options.ranks;
  config.transport = transport_from_string(options.transport);
  config.secret = std::to_string(random_u64()) + std::to_string(random_u64());
  config.secret.resize(32, '.');
  config.spin_us = options.spin_us;
  std::vector<std::unique_ptr<Listener>> listeners;
  std::vector<std::string> endpoints;
  for (config.rank = 0; config.rank < options.ranks; ++config.rank) {
    listeners.push_back(listen(config));
    endpoints.push_back(listeners.back()->endpoint());
  }
  std::vector<pid_t> children;
  config.rank = 0;
  for (int r = 1; r < options.ranks; ++r) {
    const pid_t pid = ::fork();
    if (pid < 0) throw Error(Code::resource_exhausted, "cannot fork");
    if (pid == 0) {
      config.rank = r;
      children.clear();
      break;
    }
    children.push_back(pid);
  }
  int status = 0;
  {
    auto mesh = connect_mesh(config, *listeners[static_cast<size_t>(config.rank)], endpoints, Deadline::after(std::chrono::seconds(20)));
    // After the set-up, which counts the cores this process may use.
    if (options.pin) pin_to_core(static_cast<unsigned>(config.rank) % std::max(1u, std::thread::hardware_concurrency()));
    const auto rows = run_rank(*mesh, options);
    if (config.rank == 0) print(options, rows);
  }
  for (const pid_t child : children) {
    int ended = 0;
    ::waitpid(child, &ended, 0);
    status = std::max(status, ended == 0 ? 0 : 1);
  }
  return status;
}

}  // namespace
}  // namespace verbund::mesh

int main(int argc, char** argv) {
  verbund::mesh::Options options;
  CLI::App app{"Latency and bandwidth of the mesh between processes of this machine"};
  app.add_option("--transport", options.transport, "shm or tcp")->capture_default_str();
  app.add_option("--ranks", options.ranks, "processes")->check(CLI::Range(1, 64))->capture_default_str();
  app.add_option("--sizes", options.sizes, "vector sizes, e.g. 4608 or 64KiB")->delimiter(',');
  app.add_option("--repeat", options.repeat, "timed calls of the small sizes")->check(CLI::Range(10, 10'000'000))->capture_default_str();
  app.add_option("--spin-us", options.spin_us, "how long a wait spins before it sleeps; -1: by ranks and cores")->capture_default_str();
  app.add_flag("--pin", options.pin, "bind rank r to core r modulo cores (Linux)");
  app.add_flag("--json", options.json, "print one JSON object");
  CLI11_PARSE(app, argc, argv);
  try {
    return verbund::mesh::run(options);
  } catch (const verbund::Error& e) {
    std::fprintf(stderr, "bench_mesh: %s\n", e.what());
    return verbund::mapping(e.code()).exit_code;
  }
}
