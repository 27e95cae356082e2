#include "model/shares.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"

namespace verbund::model {
namespace {

DecoderSpec smollm2() {
  DecoderSpec s;
  s.vocabulary = 49152, s.hidden = 576, s.heads = 9, s.kv_heads = 3, s.head_dim = 64, s.mlp = 1536, s.context_max = 8192;
  s.layers.resize(30);
  return s;
}

formats::WeightFormat affine(int bits, int group) { return {formats::Coding::affine, formats::DType::f16, bits, group, std::nullopt}; }

// Reference: models.md section 5.2 gives these as worked examples.
TEST(SplitUnits, LargestFractionsGetTheRest) {
  EXPECT_EQ(split_units(90, {1, 1, 1, 1}), (std::vector<size_t>{23, 23, 22, 22}));
  EXPECT_EQ(split_units(8, {512, 512, 256}), (std::vector<size_t>{3, 3, 2}));
  EXPECT_EQ(split_units(64, {3, 2, 2}), (std::vector<size_t>{28, 18, 18}));
  EXPECT_EQ(split_units(0, {1, 1}), (std::vector<size_t>{0, 0}));
  EXPECT_EQ(split_units(1, {1, 1, 1}), (std::vector<size_t>{1, 0, 0}));
}

TEST(SplitUnits, NothingIsLostForAnyProportion) {
  for (size_t total : {1u, 7u, 90u, 4097u})
    for (size_t ranks = 1; ranks <= 9; ++ranks) {
      std::vector<double> weights;
      for (size_t r = 0; r < ranks; ++r) weights.push_back(0.37 * static_cast<double>(r + 1) * static_cast<double>(total % 5 + 1));
      const auto parts = split_units(total, weights);
      EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), size_t(0)), total);
    }
}

TEST(Units, DependOnTheModelAlone) {
  const Units demo = row_parallel_units(smollm2(), {affine(4, 32)}, {affine(4, 32)});
  EXPECT_EQ(demo.heads_per_unit, 1u);
  EXPECT_EQ(demo.mlp, 96u);
  DecoderSpec narrow = smollm2();
  narrow.head_dim = 16;
  EXPECT_EQ(row_parallel_units(narrow, {affine(4, 64)}, {affine(4, 64)}).heads_per_unit, 4u);  // a group of 64 spans four heads
  EXPECT_EQ(row_parallel_units(narrow, {{}}, {affine(4, 128)}).heads_per_unit, 1u);            // dense: any head is a unit
  EXPECT_EQ(row_parallel_units(narrow, {{}}, {affine(4, 128)}).mlp, 128u);
}

// Cases P7, P8: 9 heads and 3 KV heads on 2 and on 5 ranks; never a head cut in two.
TEST(ShardPlan, KvHeadsAtABorderLiveOnBothSides) {
  const DecoderSpec s = smollm2();
  const Units u = row_parallel_units(s, {affine(4, 32)}, {affine(4, 32)});
  for (size_t ranks = 1; ranks <= 5; ++ranks) {
    const ShardPlan plan = make_shard_plan(s, u, {ranks, 1, {}, {}});
    size_t head = 0, column = 0, row = 0;
    for (const RankShard& r : plan.ranks) {
      EXPECT_EQ(r.heads.begin, head);
      EXPECT_EQ(r.mlp.begin, column);
      EXPECT_EQ(r.vocabulary.begin, row);
      head = r.heads.end, column = r.mlp.end, row = r.vocabulary.end;
      ASSERT_EQ(r.kv_of_head.size(), r.heads.size());
      for (size_t h = 0; h < r.heads.size(); ++h) EXPECT_EQ(r.kv_heads.begin + r.kv_of_head[h], (r.heads.begin + h) / 3);
    }
    EXPECT_EQ(head, 9u);
    EXPECT_EQ(column, 1536u);
    EXPECT_EQ(row, 49152u);
  }
  const ShardPlan two = make_shard_plan(s, u, {2, 1, {}, {}});
  EXPECT_EQ(two.ranks[0].heads, (Range{0, 5}));
  EXPECT_EQ(two.ranks[0].kv_heads, (Range{0, 2}));
  EXPECT_EQ(two.ranks[1].kv_heads, (Range{1, 3}));  // KV head 1 is read by heads 3, 4 and 5
}

// Case P9: each layer exactly once.
TEST(ShardPlan, EachLayerBelongsToOneStage) {
  DecoderSpec s = smollm2();
  for (auto [layers, stages] : {std::pair<size_t, size_t>{7, 2}, {61, 2}, {61, 4}, {3, 3}}) {
    s.layers.resize(layers);
    const ShardPlan plan = make_shard_plan(s, {1, 96}, {stages, stages, {}, {}});
    size_t next = 0;
    for (const RankShard& r : plan.ranks) {
      EXPECT_EQ(r.layers.begin, next);
      EXPECT_GT(r.layers.size(), 0u);
      next = r.layers.end;
    }
    EXPECT_EQ(next, layers);
  }
}

TEST(ShardPlan, RefusesWhatDoesNotFitInOneSentence) {
  const DecoderSpec s = smollm2();
  const auto text = [&](const ParallelConfig& c) -> std::string {
    try {
      make_shard_plan(s, {1, 96}, c);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::invalid_argument);
      return e.what();
    }
    return "accepted";
  };
  EXPECT_NE(text({3, 2, {}, {}}).find("3 ranks cannot form 2"), std::string::npos);
  EXPECT_NE(text({31, 31, {}, {}}).find("30 layers"), std::string::npos);
  EXPECT_NE(text({2, 2, {}, {20, 11}}).find("31"), std::string::npos);
  EXPECT_NE(text({2, 2, {}, {30, 0}}).find("at least one layer"), std::string::npos);
  EXPECT_NE(text({2, 1, {1, 2, 3}, {}}).find("3 shares"), std::string::npos);
  EXPECT_NE(text({2, 1, {1, -2}, {}}).find("positive"), std::string::npos);
}

}  // namespace
}  // namespace verbund::model
