// Candidates against whole rows: the same token, or the same error, for every cut of the vocabulary.
#include "engine/head_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/sampler.h"

namespace verbund::engine {
namespace {

using testing::HasSubstr;
using Row = std::vector<float>;

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<Range> cut(size_t vocabulary, size_t ranks, std::mt19937& random) {
  std::vector<size_t> ends{vocabulary};
  for (size_t i = 1; i < ranks; ++i) ends.push_back(1 + random() % (vocabulary - 1));
  std::sort(ends.begin(), ends.end());
  std::vector<Range> pieces;
  for (size_t begin = 0; const size_t end : ends) {
    if (end > begin) pieces.push_back({begin, end});
    begin = end;
  }
  return pieces;
}

Row columns_of(const std::vector<Row>& rows, Range columns) {
  Row all;
  for (const Row& row : rows)
    all.insert(all.end(), row.begin() + static_cast<long>(columns.begin), row.begin() + static_cast<long>(columns.end));
  return all;
}

// All pieces as they travel, the first rank's own as it is. Checks the sizes on the way.
void collect(HeadRows& head, const StepPlan& plan, const std::vector<Row>& rows, const std::vector<Range>& pieces, const Row& own) {
  head.begin(plan);
  head.add(own, pieces[0]);
  for (size_t i = 1; i < pieces.size(); ++i) {
    HeadRows sender(HeadRole::sends, pieces, plan.sampled_rows());
    sender.begin(plan);
    std::vector<std::byte> piece(sender.piece_bytes(pieces[i]));
    EXPECT_EQ(piece.size(), head.piece_bytes(pieces[i]));
    EXPECT_LE(piece.size(), HeadRows::piece_bytes_max(pieces[i], plan.sampled_rows()));
    sender.pack(columns_of(rows, pieces[i]), pieces[i], piece);
    EXPECT_EQ(sender.bytes(), HeadRows::bytes_max(HeadRole::sends, pieces, plan.sampled_rows()));
    head.add(std::span<const std::byte>(piece), pieces[i]);
  }
}

std::string outcome(const std::function<int32_t()>& sample) {
  try {
    return std::to_string(sample());
  } catch (const Error& e) { return std::string(to_string(e.code())) + " " + e.what(); }
}

StepPlan plan_of(const std::vector<uint32_t>& candidates, size_t ids) {
  StepPlan plan;
  plan.sequence = 1, plan.ids = static_cast<uint32_t>(ids);
  for (const uint32_t k : candidates)
    plan.segments.push_back({.request = plan.segments.size(), .sample_rows = 1, .candidates = k, .tokens = {1}, .blocks = {0}});
  return plan;
}

TEST(HeadRows, CandidatesDrawWhatWholeRowsDraw) {
  std::mt19937 random(3);
  const auto pick = [&](auto... values) {
    const std::common_type_t<decltype(values)...> all[] = {values...};
    return all[random() % sizeof...(values)];
  };
  size_t errors = 0, drawn = 0, whole = 0;
  for (uint32_t round = 0; round < 3000; ++round) {
    const size_t vocabulary = pick(40u, 300u, 1000u), tokens = vocabulary - pick(0u, 1u, 33u);
    std::vector<Row> rows(1 + random() % 4, Row(vocabulary));
    std::vector<SamplingParams> params;
    std::vector<uint32_t> candidates;
    for (Row& row : rows) {
      std::normal_distribution<float> normal(0, pick(0.5f, 3.f, 10.f));
      const int kind = static_cast<int>(random() % 8);
      for (float& l : row) {
        l = normal(random);
        if (kind == 0) l = std::round(l);              // many ties, zeros of both signs
        if (kind == 1 && random() % 3 > 0) l = -kInf;  // few tokens are possible
      }
      if (kind == 2) row.assign(vocabulary, 0.25f);      // all the same
      if (kind == 3) std::sort(row.begin(), row.end());  // the worst order for a threshold
      if (kind == 4) row.assign(vocabulary, -kInf);      // nothing is possible
      if (kind == 5)                                     // not finite, in padding too
        for (int i = 0; i < 3; ++i) row[random() % vocabulary] = pick(kNan, -kNan, kInf);
      params.push_back({.temperature = pick(0.f, 0.4f, 1.f, 2.f),
                        .top_k = pick(0, 1, 3, 20, 256, 257),
                        .top_p = pick(1.f, 0.3f, 0.95f),
                        .min_p = pick(0.f, 0.1f),
                        .choice = static_cast<uint32_t>(random() % 3)});
      if (random() % 20 > 0) params.back().seed = random();
      candidates.push_back(candidates_needed(params.back(), tokens));
    }
    const std::vector<Range> pieces = cut(vocabulary, 1 + round % 5, random);
    const StepPlan plan = plan_of(candidates, tokens);
    const HeadRole role = pieces.size() == 1 ? HeadRole::alone : HeadRole::gathers;
    HeadRows head(role, pieces, plan.sampled_rows());
    const Row own = columns_of(rows, pieces[0]);
    collect(head, plan, rows, pieces, own);
    EXPECT_EQ(head.bytes(), HeadRows::bytes_max(role, pieces, plan.sampled_rows()));
    ASSERT_EQ(head.rows().size(), rows.size());
    Sampler sampler(vocabulary, tokens);
    for (size_t r = 0; r < rows.size(); ++r) {
      const SampledRow& got = head.rows()[r];
      const std::string expected = outcome([&] { return sampler.sample(rows[r], params[r], {}, round); });
      (expected.find(' ') != std::string::npos ? errors : drawn) += candidates[r] > 0;
      if (candidates[r] > 0) {
        ASSERT_EQ(outcome([&] { return sampler.sample(got.candidates, params[r], round); }), expected)
            << "round " << round << " row " << r << " of " << pieces.size() << " ranks";
        continue;
      }
      ++whole;
      ASSERT_EQ(got.logits.size(), vocabulary);
      ASSERT_EQ(std::memcmp(got.logits.data(), rows[r].data(), vocabulary * sizeof(float)), 0);
    }
    EXPECT_EQ(sampler.bytes(), Sampler::bytes_max(tokens));
  }
  EXPECT_GT(errors, 500u);
  EXPECT_GT(drawn, 2000u);
  EXPECT_GT(whole, 500u);
}

TEST(HeadRows, OneBadLogitOfAnyRankIsNamedAsInTheWholeRow) {
  const std::vector<Range> pieces{{0, 16}, {16, 48}, {48, 64}};
  Sampler sampler(64, 60);
  for (const SamplingParams& p : {SamplingParams{.temperature = 0}, SamplingParams{.temperature = 1, .top_k = 20, .seed = 1}})
    for (const float bad : {kNan, -kNan, kInf})
      for (int32_t id = 0; id < 64; ++id) {
        std::vector<Row> rows(1, Row(64, 1));
        rows[0][static_cast<size_t>(id)] = bad;
        rows[0][static_cast<size_t>(id) / 2 + 32] = bad;  // a later one, or the same
        const StepPlan plan = plan_of({candidates_needed(p, 60)}, 60);
        HeadRows head(HeadRole::gathers, pieces, 1);
        const Row own = columns_of(rows, pieces[0]);
        collect(head, plan, rows, pieces, own);
        const std::string expected = outcome([&] { return sampler.sample(rows[0], p, {}, 0); });
        EXPECT_EQ(outcome([&] { return sampler.sample(head.rows()[0].candidates, p, 0); }), expected);
        if (id >= 60) continue;  // padding
        EXPECT_THAT(expected, HasSubstr("token id " + std::to_string(id)));
      }
}

TEST(HeadRows, CandidatesAreFewBytes) {
  const std::vector<Range> pieces{{0, 24'576}, {24'576, 49'152}};
  const auto bytes = [&](uint32_t candidates, size_t ids) {
    HeadRows head(HeadRole::sends, pieces, 1);
    head.begin(plan_of({candidates}, ids));
    return head.piece_bytes(pieces[1]);
  };
  EXPECT_EQ(bytes(0, 49'000), 24'576 * 4u);
  EXPECT_EQ(bytes(1, 49'000), 8u);
  EXPECT_EQ(bytes(256, 49'000), 2048u);
  EXPECT_EQ(bytes(256, 24'586), 80u);  // ten of the columns have a token
  EXPECT_EQ(bytes(256, 20'000), 0u);
}

TEST(HeadRows, CandidatesOfOtherColumnsAreRefused) {
  const std::vector<Range> pieces{{0, 32}, {32, 64}};
  for (const int32_t id : {-1, 0, 31, 60, 64, std::numeric_limits<int32_t>::max()}) {
    HeadRows head(HeadRole::gathers, pieces, 1);
    head.begin(plan_of({2}, 60));
    const Candidate sent[] = {{1, 40}, {0, id}};
    try {
      head.add(std::as_bytes(std::span(sent)), pieces[1]);
      ADD_FAILURE() << id;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::data_loss);
      EXPECT_EQ(e.lost(), Lost::instance);
      EXPECT_THAT(e.what(), HasSubstr("token id " + std::to_string(id)));
    }
  }
}

TEST(Candidates, NeededOnlyWhereTheBestDecide) {
  EXPECT_EQ(candidates_needed({.temperature = 0}, 1000), 1u);
  EXPECT_EQ(candidates_needed({.temperature = 0, .top_k = 50}, 1000), 1u);
  EXPECT_EQ(candidates_needed({.temperature = 1, .top_k = 50, .top_p = 0.5f, .min_p = 0.1f}, 1000), 50u);
  EXPECT_EQ(candidates_needed({.temperature = 1, .top_k = 256}, 1000), 256u);
  EXPECT_EQ(candidates_needed({.temperature = 1, .top_k = 257}, 1000), 0u);
  EXPECT_EQ(candidates_needed({.temperature = 1, .top_k = 50}, 50), 0u);  // all of them
  EXPECT_EQ(candidates_needed({.temperature = 1, .top_p = 0.5f}, 1000), 0u);
  EXPECT_EQ(candidates_needed({.temperature = 0, .repetition_penalty = 1.1f}, 1000), 0u);
  EXPECT_EQ(candidates_needed({.temperature = 0, .frequency_penalty = 1}, 1000), 0u);
  EXPECT_EQ(candidates_needed({.temperature = 0, .presence_penalty = 1}, 1000), 0u);
  EXPECT_EQ(candidates_needed({.temperature = 0, .logit_bias = {{1, 1.f}}}, 1000), 0u);
}

TEST(Candidates, TooFewOrTooManyAreRefused) {
  Sampler sampler(40, 40);
  const std::vector<Candidate> many(41, Candidate{1, 1}), few(2, Candidate{1, 1});
  EXPECT_THROW(sampler.sample(many, {.temperature = 0}, 0), Error);
  EXPECT_THROW(sampler.sample(few, {.temperature = 1, .top_k = 3, .seed = 1}, 0), Error);
  EXPECT_THROW(sampler.sample(few, {.temperature = 1, .seed = 1}, 0), Error);
}

TEST(Candidates, KeysOrderLogitsAndGiveThemBack) {
  const float ascending[] = {-kInf, -3e38f, -1, -1e-40f, 0, 1e-40f, 1, 3e38f};
  for (size_t i = 0; i < std::size(ascending); ++i) {
    EXPECT_EQ(logit_of(key_of(ascending[i], 7)), ascending[i]);
    EXPECT_EQ(id_of(key_of(ascending[i], 7)), 7);
    EXPECT_GT(key_of(ascending[i], 7), key_of(ascending[i], 8));
    if (i == 0) continue;
    EXPECT_GT(key_of(ascending[i], 1 << 30), key_of(ascending[i - 1], 0));
  }
  EXPECT_EQ(key_of(-0.0f, 3), key_of(0.0f, 3));
}

}  // namespace
}  // namespace verbund::engine
