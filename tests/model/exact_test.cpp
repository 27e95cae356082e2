// The promise: the bits of the logits do not depend on how the work is cut (docs/DESIGN.md section 4.1).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "model/family.h"
#include "model/harness.h"

namespace verbund::test {
namespace {

struct Variant {
  const char* name;
  RunSetup setup;
};

model::ParallelConfig ranks(size_t n, size_t stages = 1, std::vector<double> shares = {}, std::vector<size_t> layers = {}) {
  return {n, stages, std::move(shares), std::move(layers)};
}

RunSetup with(model::ParallelConfig parallel) {
  RunSetup s;
  s.parallel = std::move(parallel);
  return s;
}

template <class Change>
RunSetup changed(RunSetup s, Change change) {
  change(s);
  return s;
}

// Those that a model of so many layers can be cut into.
std::vector<Variant> variants(size_t layers) {
  std::vector<Variant> all{
      {"2 ranks", with(ranks(2))},
      {"3 ranks", with(ranks(3))},
      {"4 ranks", with(ranks(4))},
      {"5 ranks", with(ranks(5))},
      {"shares 3:1", with(ranks(2, 1, {3, 1}))},
      {"shares 2:2:1", with(ranks(3, 1, {2, 2, 1}))},
      {"shares 100:1, one rank almost empty", with(ranks(2, 1, {100, 1}))},
      {"chunk 1", changed(RunSetup{}, [](RunSetup& s) { s.chunk = 1; })},
      {"chunk 7", changed(RunSetup{}, [](RunSetup& s) { s.chunk = 7; })},
      {"chunk 33, 2 ranks", changed(with(ranks(2)), [](RunSetup& s) { s.chunk = 33; })},
      {"with five others", changed(RunSetup{}, [](RunSetup& s) { s.companions = 5; })},
      {"with five others, 3 ranks, chunk 3", changed(with(ranks(3)), [](RunSetup& s) { s.companions = 5, s.chunk = 3; })},
      {"other KV blocks", changed(RunSetup{}, [](RunSetup& s) { s.reverse_blocks = true, s.companions = 1; })},
      {"tcp, 3 ranks", changed(with(ranks(3)), [](RunSetup& s) { s.transport = mesh::Transport::tcp; })},
      {"2 threads", changed(RunSetup{}, [](RunSetup& s) { s.threads = 2; })},
      {"3 threads, 2 ranks", changed(with(ranks(2)), [](RunSetup& s) { s.threads = 3; })},
      {"random arrival, 4 ranks, shm", changed(with(ranks(4)), [](RunSetup& s) { s.jitter_seed = 11; })},
      {"random arrival, 3 ranks, tcp",
       changed(with(ranks(3)), [](RunSetup& s) { s.jitter_seed = 12, s.transport = mesh::Transport::tcp; })},
  };
  if (layers >= 2) {
    all.push_back({"2 stages", with(ranks(2, 2))});
    all.push_back({"2 x 2, shares 1:2, uneven layers", with(ranks(4, 2, {1, 2}, {1, layers - 1}))});
  }
  if (layers >= 3) {
    all.push_back({"3 stages", with(ranks(3, 3))});
    all.push_back({"2 stages, uneven layers", with(ranks(2, 2, {}, {2, layers - 2}))});
  }
  return all;
}

class Exact : public testing::TestWithParam<std::string> {};

void expect_same_bits(const std::vector<float>& one, const std::vector<float>& other, const std::string& what) {
  ASSERT_EQ(one.size(), other.size()) << what;
  EXPECT_EQ(std::memcmp(one.data(), other.data(), one.size() * sizeof(float)), 0) << what;
}

TEST_P(Exact, SameBitsForEverySplit) {
  const Reference reference = read_reference(std::string(VERBUND_TEST_DATA) + "/models/" + GetParam() + "/ref.safetensors");
  const std::string path = model_path(GetParam());
  const std::vector<float> one = logits_of(path, reference.tokens, RunSetup{});
  ASSERT_TRUE(std::any_of(one.begin(), one.end(), [](float v) { return v != 0; }));
  const size_t layers = model::read_spec(formats::open_model(path)).layers.size();
  for (const Variant& v : variants(layers)) expect_same_bits(one, logits_of(path, reference.tokens, v.setup), v.name);
  for (const std::string& isa : compute::native_isas()) {
    RunSetup s;
    s.isa = isa;
    expect_same_bits(one, logits_of(path, reference.tokens, s), isa);
    s.parallel = ranks(2);
    s.chunk = 5;
    expect_same_bits(one, logits_of(path, reference.tokens, s), isa + ", 2 ranks, chunk 5");
  }
}

// Different tokens must give different logits: a comparison that cannot fail would show nothing.
TEST(ExactGuard, OtherTokensGiveOtherBits) {
  Reference reference = read_reference(std::string(VERBUND_TEST_DATA) + "/models/llama/ref.safetensors");
  const std::vector<float> one = logits_of(model_path("llama"), reference.tokens, RunSetup{});
  reference.tokens[3] ^= 1;
  const std::vector<float> other = logits_of(model_path("llama"), reference.tokens, RunSetup{});
  const size_t row = reference.vocabulary;
  EXPECT_EQ(std::memcmp(one.data(), other.data(), 3 * row * sizeof(float)), 0);  // before the change: causal
  EXPECT_NE(std::memcmp(one.data() + 3 * row, other.data() + 3 * row, row * sizeof(float)), 0);
}

INSTANTIATE_TEST_SUITE_P(Models, Exact,
                         testing::Values("llama", "llama-bias", "mistral", "smollm", "qwen2", "qwen3", "llama-mlx4", "qwen2-mlx8",
                                         "llama-mlx-mixed", "llama-gguf-k", "llama-gguf-mixed", "qwen2-gguf-dense", "qwen3-gguf-q8_0",
                                         "smollm-gguf-q4_0"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace verbund::test
