#include "engine/runner_parts.h"

#include <thread>

#include "engine/frames.h"
#include "engine/ngram_drafter.h"
#include "model/family.h"
#include "model/shard_weights.h"

namespace verbund::engine {
namespace {

// Code, libraries and heap of a runner before it loads anything (16 MiB resident, measured), and what parsing the model's
// texts leaves behind (twice their size, measured with the demo model; rank 0 takes more for a moment, before the weights
// and in the memory that they take next). A constant rather than a reading of this process, so that the same placement is
// always announced with the same bytes.
constexpr uint64_t kProcessBytes = 16u << 20;

// Prefill steps that rank 0 may be ahead of the last pipeline stage.
constexpr size_t kPrefillStepsAhead = 4;

// All runners are started at the same time on the same machine; a slow one is still there after this.
constexpr std::chrono::seconds kConnectWait{30};

std::unique_ptr<compute::Backend> make_backend(const RunnerConfig& c) {
  if (c.backend == "native") return compute::make_native_backend(c.isa, c.threads, c.fast_dense);
  if (c.backend == "mlx") return compute::make_mlx_backend();
  throw Error(Code::invalid_argument, "there is no backend '" + c.backend + "'", {}, "native or mlx");
}

compute::KvType kv_type_of(const std::string& name) {
  if (name == "f16") return compute::KvType::f16;
  if (name == "f32") return compute::KvType::f32;
  if (name == "q8") return compute::KvType::q8;
  throw Error(Code::invalid_argument, "there is no KV format '" + name + "'", {}, "f16, q8 or f32");
}

nlohmann::json links_json(const mesh::Mesh& mesh) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& l : mesh.links())
    list.push_back({{"peer", l.peer},
                    {"transport", l.transport},
                    {"note", l.note},
                    {"bytes_sent", l.bytes_sent},
                    {"bytes_received", l.bytes_received}});
  return list;
}

bool over_mlx(const RunnerConfig& c) { return c.transport == "mlx"; }

// MLX has one ring for all ranks; a stage that is a part of them and each peer that is no neighbour get one of their own
// (docs/mlx.md). In a pipeline a rank talks to at most the stages before and after it and to rank 0.
size_t mlx_rings(const model::RankShard& shard) {
  const bool pipeline = shard.stage_count > 1;
  return 1 + (pipeline && shard.tp_size > 1 ? 1 : 0) + (pipeline ? 3 : 0);
}

mesh::MeshConfig mesh_config(const RunnerConfig& c) {
  mesh::MeshConfig m;
  m.rank = static_cast<int>(c.rank);
  m.size = static_cast<int>(c.parallel.ranks);
  m.epoch = c.epoch;
  m.secret = c.secret;
  m.transport = mesh::transport_from_string(c.transport);
  m.verbs.required = c.require_rdma;
  m.verbs.queue_pair = mesh::queue_pair_from_string(c.queue_pair);
  m.threads = c.threads;
  m.jitter_seed = c.faults.jitter_seed;
  return m;
}

}  // namespace

RunnerParts::RunnerParts(RunnerConfig config) : config_(std::move(config)), files_(formats::open_model(config_.model)) {
  spec_ = model::read_spec(files_);
  shards_ = model::make_shard_plan(spec_, model::units_of(files_, spec_), config_.parallel);
  options_ = {config_.context, config_.kv_blocks, kv_type_of(config_.kv_type), config_.token_budget, logit_rows_max()};
  backend_ = make_backend(config_);
  if (config_.trace) trace_ = std::make_unique<Trace>();
  if (leads()) text_ = model::load_text(files_, spec_);
  files_.metadata.clear();  // token lists of a GGUF file are large and have served their purpose

  const model::DecoderBytes bytes = model::decoder_bytes(files_, spec_, shards_.units, shard(), *backend_, options_);
  memory_.weights = bytes.weights;
  memory_.kv = bytes.kv;
  memory_.activations = std::max(bytes.activations + bytes.outputs, bytes.load_scratch) +
                        StepExecutor::bytes_max(shards_, config_.rank, spec_.hidden, config_.token_budget, logit_rows_max()) +
                        (leads() ? Sampler::bytes_max(token_ids()) + drafter_bytes() : 0);
  memory_.tables = bytes.tables;
  memory_.transport = over_mlx(config_) ? compute::kMlxRingBytes * mlx_rings(shard()) : mesh::buffer_bytes_estimate(mesh_config(config_));
  memory_.tokenizer = text_.tokenizer ? text_.tokenizer->bytes_estimate() : 0;
  memory_.process = kProcessBytes + 2 * model::text_bytes_on_disk(files_);
  if (config_.parallel.ranks == 1) return;
  if (over_mlx(config_))
    mlx_port_ = std::make_unique<compute::MlxReservation>("127.0.0.1");
  else
    listener_ = mesh::listen(mesh_config(config_));
}

RunnerParts::~RunnerParts() = default;

uint64_t RunnerParts::drafter_bytes() const {
  return config_.drafter == "ngram" ? NgramDrafter::bytes_max(size_t{config_.kv_blocks} * kKvBlock, config_.max_running) : 0;
}

nlohmann::json RunnerParts::planned() const {
  const std::string endpoint = listener_ ? listener_->endpoint() : mlx_port_ ? mlx_port_->endpoint() : "";
  return {{"op", "planned"}, {"memory", to_json(memory_)}, {"endpoint", endpoint}, {"backend", backend_->description()}};
}

void RunnerParts::connect(const std::vector<std::string>& endpoints, const std::function<void(mesh::Mesh&)>& made) {
  const Deadline deadline = Deadline::after(kConnectWait);
  world_ = config_.parallel.ranks == 1 ? mesh::make_solo_mesh()
           : over_mlx(config_)         ? compute::make_mlx_mesh({"ring", static_cast<int>(config_.rank), endpoints}, deadline)
                                       : mesh::connect_mesh(mesh_config(config_), *listener_, endpoints, deadline);
  listener_.reset();
  mlx_port_.reset();
  made(*world_);
  std::vector<int> stage;
  for (size_t r = 0; r < shard().tp_size; ++r) stage.push_back(static_cast<int>(shard().stage * shard().tp_size + r));
  tp_ = world_->subgroup(stage);
}

void RunnerParts::load(const std::function<void(uint64_t, uint64_t)>& progress) {
  // Test hook: gives a test the time to hit a rank while it loads.
  if (config_.faults.slow_load_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(config_.faults.slow_load_ms));
  const uint64_t total = memory_.weights;
  const uint64_t step = std::max<uint64_t>(total / 50, 1);
  uint64_t told = 0;
  decoder_ = std::make_unique<model::Decoder>(files_, spec_, shards_.units, shard(), *backend_, options_, [&](uint64_t bytes) {
    if (bytes < told + step && bytes != total) return;
    told = bytes;
    progress(bytes, total);
  });
  world_->barrier(Deadline::after(config_.load_wait));
}

nlohmann::json RunnerParts::ready() const {
  return {{"op", "ready"}, {"weight_bytes", decoder_->weight_bytes()}, {"kv_bytes", decoder_->kv_bytes()}, {"links", links_json(*world_)}};
}

void RunnerParts::serve(Mailbox& mailbox, Leader::Send send) {
  const PlanLimits limits{config_.token_budget, logit_rows_max(), config_.context, config_.kv_blocks,
                          static_cast<uint32_t>(spec_.vocabulary)};
  PlanChannel channel(*world_, wait(), limits);
  // MLX's ring carries sends and collectives in one order, so nothing may be left unread on it.
  const size_t owed_max = over_mlx(config_) ? 0 : kPrefillStepsAhead;
  StepExecutor executor(
      {*decoder_, *world_, *tp_, shards_, spec_, wait(), config_.token_budget, logit_rows_max(), owed_max, config_.faults, trace_.get()});
  if (!leads()) return follow(channel, executor);
  SchedulerConfig c;
  c.token_budget = config_.token_budget;
  c.prefill_chunk = config_.prefill_chunk;
  c.max_running = config_.max_running;
  c.score_rows = config_.score_rows;
  c.draft_rows = config_.draft_rows;
  c.context_max = config_.context;
  c.blocks = config_.kv_blocks;
  c.vocabulary = static_cast<uint32_t>(token_ids());
  Leader leader(c, spec_.vocabulary, text_.tokenizer, text_.eos, channel, executor, mailbox, std::move(send), make_drafter());
  leader.run();
}

std::unique_ptr<Drafter> RunnerParts::make_drafter() const {
  if (config_.drafter == "off") return nullptr;
  if (config_.drafter == "ngram") return std::make_unique<NgramDrafter>();
  throw Error(Code::invalid_argument, "there is no drafter '" + config_.drafter + "'", {}, "off, ngram or model");
}

nlohmann::json RunnerParts::report() const {
  nlohmann::json j{{"op", "report"}, {"peak_rss_bytes", peak_rss_bytes()}, {"links", links_json(*world_)}};
  if (trace_) {
    nlohmann::json events = nlohmann::json::array();
    for (const Trace::Event& e : trace_->events())
      events.push_back({e.name, e.layer, e.step, e.rows, e.sequences, e.bytes, e.begin_ns, e.duration_ns});
    j["trace"] = std::move(events);
  }
  return j;
}

}  // namespace verbund::engine
