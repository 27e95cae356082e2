// Every fixture against the logits that transformers computed from the same weights (tests/data/models/manifest.json).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "model/harness.h"

namespace verbund::test {
namespace {

nlohmann::json manifest() { return nlohmann::json::parse(std::ifstream(std::string(VERBUND_TEST_DATA) + "/models/manifest.json")); }

std::vector<std::string> case_names() {
  const nlohmann::json all = manifest();
  std::vector<std::string> names;
  for (const auto& c : all.at("cases")) names.push_back(c.at("name"));
  return names;
}

size_t argmax(std::span<const float> row) { return static_cast<size_t>(std::max_element(row.begin(), row.end()) - row.begin()); }

double cosine(std::span<const float> a, std::span<const float> b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) ab += double(a[i]) * b[i], aa += double(a[i]) * a[i], bb += double(b[i]) * b[i];
  return ab / std::sqrt(aa * bb);
}

double deviation(std::span<const float> v) {
  const double mean = std::accumulate(v.begin(), v.end(), 0.0) / static_cast<double>(v.size());
  double sum = 0;
  for (float x : v) sum += (x - mean) * (x - mean);
  return std::sqrt(sum / static_cast<double>(v.size()));
}

class Parity : public testing::TestWithParam<std::string> {};

TEST_P(Parity, LogitsEqualTheReference) {
  const nlohmann::json all = manifest();
  nlohmann::json c;
  for (const auto& candidate : all.at("cases"))
    if (candidate.at("name") == GetParam()) c = candidate;
  const auto& tolerance = c.at("tolerance");
  const Reference reference = read_reference(std::string(VERBUND_TEST_DATA) + "/models/" + c.at("reference").get<std::string>());
  RunSetup setup;
  setup.kv_type = compute::KvType::f32;
  const std::vector<float> logits = logits_of(model_path(GetParam()), reference.tokens, setup);
  ASSERT_EQ(logits.size(), reference.logits.size());

  const double std_dev = deviation(reference.logits);
  float largest = 0, difference = 0;
  double worst_cosine = 1;
  size_t agree = 0;
  const size_t positions = reference.tokens.size();
  for (size_t t = 0; t < positions; ++t) {
    const std::span<const float> expected(reference.logits.data() + t * reference.vocabulary, reference.vocabulary);
    const std::span<const float> got(logits.data() + t * reference.vocabulary, reference.vocabulary);
    for (size_t i = 0; i < expected.size(); ++i) {
      largest = std::max(largest, std::abs(expected[i]));
      difference = std::max(difference, std::abs(expected[i] - got[i]));
    }
    worst_cosine = std::min(worst_cosine, cosine(expected, got));
    // A near-tie may go either way: what counts is how much worse our choice is in the reference.
    const double gap = expected[argmax(expected)] - expected[argmax(got)];
    agree += gap <= tolerance.at("near_tie_margin_over_std").get<double>() * std_dev;
  }
  RecordProperty("worst_cosine", std::to_string(worst_cosine));
  std::printf("  %-20s max |diff| %.2e of %.1f, worst cosine %.6f, same top-1 %zu of %zu\n", GetParam().c_str(), difference, largest,
              worst_cosine, agree, positions);
  if (tolerance.contains("max_abs_diff_over_max_abs_logit")) {
    EXPECT_LE(difference, tolerance.at("max_abs_diff_over_max_abs_logit").get<double>() * largest);
  }
  if (tolerance.contains("min_cosine")) { EXPECT_GE(worst_cosine, tolerance.at("min_cosine").get<double>()); }
  EXPECT_GE(static_cast<double>(agree), tolerance.at("same_top1").get<double>() * static_cast<double>(positions));
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Parity, testing::ValuesIn(case_names()), [](const auto& info) {
  std::string name = info.param;
  std::replace_if(
      name.begin(), name.end(), [](char ch) { return !std::isalnum(static_cast<unsigned char>(ch)); }, '_');
  return name;
});

}  // namespace
}  // namespace verbund::test
