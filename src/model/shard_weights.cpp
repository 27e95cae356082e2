#include "model/shard_weights.h"

namespace verbund::model {
namespace {

Range scaled(Range r, size_t by) { return {r.begin * by, r.end * by}; }

}  // namespace

std::string_view to_string(WeightUse use) {
  constexpr std::string_view names[] = {"embedding", "head", "qkv", "o", "gate_up", "down"};
  return names[static_cast<size_t>(use)];
}

std::vector<ShardWeight> shard_weights(const formats::ModelFiles& files, const DecoderSpec& s, const Units& units, const RankShard& shard) {
  const auto name = [&](Role role, size_t layer) { return tensor_name(files.container, role, layer); };
  const Range hidden{0, s.hidden};
  const Range q = scaled(shard.heads, s.head_dim), kv = scaled(shard.kv_heads, s.head_dim);
  std::vector<ShardWeight> list;
  if (shard.first_stage()) list.push_back({WeightUse::embedding, 0, {{name(Role::embedding, 0), shard.vocabulary, hidden}}, 0});
  for (size_t i = shard.layers.begin; i < shard.layers.end; ++i) {
    list.push_back({WeightUse::qkv, i, {{name(Role::q, i), q, hidden}, {name(Role::k, i), kv, hidden}, {name(Role::v, i), kv, hidden}}, 0});
    list.push_back({WeightUse::o, i, {{name(Role::o, i), hidden, q}}, units.heads_per_unit * s.head_dim});
    list.push_back({WeightUse::gate_up, i, {{name(Role::gate, i), shard.mlp, hidden}, {name(Role::up, i), shard.mlp, hidden}}, 0});
    list.push_back({WeightUse::down, i, {{name(Role::down, i), hidden, shard.mlp}}, units.mlp});
  }
  if (shard.last_stage() && !(s.tied && shard.first_stage()))
    list.push_back({WeightUse::head, 0, {{name(s.tied ? Role::embedding : Role::head, 0), shard.vocabulary, hidden}}, 0});
  return list;
}

Units units_of(const formats::ModelFiles& files, const DecoderSpec& spec) {
  std::vector<formats::WeightFormat> o, down;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    o.push_back(files.tensors->require(tensor_name(files.container, Role::o, i)).format);
    down.push_back(files.tensors->require(tensor_name(files.container, Role::down, i)).format);
  }
  return row_parallel_units(spec, o, down);
}

}  // namespace verbund::model
