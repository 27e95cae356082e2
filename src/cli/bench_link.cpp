// `verbund bench link`: latency and bandwidth of the links between ranks, and of their all-reduce.
//
// Each rank is a process of this machine, forked before the mesh comes up; the command itself is rank 0. Large figures of p99 are
// other programs on the machine more often than they are the link: compare medians of one sitting.
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/bytes.h"
#include "base/unix.h"
#include "cli/commands.h"
#include "cli/link_measure.h"
#include "cli/link_plot.h"
#include "cli/terminal.h"
#include "mesh/connect.h"

namespace verbund::cli {
namespace {

struct BenchLinkOptions {
  std::vector<std::string> transports{"shm", "tcp"};
  std::vector<int> ranks{2};
  std::vector<std::string> sizes{"64", "512", "2KiB", "4608", "16KiB", "32KiB", "64KiB", "256KiB", "1MiB"};
  int repeat = 2000;
  int64_t spin_us = -1;
  std::string queue_pair = "auto";
  bool pin = false, only_all_reduce = false, json = false;
  std::string svg;

  void declare(CLI::App& app) {
    app.add_option("--transport", transports, "Transports to compare: shm, tcp, verbs")->delimiter(',')->capture_default_str();
    app.add_option("--ranks", ranks, "Numbers of ranks, each a process of this machine")
        ->delimiter(',')
        ->check(CLI::Range(2, 64))
        ->capture_default_str();
    app.add_option("--sizes", sizes, "Sizes of a vector, as 4608 or 64KiB; multiples of 8 bytes")->delimiter(',');
    app.add_option("--repeat", repeat, "Timed calls of the small sizes")->check(CLI::Range(10, 10'000'000))->capture_default_str();
    app.add_option("--spin-us", spin_us, "How long a wait spins before it sleeps; -1: by ranks and cores")->capture_default_str();
    app.add_option("--queue-pair", queue_pair, "Of transport verbs: rc, uc or auto")
        ->check(CLI::IsMember({"auto", "rc", "uc"}))
        ->capture_default_str();
    app.add_flag("--pin", pin, "Bind rank r to core r modulo cores (Linux)");
    app.add_flag("--only-all-reduce", only_all_reduce, "Leave the pairs out");
    app.add_option("--svg", svg, "Write the curves as a picture");
    app.add_flag("--json", json, "One JSON object");
  }

  LinkMeasurement measurement() const {
    LinkMeasurement what{{}, repeat, !only_all_reduce};
    for (const std::string& text : sizes) {
      const uint64_t bytes = parse_bytes(text);
      if (bytes == 0 || bytes % sizeof(int64_t) != 0 || bytes > (uint64_t{1} << 30))
        throw Error(Code::invalid_argument, "a size is a multiple of 8 bytes, at most 1 GiB; this is \"" + text + "\"", "--sizes");
      what.sizes.push_back(bytes);
    }
    return what;
  }
};

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

// The processes of the other ranks. Once rank 0 has left the mesh they end by themselves, for their links are closed.
class Children {
 public:
  Children() = default;
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;
  ~Children() {
    for (const pid_t pid : pids_) ::waitpid(pid, nullptr, 0);
  }
  void add(pid_t pid) { pids_.push_back(pid); }
  void forget() { pids_.clear(); }

 private:
  std::vector<pid_t> pids_;
};

MeshFigures measure(const std::string& transport, int ranks, const BenchLinkOptions& options) {
  const LinkMeasurement what = options.measurement();
  mesh::MeshConfig config;
  config.size = ranks;
  config.transport = mesh::transport_from_string(transport);
  config.verbs.required = true;  // or tcp would be measured in its place
  config.verbs.queue_pair = mesh::queue_pair_from_string(options.queue_pair);
  config.secret = std::to_string(random_u64()) + std::to_string(random_u64());
  config.secret.resize(32, '.');
  config.spin_us = options.spin_us;
  std::vector<std::unique_ptr<mesh::Listener>> listeners;
  std::vector<std::string> endpoints;
  for (config.rank = 0; config.rank < ranks; ++config.rank) {
    listeners.push_back(mesh::listen(config));
    endpoints.push_back(listeners.back()->endpoint());
  }
  std::fflush(nullptr);  // or children print it again
  Children children;
  config.rank = 0;
  for (int r = 1; r < ranks && config.rank == 0; ++r) {
    const pid_t pid = ::fork();
    if (pid < 0) throw Error(Code::resource_exhausted, "cannot start another process: " + errno_text(errno), "bench link");
    if (pid == 0)
      config.rank = r;
    else
      children.add(pid);
  }
  if (config.rank > 0) children.forget();
  const auto play = [&] {
    auto mesh =
        mesh::connect_mesh(config, *listeners[static_cast<size_t>(config.rank)], endpoints, Deadline::after(std::chrono::seconds(20)));
    // After the set-up, which counts the cores this process may use.
    if (options.pin) pin_to_core(static_cast<unsigned>(config.rank) % std::max(1u, std::thread::hardware_concurrency()));
    return measure_links(*mesh, what);
  };
  if (config.rank > 0) {
    int code = 0;
    try {
      play();
    } catch (...) {  // rank 0 says what went wrong
      code = 1;
    }
    ::_exit(code);
  }
  MeshFigures figures = play();
  figures.transport = transport;
  return figures;
}

nlohmann::json to_json(const std::vector<LinkRow>& rows) {
  nlohmann::json out = nlohmann::json::array();
  for (const LinkRow& row : rows)
    out.push_back({{"bytes", row.bytes}, {"p50_us", row.p50_us}, {"p99_us", row.p99_us}, {"gb_per_s", row.gb_per_s}});
  return out;
}

nlohmann::json to_json(const std::vector<MeshFigures>& all) {
  nlohmann::json out{{"cores", available_cores()}, {"cpu", cpu_name()}, {"meshes", nlohmann::json::array()}};
  for (const MeshFigures& figures : all) {
    nlohmann::json pairs = nlohmann::json::array();
    for (const PairFigures& pair : figures.pairs)
      pairs.push_back({{"ranks", {pair.from, pair.to}}, {"transport", pair.transport}, {"rows", to_json(pair.rows)}});
    out["meshes"].push_back(
        {{"transport", figures.transport}, {"ranks", figures.ranks}, {"pairs", pairs}, {"all_reduce", to_json(figures.all_reduce)}});
  }
  return out;
}

void add_rows(std::vector<std::vector<std::string>>& cells, const std::string& what, const std::vector<LinkRow>& rows) {
  for (const LinkRow& row : rows)
    cells.push_back(
        {&row == rows.data() ? what : "", format_bytes(row.bytes), fixed(row.p50_us, 2), fixed(row.p99_us, 2), fixed(row.gb_per_s, 2)});
}

void print(const std::vector<MeshFigures>& all) {
  std::printf("%u cores, %s\npairs: half a round trip, and a stream one way; all-reduce: one call, and its vector over p50\n",
              available_cores(), cpu_name().c_str());
  for (const MeshFigures& figures : all) {
    std::printf("\n%d ranks over %s\n", figures.ranks, figures.transport.c_str());
    std::vector<std::vector<std::string>> cells{{"", "size", "p50 us", "p99 us", "GB/s"}};
    for (const PairFigures& pair : figures.pairs)
      add_rows(cells, std::to_string(pair.from) + "-" + std::to_string(pair.to) + " " + pair.transport, pair.rows);
    add_rows(cells, "all-reduce", figures.all_reduce);
    std::printf("%s", table(cells, 1).c_str());
  }
}

int bench_link(const BenchLinkOptions& options) {
  options.measurement();  // refuses bad sizes before anything starts
  std::vector<MeshFigures> all;
  ProgressLine line("measuring");
  const uint64_t total = options.transports.size() * options.ranks.size();
  for (const std::string& transport : options.transports)
    for (const int ranks : options.ranks) {
      line.update(all.size(), total);
      all.push_back(measure(transport, ranks, options));
    }
  line.clear();
  if (!options.svg.empty()) write_plot(options.svg, all);
  if (options.json)
    std::printf("%s\n", to_json(all).dump(2).c_str());
  else
    print(all);
  return 0;
}

}  // namespace

Command add_bench(CLI::App& app) {
  auto options = std::make_shared<BenchLinkOptions>();
  CLI::App* bench = app.add_subcommand("bench", "Measures this machine");
  bench->require_subcommand(1);
  options->declare(
      *bench->add_subcommand("link", "Latency and bandwidth of each pair of ranks per transport and size, and of the all-reduce"));
  return [options] { return bench_link(*options); };
}

}  // namespace verbund::cli
