#include "cli/instance_options.h"

#include <charconv>
#include <filesystem>

#include "base/bytes.h"
#include "base/error.h"
#include "base/unix.h"

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

}  // namespace

void InstanceOptions::declare_model(CLI::App& app) {
  app.add_option("MODEL", model, "A folder, a GGUF file, or the name of a model in the model folder (smollm2)")->required();
}

void InstanceOptions::declare_placement(CLI::App& app) {
  const char* where = "Placement";
  app.add_option("--local", local, "Nodes on this machine")->check(CLI::Range(1, 64))->capture_default_str()->group(where);
  app.add_option("--stages", stages, "Pipeline stages, of local / stages ranks each")
      ->check(CLI::Range(1, 64))
      ->capture_default_str()
      ->group(where);
  app.add_option("--shares", shares, "Proportions of the ranks in a stage, as 3:2:1")->group(where);
  app.add_option("--layers", layers, "Layers of the stages, as 20:10")->group(where);
  app.add_option("--memory", memory, "Memory budget of each node, as 60MB or 1.5GiB; what does not fit is refused")->group(where);
  app.add_option("--transport", transport,
                 "Links between ranks: shm, tcp, verbs (RDMA), or mlx (MLX ring). verbs is tried with Soft-RoCE only, not on InfiniBand "
                 "or Thunderbolt hardware; a pair of nodes without RDMA uses tcp and the table says so")
      ->check(CLI::IsMember({"shm", "tcp", "verbs", "mlx"}))
      ->capture_default_str()
      ->group(where);
  app.add_flag("--require-rdma", require_rdma, "Refuse to run where a pair of nodes cannot do RDMA; with --transport verbs")->group(where);
  app.add_option("--queue-pair", queue_pair, "Of --transport verbs: rc (reliable), uc (unreliable; all that Thunderbolt has), auto")
      ->check(CLI::IsMember({"auto", "rc", "uc"}))
      ->capture_default_str()
      ->group(where);
}

void InstanceOptions::declare_computation(CLI::App& app) {
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
  app.add_flag("--fast-dense", fast_dense,
               "Multiply f16, bf16 and f32 weights in bf16: many times faster prefill where the CPU has AMX tiles for it, half the memory "
               "of f32 weights; answers differ a little from those without, and are alike on all machines")
      ->group(how);
  app.add_option("--threads", threads, "Threads of each rank (default: cores / ranks)")->check(CLI::Range(1, 1024))->group(how);
  app.add_option("--kv", kv_type, "Format of keys and values: f16, q8 (half the bytes) or f32")
      ->check(CLI::IsMember({"f16", "q8", "f32"}))
      ->capture_default_str()
      ->group(how);
}

void InstanceOptions::declare_speculation(CLI::App& app) {
  const char* what = "Speculation";
  app.add_option(
         "--speculate", speculate,
         "ngram: guess the next tokens from what the text says already and check the guesses in one step; the answer is the same to "
         "the bit, sooner where it repeats what it was given. off: do not")
      ->check(CLI::IsMember({"off", "ngram"}))
      ->capture_default_str()
      ->group(what);
  app.add_option("--draft-rows", draft_rows, "Tokens of a step up to which guesses fill it: a step that decodes for so many has none")
      ->check(CLI::Range(2u, 1024u))
      ->capture_default_str()
      ->group(what);
}

model::ParallelConfig InstanceOptions::parallel() const {
  model::ParallelConfig p;
  p.ranks = local;
  p.stages = stages;
  p.shares = split_numbers<double>(shares, "--shares");
  p.layers = split_numbers<size_t>(layers, "--layers");
  return p;
}

engine::InstanceConfig InstanceOptions::instance_config(const std::string& path) const {
  engine::InstanceConfig c;
  c.program = executable_path();
  engine::RunnerConfig& r = c.runner;
  r.model = std::filesystem::absolute(path).string();
  r.parallel = parallel();
  r.backend = backend;
  r.transport = transport;
  r.queue_pair = queue_pair;
  r.require_rdma = require_rdma;
  if (require_rdma && transport != "verbs")
    throw Error(Code::invalid_argument, "--require-rdma: transport " + transport + " is not RDMA", {}, "add --transport verbs");
  r.isa = isa;
  r.fast_dense = fast_dense;
  if (fast_dense && backend != "native")
    throw Error(Code::invalid_argument, "--fast-dense is of the native backend", {}, "leave it out with --backend " + backend);
  r.threads = threads.value_or(std::max(1u, available_cores() / static_cast<unsigned>(local)));
  r.kv_type = kv_type;
  r.drafter = speculate;
  if (speculate != "off") r.draft_rows = draft_rows;
  return c;
}

uint64_t InstanceOptions::memory_budget() const {
  try {
    return parse_bytes(*memory);
  } catch (const Error& e) { throw e.within("--memory"); }
}

}  // namespace verbund::cli
