#include "model/shares.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace verbund::model {
namespace {

// Vocabulary cuts fall on the row blocks of the packed kernels.
constexpr size_t kVocabularyUnit = 16;
// A down projection is cut into about this many units at least, so that small models split over several ranks ...
constexpr size_t kMlpUnitsWanted = 16;
// ... and a unit is this wide at most: from here on the rounding of units costs next to nothing.
constexpr size_t kMlpUnitMax = 128;
constexpr size_t kRanksMax = 1024;

// Columns that must stay together in one unit: the activation block of quantised weights (compute/numerics.h point 2).
size_t block_of(const formats::WeightFormat& f) {
  return f.coding == formats::Coding::dense ? 1 : std::max<size_t>(32, static_cast<size_t>(f.group));
}

size_t common_block(const std::vector<formats::WeightFormat>& formats, size_t start) {
  return std::accumulate(formats.begin(), formats.end(), start, [](size_t n, const auto& f) { return std::lcm(n, block_of(f)); });
}

// Contiguous ranges in rank order of `total` items handed out in whole units.
std::vector<Range> ranges_of(size_t total, size_t unit, const std::vector<double>& weights) {
  const std::vector<size_t> units = split_units(ceil_div(total, unit), weights);
  std::vector<Range> ranges;
  size_t begin = 0;
  for (size_t n : units) {
    const size_t end = std::min(total, begin + n * unit);
    ranges.push_back({begin, end});
    begin = end;
  }
  return ranges;
}

std::vector<size_t> stage_layers(size_t total, const ParallelConfig& config) {
  if (config.layers.empty()) {
    if (config.stages > total)
      throw Error(Code::invalid_argument,
                  std::to_string(total) + " layers cannot fill " + std::to_string(config.stages) + " pipeline stages", {},
                  "use at most " + std::to_string(total) + " stages");
    return split_units(total, std::vector<double>(config.stages, 1.0));
  }
  const size_t sum = std::accumulate(config.layers.begin(), config.layers.end(), size_t(0));
  if (config.layers.size() != config.stages)
    throw Error(Code::invalid_argument,
                "layers are given for " + std::to_string(config.layers.size()) + " stages, but there are " + std::to_string(config.stages));
  if (sum != total || std::count(config.layers.begin(), config.layers.end(), 0u) > 0)
    throw Error(Code::invalid_argument, "the stages' layers add up to " + std::to_string(sum) + ", the model has " + std::to_string(total),
                {}, "give each stage at least one layer and all of them together " + std::to_string(total));
  return config.layers;
}

std::vector<double> shares_of(const ParallelConfig& config, size_t tp_size) {
  if (config.shares.empty()) return std::vector<double>(tp_size, 1.0);
  if (config.shares.size() != tp_size)
    throw Error(Code::invalid_argument,
                std::to_string(config.shares.size()) + " shares are given for " + std::to_string(tp_size) + " ranks of a stage");
  for (double s : config.shares)
    if (!(s > 0) || !(s < 1e9)) throw Error(Code::invalid_argument, "a share must be a positive number");
  return config.shares;
}

void set_heads(RankShard& shard, const DecoderSpec& spec, Range heads) {
  shard.heads = heads;
  if (heads.empty()) return;
  const size_t g = spec.group();
  shard.kv_heads = {heads.begin / g, (heads.end - 1) / g + 1};
  for (size_t h = heads.begin; h < heads.end; ++h) shard.kv_of_head.push_back(static_cast<uint32_t>(h / g - shard.kv_heads.begin));
}

}  // namespace

std::vector<size_t> split_units(size_t total, const std::vector<double>& weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<size_t> parts(weights.size());
  std::vector<double> fractions(weights.size());
  size_t given = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double exact = static_cast<double>(total) * weights[i] / sum;
    parts[i] = std::min(total - given, static_cast<size_t>(exact));
    fractions[i] = exact - std::floor(exact);
    given += parts[i];
  }
  std::vector<size_t> order(weights.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return fractions[a] > fractions[b]; });
  for (size_t i = 0; given < total; i = (i + 1) % order.size(), ++given) ++parts[order[i]];
  return parts;
}

Units row_parallel_units(const DecoderSpec& spec, const std::vector<formats::WeightFormat>& o_formats,
                         const std::vector<formats::WeightFormat>& down_formats) {
  Units units;
  units.heads_per_unit = std::min(spec.heads, common_block(o_formats, spec.head_dim) / spec.head_dim);
  const size_t block = common_block(down_formats, 32);
  units.mlp = std::min(round_up(std::min(ceil_div(spec.mlp, kMlpUnitsWanted), kMlpUnitMax), block), round_up(spec.mlp, block));
  return units;
}

ShardPlan make_shard_plan(const DecoderSpec& spec, const Units& units, const ParallelConfig& config) {
  if (config.ranks == 0 || config.ranks > kRanksMax)
    throw Error(Code::invalid_argument,
                std::to_string(config.ranks) + " ranks: between 1 and " + std::to_string(kRanksMax) + " are possible");
  if (config.stages == 0 || config.ranks % config.stages != 0)
    throw Error(Code::invalid_argument,
                std::to_string(config.ranks) + " ranks cannot form " + std::to_string(config.stages) + " equal pipeline stages");
  const size_t tp_size = config.ranks / config.stages;
  const std::vector<double> shares = shares_of(config, tp_size);
  const std::vector<size_t> layers = stage_layers(spec.layers.size(), config);
  const double share_sum = std::accumulate(shares.begin(), shares.end(), 0.0);

  const std::vector<Range> heads = ranges_of(spec.heads, units.heads_per_unit, shares);
  const std::vector<Range> mlp = ranges_of(spec.mlp, units.mlp, shares);
  const std::vector<Range> vocabulary = ranges_of(spec.vocabulary, kVocabularyUnit, shares);

  ShardPlan plan{units, {}};
  size_t first_layer = 0;
  for (size_t stage = 0; stage < config.stages; ++stage) {
    for (size_t r = 0; r < tp_size; ++r) {
      RankShard shard;
      shard.rank = stage * tp_size + r;
      shard.stage = stage, shard.stage_count = config.stages;
      shard.tp_rank = r, shard.tp_size = tp_size;
      shard.share = shares[r] / share_sum;
      shard.layers = {first_layer, first_layer + layers[stage]};
      set_heads(shard, spec, heads[r]);
      shard.mlp = mlp[r];
      shard.vocabulary = vocabulary[r];
      plan.ranks.push_back(std::move(shard));
    }
    first_layer += layers[stage];
  }
  return plan;
}

}  // namespace verbund::model
