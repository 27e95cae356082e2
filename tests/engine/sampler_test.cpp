#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/philox.h"

namespace verbund::engine {
namespace {

using testing::HasSubstr;
using Row = std::vector<float>;

Row random_row(size_t size, uint32_t seed, float spread = 3) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  Row row(size);
  for (float& l : row) l = normal(random);
  return row;
}

// models.md section 6 once more, slow and with libm.
std::vector<std::pair<int32_t, double>> reference(const Row& logits, size_t tokens, const SamplingParams& p, const TokenHistory& history) {
  std::vector<float> l(logits.begin(), logits.begin() + static_cast<ptrdiff_t>(tokens));
  for (auto [id, bias] : p.logit_bias) l[id] += bias;
  for (auto [id, count] : history.entries()) {
    l[id] = l[id] < 0 ? l[id] * p.repetition_penalty : l[id] / p.repetition_penalty;
    l[id] -= p.frequency_penalty * static_cast<float>(count);
    l[id] -= count > 0 ? p.presence_penalty : 0;
  }
  std::vector<int32_t> order(tokens);
  for (size_t i = 0; i < tokens; ++i) order[i] = static_cast<int32_t>(i);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return l[a] > l[b]; });
  if (p.greedy()) return {{order[0], 1.0}};
  if (p.top_k > 0 && p.top_k < static_cast<int64_t>(tokens)) order.resize(p.top_k);
  std::vector<double> prob;
  double sum = 0;
  for (int32_t id : order) sum += prob.emplace_back(std::exp((static_cast<double>(l[id]) - l[order[0]]) / p.temperature));
  for (double& q : prob) q /= sum;
  size_t keep = order.size();
  if (p.top_p < 1) {
    double cumulative = 0;
    for (keep = 0; keep < order.size();)
      if ((cumulative += prob[keep++]) >= p.top_p) break;
  }
  std::vector<std::pair<int32_t, double>> kept;
  for (size_t i = 0; i < keep; ++i)
    if (prob[i] >= p.min_p * prob[0]) kept.emplace_back(order[i], prob[i]);
  std::sort(kept.begin(), kept.end());
  return kept;
}

int32_t reference_draw(const std::vector<std::pair<int32_t, double>>& kept, double u) {
  double sum = 0, cumulative = 0;
  for (auto [id, p] : kept) sum += p;
  for (auto [id, p] : kept)
    if ((cumulative += p) > u * sum) return id;
  return -1;
}

TEST(Sampler, GreedyTakesTheLowestOfTies) {
  Sampler sampler(40, 40);
  Row row(40, 1);
  row[37] = row[11] = row[23] = 5;
  EXPECT_EQ(sampler.sample(row, {.temperature = 0}, {}, 0), 11);
  row.assign(40, -0.0f);
  row[3] = 0.0f;
  EXPECT_EQ(sampler.sample(row, {.temperature = 0}, {}, 0), 0);  // -0 equals 0
  row.assign(40, -1e30f);
  row[39] = -1;
  EXPECT_EQ(sampler.sample(row, {.temperature = 0}, {}, 0), 39);
}

TEST(Sampler, PaddingRowsAndForbiddenTokensNeverCome) {
  Sampler sampler(40, 35);
  Row row(40, 0);
  row[36] = 100;
  row[34] = 50;
  EXPECT_EQ(sampler.sample(row, {.temperature = 0}, {}, 0), 34);
  row[36] = NAN;  // not a token, not looked at
  const uint32_t only_two[] = {1u << 5 | 1u << 9, 0};
  EXPECT_EQ(sampler.sample(row, {.temperature = 0}, {}, 0, only_two), 5);
  std::set<int32_t> seen;
  for (uint64_t position = 0; position < 200; ++position)
    seen.insert(sampler.sample(row, {.temperature = 5, .seed = 1}, {}, position, only_two));
  EXPECT_EQ(seen, (std::set<int32_t>{5, 9}));
  // A bias does not bring back what the grammar forbids.
  EXPECT_EQ(sampler.sample(row, {.temperature = 0, .logit_bias = {{20, 100.f}}}, {}, 0, only_two), 5);
  // Fewer allowed than top_k.
  for (uint64_t position = 0; position < 50; ++position) {
    const int32_t id = sampler.sample(row, {.temperature = 1, .top_k = 10, .seed = 1}, {}, position, only_two);
    EXPECT_TRUE(id == 5 || id == 9);
  }
}

TEST(Sampler, EdgesOfParametersAreDefined) {
  Sampler sampler(100, 100);
  const Row row = random_row(100, 1);
  const int32_t best = sampler.sample(row, {.temperature = 0}, {}, 0);
  const auto at = [&](SamplingParams p) {
    p.seed = 9;
    return sampler.sample(row, p, {}, 3);
  };
  EXPECT_EQ(at({.top_k = 1, .top_p = 0.8f}), best);
  EXPECT_EQ(at({.top_p = 0}), best);
  EXPECT_EQ(at({.min_p = 1}), best);
  EXPECT_EQ(at({.temperature = 1e-40f}), best);
  EXPECT_EQ(at({.temperature = 1.5f, .min_p = 0}), at({.temperature = 1.5f}));
  EXPECT_EQ(at({.temperature = 1.5f, .top_k = 100}), at({.temperature = 1.5f}));
  EXPECT_EQ(at({.temperature = 1.5f, .top_k = 10'000'000}), at({.temperature = 1.5f}));
  const int32_t other = (best + 1) % 100;
  EXPECT_EQ(at({.logit_bias = {{other, 100.f}}}), other);
  for (uint64_t position = 0; position < 200; ++position)
    EXPECT_NE(sampler.sample(row, {.temperature = 1, .logit_bias = {{best, -100.f}}, .seed = 1}, {}, position), best);
}

TEST(Sampler, PenaltiesAsDefined) {
  Sampler sampler(4, 4);
  TokenHistory history;
  history.add_prompt(std::vector<int32_t>{0, 0, 3});
  history.add_output(1);
  history.add_output(1);
  const auto greedy = [&](Row row, SamplingParams p) {
    p.temperature = 0;
    return sampler.sample(row, p, history, 0);
  };
  // Repetition: once per distinct token of prompt and output; divides above 0, multiplies below.
  EXPECT_EQ(greedy({4, 0, 2.1f, 0}, {.repetition_penalty = 2}), 2);  // 4/2 once, not twice
  EXPECT_EQ(greedy({4, 0, 1.9f, 0}, {.repetition_penalty = 2}), 0);
  EXPECT_EQ(greedy({-1, -9, -1.9f, -9}, {.repetition_penalty = 2}), 2);  // -1*2
  EXPECT_EQ(greedy({-1, -9, -2.1f, -9}, {.repetition_penalty = 2}), 0);
  // Frequency and presence: output only.
  EXPECT_EQ(greedy({9, 0, 0, 0}, {.frequency_penalty = 5, .presence_penalty = 5}), 0);
  EXPECT_EQ(greedy({0, 4, 2.1f, 0}, {.frequency_penalty = 1}), 2);  // 4 - 2*1
  EXPECT_EQ(greedy({0, 4, 1.9f, 0}, {.frequency_penalty = 1}), 1);
  EXPECT_EQ(greedy({0, 4, 2.9f, 0}, {.presence_penalty = 1}), 1);  // 4 - 1
  EXPECT_EQ(greedy({0, 4, 3.1f, 0}, {.presence_penalty = 1}), 2);
  // Bias comes before the repetition penalty: (4 + 4) / 2.
  EXPECT_EQ(greedy({4, 0, 4.1f, 0}, {.repetition_penalty = 2, .logit_bias = {{0, 4.f}}}), 2);
  // Sizes that leave f32 give a defined result.
  EXPECT_EQ(greedy({3e38f, 1, 2, 0}, {.repetition_penalty = 1e-30f, .frequency_penalty = 3e38f, .logit_bias = {{0, 3e38f}}}), 0);
  SamplingParams huge{.temperature = 1, .repetition_penalty = 1e-30f, .frequency_penalty = -3e38f, .presence_penalty = -3e38f, .seed = 1};
  EXPECT_EQ(sampler.sample(Row{1, 3e38f, 0, 0}, huge, history, 0), 1);
}

TEST(Sampler, AgreesWithTheSlowReference) {
  std::mt19937 random(5);
  constexpr size_t kTokens = 300;
  Sampler sampler(kTokens + 20, kTokens);
  const auto pick = [&](auto... values) {
    const std::common_type_t<decltype(values)...> all[] = {values...};
    return all[random() % sizeof...(values)];
  };
  std::set<size_t> kept_counts;
  for (uint32_t round = 0; round < 4000; ++round) {
    Row row = random_row(kTokens + 20, round, pick(0.5f, 3.f, 10.f));
    if (round % 5 == 0)
      for (float& l : row) l = std::round(l);  // many ties
    SamplingParams p{.temperature = pick(0.f, 0.3f, 1.f, 2.f),
                     .top_k = pick(0, 1, 7, 50, 299),
                     .top_p = pick(1.f, 0.1f, 0.9f, 0.999f),
                     .min_p = pick(0.f, 0.05f, 0.5f),
                     .seed = round};
    TokenHistory history;
    if (round % 3 == 0) {
      p.repetition_penalty = 1.3f, p.frequency_penalty = 0.4f, p.presence_penalty = -0.2f, p.logit_bias = {{3, 4.f}, {70, -100.f}};
      for (int i = 0; i < 30; ++i) history.add_output(static_cast<int32_t>(random() % kTokens));
      history.add_prompt(std::vector<int32_t>{1, 2, 3, 200});
    }
    const auto kept = reference(row, kTokens, p, history);
    kept_counts.insert(kept.size());
    for (uint64_t position = 0; position < 3; ++position) {
      const double u = uniform(round, position, 0, Purpose::sample);
      ASSERT_EQ(sampler.sample(row, p, history, position), reference_draw(kept, u)) << "round " << round;
    }
  }
  EXPECT_GT(kept_counts.size(), 50u);
}

TEST(Sampler, DrawsFollowTheDistribution) {
  Sampler sampler(3, 3);
  const Row row{std::log(1.f), std::log(2.f), std::log(7.f)};
  int counts[3] = {};
  for (uint64_t position = 0; position < 20000; ++position) ++counts[sampler.sample(row, {.temperature = 1, .seed = 77}, {}, position)];
  EXPECT_NEAR(counts[0], 2000, 180);  // about four standard deviations
  EXPECT_NEAR(counts[1], 4000, 230);
  EXPECT_NEAR(counts[2], 14000, 260);
}

TEST(Sampler, DependsOnSeedPositionAndChoiceOnly) {
  Sampler one(1000, 1000), two(1000, 1000);
  const Row row = random_row(1000, 4), other = random_row(1000, 5);
  const SamplingParams p{.temperature = 1, .seed = 123};
  std::vector<int32_t> first;
  for (uint64_t i = 0; i < 50; ++i) first.push_back(one.sample(row, p, {}, i));
  for (uint64_t i = 50; i > 0; --i) {  // other order, other requests in between
    two.sample(other, {.temperature = 2, .top_k = 5, .top_p = 0.5f, .seed = 5}, {}, i);
    EXPECT_EQ(two.sample(row, p, {}, i - 1), first[i - 1]);
  }
  SamplingParams choice = p, seed = p;
  choice.choice = 1;
  seed.seed = 124;
  int same_choice = 0, same_seed = 0;
  for (uint64_t i = 0; i < 50; ++i) {
    same_choice += one.sample(row, choice, {}, i) == first[i];
    same_seed += one.sample(row, seed, {}, i) == first[i];
  }
  EXPECT_LT(same_choice, 15);
  EXPECT_LT(same_seed, 15);
}

TEST(Sampler, ScratchIsAllocatedOnce) {
  constexpr size_t kTokens = 5000;
  Sampler sampler(kTokens, kTokens);
  const uint64_t before = sampler.bytes();
  EXPECT_EQ(before, kTokens * (4 + 4 + 8 + 8));
  const Row row = random_row(kTokens, 2);
  for (int64_t k : {0, 1, 40, 2400, 4999})
    for (float p : {1.f, 0.5f, 0.99999f}) sampler.sample(row, {.temperature = 1, .top_k = k, .top_p = p, .min_p = 0.01f, .seed = 1}, {}, 1);
  sampler.logprobs(row, 3, 4000);
  EXPECT_EQ(sampler.bytes(), before);
}

TEST(Sampler, ErrorsSayWhat) {
  Sampler sampler(64, 64);
  Row row(64, 0);
  const auto error = [&](const SamplingParams& p, std::span<const uint32_t> mask = {}) {
    try {
      sampler.sample(row, p, {}, 17, mask);
    } catch (const Error& e) { return std::string(e.what()); }
    return std::string("none");
  };
  const uint32_t nothing[] = {0, 0}, short_mask[] = {1};
  EXPECT_THAT(error({.temperature = 0}, nothing), HasSubstr("no token is allowed at position 17"));
  EXPECT_THAT(error({.temperature = 0}, short_mask), HasSubstr("a mask of 32 tokens for 64"));
  EXPECT_THAT(error({.temperature = 1}), HasSubstr("seed is not set"));
  row[5] = NAN;
  EXPECT_THAT(error({.temperature = 0}), HasSubstr("a logit of nan for token id 5"));
  row[5] = INFINITY;
  EXPECT_THAT(error({.temperature = 0}), HasSubstr("a logit of inf for token id 5"));
  row[5] = -INFINITY;
  EXPECT_EQ(error({.temperature = 0}), "none");
  row.resize(63);
  EXPECT_THAT(error({.temperature = 0}), HasSubstr("a row of 63 logits for a vocabulary of 64"));
}

TEST(Sampler, LogprobsOfTheRawLogits) {
  Sampler sampler(10, 8);
  Row row = random_row(10, 8);
  row[2] = row[6] = 9;  // a tie on top
  row[9] = 100;         // padding
  double sum = 0;
  for (int i = 0; i < 8; ++i) sum += std::exp(static_cast<double>(row[i]));
  const Logprobs result = sampler.logprobs(row, 4, 3);
  EXPECT_NEAR(result.chosen, row[4] - std::log(sum), 1e-5);
  ASSERT_EQ(result.top.size(), 3u);
  EXPECT_EQ(result.top[0].id, 2);
  EXPECT_EQ(result.top[1].id, 6);
  EXPECT_NEAR(result.top[0].logprob, 9 - std::log(sum), 1e-5);
  EXPECT_GE(result.top[1].logprob, result.top[2].logprob);
  // Top 1 equals the chosen float when greedy.
  EXPECT_EQ(sampler.logprobs(row, 2, 1).chosen, sampler.logprobs(row, 2, 1).top[0].logprob);
  EXPECT_EQ(sampler.logprobs(row, 2, 100).top.size(), 8u);
  EXPECT_TRUE(sampler.logprobs(row, 2, 0).top.empty());
  EXPECT_THROW(sampler.logprobs(row, 8, 0), Error);
}

}  // namespace
}  // namespace verbund::engine
