#include "model/harness.h"

#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/unix.h"
#include "model/decoder.h"
#include "model/family.h"
#include "model/shard_weights.h"

namespace verbund::test {
namespace {

using namespace std::chrono_literals;

struct Sequence {
  std::vector<int32_t> tokens;
  std::vector<uint32_t> blocks;
};

// The main sequence and its companions, which are longer or shorter and hold other tokens.
std::vector<Sequence> sequences_of(const std::vector<int32_t>& tokens, const RunSetup& setup) {
  std::vector<Sequence> all(1 + setup.companions);
  all[0].tokens = tokens;
  for (size_t i = 1; i < all.size(); ++i)
    for (size_t k = 0; k < tokens.size() / 2 + 5 * i; ++k) all[i].tokens.push_back(tokens[(k * (i + 2) + i) % tokens.size()]);
  uint32_t next = 0, total = 0;
  for (Sequence& s : all) {
    for (size_t b = 0; b < ceil_div(s.tokens.size(), compute::kKvBlock); ++b) s.blocks.push_back(next++);
    total = next;
  }
  if (setup.reverse_blocks)
    for (Sequence& s : all)
      for (uint32_t& b : s.blocks) b = total - 1 - b;
  return all;
}

struct Rank {
  model::RankShard shard;
  std::unique_ptr<compute::Backend> backend;
  std::unique_ptr<model::Decoder> decoder;
  std::unique_ptr<mesh::Mesh> world, tp;
};

// All steps of the run on one rank; rank 0 returns the logits of the main sequence.
std::vector<float> run_rank(Rank& rank, const std::vector<model::RankShard>& shards, const model::DecoderSpec& spec,
                            const std::vector<Sequence>& sequences, size_t chunk) {
  std::vector<float> result;
  std::vector<size_t> done(sequences.size());
  while (done[0] < sequences[0].tokens.size()) {
    std::vector<int32_t> tokens;
    std::vector<compute::Segment> segments;
    // Companions first, so that the main sequence's rows move about.
    for (size_t i = sequences.size(); i-- > 0;) {
      const size_t rows = std::min(i == 0 ? chunk : chunk + i, sequences[i].tokens.size() - done[i]);
      if (rows == 0) continue;
      segments.push_back({static_cast<uint32_t>(tokens.size()), static_cast<uint32_t>(rows), static_cast<uint32_t>(done[i]),
                          std::span(sequences[i].blocks).first(ceil_div(done[i] + rows, compute::kKvBlock))});
      tokens.insert(tokens.end(), sequences[i].tokens.begin() + static_cast<long>(done[i]),
                    sequences[i].tokens.begin() + static_cast<long>(done[i] + rows));
      done[i] += rows;
    }
    std::vector<uint32_t> sampled;
    for (uint32_t r = 0; r < segments.back().rows; ++r) sampled.push_back(segments.back().first_row + r);

    const auto deadline = [] { return Deadline::after(20s); };
    std::vector<float> hidden;
    if (!rank.shard.first_stage()) {
      hidden.resize(tokens.size() * spec.hidden);
      rank.world->recv(std::as_writable_bytes(std::span(hidden)), static_cast<int>(rank.shard.rank - rank.shard.tp_size), deadline());
    }
    model::Decoder::StepOutput out;
    rank.decoder->forward({tokens, segments, sampled, hidden}, *rank.tp, 20s, nullptr, out);
    if (!rank.shard.last_stage())
      rank.world->send(std::as_bytes(std::span(out.hidden)), static_cast<int>(rank.shard.rank + rank.shard.tp_size), deadline());
    if (rank.shard.rank != 0) {
      if (rank.shard.last_stage() && !rank.shard.vocabulary.empty()) rank.world->send(std::as_bytes(std::span(out.logits)), 0, deadline());
      continue;
    }
    const size_t old = result.size();
    result.resize(old + sampled.size() * spec.vocabulary);
    for (const auto& from : shards) {
      if (!from.last_stage() || from.vocabulary.empty()) continue;
      std::vector<float> piece = std::move(out.logits);
      if (from.rank != 0) {
        piece.assign(sampled.size() * from.vocabulary.size(), 0);
        rank.world->recv(std::as_writable_bytes(std::span(piece)), static_cast<int>(from.rank), deadline());
      }
      for (size_t r = 0; r < sampled.size(); ++r)
        std::copy_n(piece.begin() + static_cast<long>(r * from.vocabulary.size()), from.vocabulary.size(),
                    result.begin() + static_cast<long>(old + r * spec.vocabulary + from.vocabulary.begin));
    }
  }
  return result;
}

}  // namespace

std::vector<float> logits_of(const std::string& path, const std::vector<int32_t>& tokens, const RunSetup& setup) {
  const formats::ModelFiles files = formats::open_model(path);
  const model::DecoderSpec spec = model::read_spec(files);
  const model::ShardPlan plan = model::make_shard_plan(spec, model::units_of(files, spec), setup.parallel);
  const std::vector<Sequence> sequences = sequences_of(tokens, setup);
  size_t blocks = 0, rows = 0;
  for (const Sequence& s : sequences) blocks += s.blocks.size(), rows += s.tokens.size();
  const size_t chunk = setup.chunk == 0 ? tokens.size() : setup.chunk;

  std::vector<Rank> ranks(plan.ranks.size());
  std::vector<mesh::MeshConfig> configs(ranks.size());
  std::vector<std::unique_ptr<mesh::Listener>> listeners(ranks.size());
  std::vector<std::string> endpoints;
  for (size_t r = 0; r < ranks.size(); ++r) {
    configs[r].rank = static_cast<int>(r);
    configs[r].size = static_cast<int>(ranks.size());
    configs[r].secret = "a secret of the test";
    configs[r].transport = setup.transport;
    configs[r].jitter_seed = setup.jitter_seed ? setup.jitter_seed + r : 0;
    if (ranks.size() > 1) {
      listeners[r] = mesh::listen(configs[r]);
      endpoints.push_back(listeners[r]->endpoint());
    }
  }

  std::vector<float> result;
  std::vector<std::exception_ptr> errors(ranks.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks.size(); ++r)
    threads.emplace_back([&, r] {
      try {
        Rank& rank = ranks[r];
        rank.shard = plan.ranks[r];
        rank.backend = compute::make_native_backend(setup.isa, setup.threads);
        rank.world =
            ranks.size() == 1 ? mesh::make_solo_mesh() : mesh::connect_mesh(configs[r], *listeners[r], endpoints, Deadline::after(10s));
        std::vector<int> stage;
        for (const auto& s : plan.ranks)
          if (s.stage == rank.shard.stage) stage.push_back(static_cast<int>(s.rank));
        rank.tp = rank.world->subgroup(stage);
        rank.decoder =
            std::make_unique<model::Decoder>(files, spec, plan.units, rank.shard, *rank.backend,
                                             model::DecoderOptions{std::max<size_t>(rows, 64), blocks, setup.kv_type, rows}, nullptr);
        std::vector<float> logits = run_rank(rank, plan.ranks, spec, sequences, chunk);
        if (r == 0) result = std::move(logits);
        rank.world->barrier(Deadline::after(20s));
      } catch (...) {
        errors[r] = std::current_exception();
        if (ranks[r].world) ranks[r].world->cancel("another rank of the test failed");
      }
    });
  for (std::thread& t : threads) t.join();
  for (const auto& e : errors)
    if (e) std::rethrow_exception(e);
  return result;
}

Reference read_reference(const std::string& path) {
  const std::string bytes = read_text_file(path, 16u << 20);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  const auto header = nlohmann::json::parse(bytes.substr(8, length));
  const char* data = bytes.data() + 8 + length;
  Reference r;
  const auto read = [&](const char* name, auto& into) {
    const size_t begin = header.at(name).at("data_offsets").at(0), end = header.at(name).at("data_offsets").at(1);
    into.resize((end - begin) / 4);
    std::memcpy(into.data(), data + begin, end - begin);
  };
  read("input_ids", r.tokens);
  read("logits", r.logits);
  r.vocabulary = r.logits.size() / r.tokens.size();
  return r;
}

std::string model_path(const std::string& name) {
  const std::filesystem::path folder = std::filesystem::path(VERBUND_TEST_DATA) / "models" / name;
  return std::filesystem::exists(folder / "model.gguf") ? (folder / "model.gguf").string() : folder.string();
}

}  // namespace verbund::test
