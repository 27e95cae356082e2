// How much a step puts into MLX's graph, next to what mlx-lm puts there for the same layers; that it is evaluated once; that
// keys and values are written in place. docs/mlx.md has the table and says how mlx-lm's counts are had.
#ifdef VERBUND_MLX_BUILT
#include <gtest/gtest.h>

#include <numeric>
#include <sstream>

#include "compute/memory_source.h"
#include "mlx/compare.h"
#include "mlx/module_functions.h"

namespace verbund::compute {
namespace {

using test::make_gpu_form;
using test::take_counts;
using testing::random_values;

// mlx-lm 0.32.2 with MLX 0.32.4, Llama, 4-bit weights, one layer, one token behind 64 and 64 tokens behind 64.
constexpr size_t kMlxLmKernels = 27;  // each fused operation as one
constexpr size_t kMlxLmCpuDecode = 122, kMlxLmCpuPrefill = 132;

using Count = std::map<std::string, size_t>;

size_t total(const Count& count) {
  return std::accumulate(count.begin(), count.end(), size_t{0}, [](size_t sum, const auto& entry) { return sum + entry.second; });
}

std::string text(const Count& count) {
  std::ostringstream out;
  for (const auto& [name, n] : count) out << name << " " << n << ", ";
  return out.str() + "in all " + std::to_string(total(count));
}

Count difference(Count more, const Count& less) {
  for (const auto& [name, n] : less) more[name] -= n;
  std::erase_if(more, [](const auto& entry) { return entry.second == 0; });
  return more;
}

// A small Llama of random weights, driven as model/decoder.cpp drives a backend.
class Llama {
 public:
  static constexpr size_t kHidden = 96, kHeads = 6, kKvHeads = 2, kDim = 16, kMlp = 128, kVocabulary = 40, kBlocks = 32;

  // Scales of weights and cache in `type`, f16 or f32.
  Llama(Backend& backend, size_t layers, bool head_norms = false, formats::DType type = formats::DType::f16)
      : b_(backend), layers_(layers), head_norms_(head_norms) {
    const formats::WeightFormat q4{formats::Coding::affine, type, 4, 32, {}};
    const auto load = [&](const char* name, size_t rows, size_t cols, unsigned seed) {
      testing::MemorySource source;
      source.add(name, testing::random_matrix(q4, rows, cols, seed));
      const WeightPart part{name, {0, rows}, {0, cols}};
      return b_.load(source, std::span(&part, 1), 32);
    };
    qkv_ = load("qkv", (kHeads + 2 * kKvHeads) * kDim, kHidden, 1);
    o_ = load("o", kHidden, kHeads * kDim, 2);
    gate_up_ = load("gate_up", 2 * kMlp, kHidden, 3);
    down_ = load("down", kHidden, kMlp, 4);
    head_ = load("head", kVocabulary, kHidden, 5);
    norm_ = b_.load_vector(random_values(kHidden, 6));
    head_norm_ = b_.load_vector(random_values(kDim, 7));
    cache_ = b_.make_kv_cache({layers, kKvHeads, kDim, kBlocks, type == formats::DType::f16 ? KvType::f16 : KvType::f32});
    rope_.pairs = kDim / 2;
    for (size_t p = 0; p < kBlocks * kKvBlock; ++p)
      for (size_t i = 0; i < rope_.pairs; ++i) {
        const double angle = double(p) * std::pow(10000.0, -double(i) / double(rope_.pairs));
        rope_.cos.push_back(float(std::cos(angle))), rope_.sin.push_back(float(std::sin(angle)));
      }
  }

  // Logits of the last row of each segment; nothing is read out if `read` is false.
  std::vector<float> step(const std::vector<Segment>& segments, unsigned seed = 8, bool read = true) {
    const size_t rows = segments.back().first_row + segments.back().rows;
    b_.begin_step();
    Tensor h = b_.from_host(rows, kHidden, random_values(rows * kHidden, seed));
    for (size_t layer = 0; layer < layers_; ++layer) h = run_layer(layer, h, segments);
    std::vector<float> logits(segments.size() * kVocabulary);
    if (read) {
      std::vector<uint32_t> last;
      for (const Segment& s : segments) last.push_back(s.first_row + s.rows - 1);
      b_.to_host(b_.linear(b_.rms_norm(b_.take_rows(h, last), *norm_, 1e-5f), *head_, nullptr), logits);
    }
    h = {};
    b_.end_step();
    return logits;
  }

  uint64_t kv_bytes() const { return cache_->bytes; }

 private:
  Tensor run_layer(size_t layer, const Tensor& h, const std::vector<Segment>& segments) {
    static const std::vector<uint32_t> kv_of_head{0, 0, 0, 1, 1, 1};
    AttentionParams p{};
    p.layer = layer, p.heads = kHeads, p.kv_heads = kKvHeads, p.head_dim = kDim, p.kv_of_head = kv_of_head, p.scale = 0.25f;
    p.rope = &rope_, p.norm_eps = 1e-5f;
    if (head_norms_) p.q_norm = p.k_norm = head_norm_.get();
    const Deadline deadline = Deadline::after(std::chrono::seconds(60));
    const Tensor x = b_.attention(b_.norm_linear(h, *norm_, 1e-5f, *qkv_, nullptr), *cache_, p, segments);
    const Tensor y = b_.add_reduced(h, b_.linear_partial(x, *o_), nullptr, *solo_, deadline);
    return b_.add_reduced(y, b_.norm_mlp(y, *norm_, 1e-5f, *gate_up_, nullptr, Activation::silu, *down_), nullptr, *solo_, deadline);
  }

  Backend& b_;
  const size_t layers_;
  const bool head_norms_;
  RopeTable rope_;
  std::unique_ptr<Weight> qkv_, o_, gate_up_, down_, head_;
  std::unique_ptr<Vector> norm_, head_norm_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<mesh::Mesh> solo_ = mesh::make_solo_mesh();
};

const std::vector<uint32_t> kLong{4, 5, 6, 7, 8, 9}, kScattered{20, 11, 15, 12}, kOther{30, 13, 16, 14}, kThird{17, 25, 19, 2};

// What one layer of a step adds. What the cache holds does not matter to it.
MlxCounts per_layer(Backend& backend, const std::vector<Segment>& step, bool norms = false) {
  const auto counted = [&](size_t layers) {
    Llama model(backend, layers, norms);
    take_counts(backend);
    model.step(step);
    MlxCounts counts = take_counts(backend);
    EXPECT_EQ(counts.evaluations, 1u);
    EXPECT_EQ(counts.host_sums, 0u);
    return counts;
  };
  MlxCounts one = counted(1), two = counted(2);
  one.nodes = difference(two.nodes, one.nodes);
  one.kernels = difference(two.kernels, one.kernels);
  return one;
}

const std::vector<Segment> kDecode{{0, 1, 64, kLong}}, kPrefill{{0, 64, 64, kLong}};

TEST(MlxGraph, LayerOnAGpuIsNotLargerThanThatOfMlxLm) {
  const auto backend = make_gpu_form();
  const Count decode = per_layer(*backend, kDecode).kernels, prefill = per_layer(*backend, kPrefill).kernels;
  EXPECT_LE(total(decode), kMlxLmKernels) << text(decode);
  EXPECT_LE(total(prefill), kMlxLmKernels) << text(prefill);
  const Count normed = per_layer(*backend, kDecode, true).kernels;  // as Qwen3: mlx-lm has two norms more
  EXPECT_LE(total(normed), kMlxLmKernels + 2) << text(normed);
  for (const Count* count : {&decode, &prefill, &normed}) {
    EXPECT_EQ(count->count("Scatter"), 0u) << text(*count);
    EXPECT_EQ(count->count("Gather"), 0u) << text(*count);  // a sequence that is alone is read where it lies
    EXPECT_EQ(count->at("SliceUpdate"), 2u) << text(*count);
    EXPECT_EQ(count->at("QuantizedMatmul"), 4u) << text(*count);
    EXPECT_EQ(count->at("ScaledDotProductAttention"), 1u) << text(*count);
  }
  RecordProperty("decode", text(decode));
  RecordProperty("prefill", text(prefill));
}

TEST(MlxGraph, LayerOnTheCpuIsNotLargerThanThatOfMlxLm) {
  const auto backend = make_mlx_backend();
  const Count decode = per_layer(*backend, kDecode).nodes, prefill = per_layer(*backend, kPrefill).nodes;
  EXPECT_LE(total(decode), kMlxLmCpuDecode) << text(decode);
  EXPECT_LE(total(prefill), kMlxLmCpuPrefill) << text(prefill);
  RecordProperty("decode", text(decode));
  RecordProperty("prefill", text(prefill));
}

// Scattered sequences are gathered together: a further one adds nothing to the graph.
TEST(MlxGraph, DecodingMoreSequencesDoesNotGrowTheGraph) {
  const auto backend = make_gpu_form();
  const Count two = per_layer(*backend, {{0, 1, 70, kScattered}, {1, 1, 80, kOther}}).kernels;
  const Count three = per_layer(*backend, {{0, 1, 70, kScattered}, {1, 1, 80, kOther}, {2, 1, 90, kThird}}).kernels;
  EXPECT_EQ(text(two), text(three));
  EXPECT_LE(total(three), kMlxLmKernels + 8) << text(three);
  RecordProperty("sequences", text(three));
}

// ... up to 16 MiB of keys at a time: sequences beyond that are gathered in further batches.
TEST(MlxGraph, BatchesAreBounded) {
  const auto backend = make_mlx_backend();
  const auto cache = backend->make_kv_cache({1, 8, 128, 128, KvType::f16});  // 128 KiB a block of keys in f32
  const std::vector<uint32_t> kv_of_head{0, 1, 2, 3, 4, 5, 6, 7};
  AttentionParams p{};
  p.heads = p.kv_heads = 8, p.head_dim = 128, p.kv_of_head = kv_of_head, p.scale = 0.1f, p.rope_mode = RopeMode::none;
  std::vector<std::vector<uint32_t>> blocks(6, std::vector<uint32_t>(31));  // at most 4 of them at a time
  std::vector<Segment> segments;
  for (uint32_t s = 0; s < 6; ++s) {
    for (uint32_t i = 0; i < 31; ++i) blocks[s][i] = (7 * i + s) % 128;
    segments.push_back({s, 1, 31 * 32 - 1, blocks[s]});
  }
  std::vector<float> out(6 * 8 * 128);
  take_counts(*backend);
  backend->begin_step();
  backend->to_host(backend->attention(backend->from_host(6, 24 * 128, random_values(6 * 24 * 128, 1)), *cache, p, segments), out);
  backend->end_step();
  const MlxCounts counts = take_counts(*backend);
  EXPECT_EQ(counts.kernels.at("ScaledDotProductAttention"), 2u) << text(counts.kernels);
}

// The form of a GPU computes what that of the CPU does: with f32 scales and cache the same up to rounding, with f16 as far
// as sums in f16 let it (MLX's CPU kernels, unlike those of a GPU, add in the type of their inputs).
TEST(MlxGraph, FormOfAGpuAgreesWithThatOfTheCpu) {
  const auto gpu = make_gpu_form(), cpu = make_mlx_backend();
  const std::vector<std::vector<Segment>> steps{{{0, 34, 0, kLong}},
                                                {{0, 1, 34, kLong}},
                                                {{0, 36, 0, kScattered}, {36, 33, 0, kOther}, {69, 3, 35, kLong}},
                                                {{0, 1, 38, kLong}, {1, 1, 36, kScattered}, {2, 1, 33, kOther}},
                                                {{0, 1, 37, kScattered}, {1, 2, 39, kLong}, {3, 1, 34, kOther}}};
  for (const formats::DType type : {formats::DType::f32, formats::DType::f16})
    for (const bool norms : {false, true}) {
      Llama a(*gpu, 2, norms, type), b(*cpu, 2, norms, type);
      for (size_t i = 0; i < steps.size(); ++i) {
        SCOPED_TRACE("norms " + std::to_string(norms) + ", step " + std::to_string(i));
        const auto got = a.step(steps[i]), values = b.step(steps[i]);
        const std::vector<double> want(values.begin(), values.end());
        if (type == formats::DType::f32)
          test::expect_close(got, want, 1e-5);
        else
          EXPECT_GT(test::cosine(got, want), 0.999);
      }
    }
}

TEST(MlxGraph, StepThatNobodyReadsIsEvaluatedOnceToo) {
  const auto backend = make_mlx_backend();
  Llama model(*backend, 3);
  take_counts(*backend);
  model.step(kPrefill, 8, /*read=*/false);
  EXPECT_EQ(take_counts(*backend).evaluations, 1u);
}

// 32 MiB of keys and 32 MiB of values: if a step copied either, the peak would tell.
TEST(MlxGraph, KeysAndValuesAreWrittenInPlace) {
  for (const bool scattered : {false, true}) {
    const auto backend = make_mlx_backend();
    const size_t blocks = 2048;
    const auto cache = backend->make_kv_cache({1, 4, 64, blocks, KvType::f16});
    ASSERT_EQ(cache->bytes, uint64_t{64} << 20);
    const std::vector<uint32_t> kv_of_head{0, 1, 2, 3};
    const std::vector<uint32_t> ids = scattered ? std::vector<uint32_t>{9, 7} : std::vector<uint32_t>{7, 8};
    AttentionParams p{};
    p.heads = p.kv_heads = 4, p.head_dim = 64, p.kv_of_head = kv_of_head, p.scale = 0.1f, p.rope_mode = RopeMode::none;
    uint64_t before = 0;
    std::vector<float> out;
    for (uint32_t position = 0, rows = 30; position < 40; position += rows, rows = 1) {
      backend->begin_step();
      const Segment segment{0, rows, position, ids};
      const Tensor x = backend->from_host(rows, 12 * 64, random_values(rows * 12 * 64, position));
      out.resize(rows * 4 * 64);
      backend->to_host(backend->attention(x, *cache, p, std::span(&segment, 1)), out);
      backend->end_step();
      const MlxCounts counts = take_counts(*backend);
      if (position > 0) {
        EXPECT_LT(counts.peak_bytes, cache->bytes + (8u << 20)) << "position " << position;
        EXPECT_LT(counts.active_bytes, (before > 0 ? before : counts.active_bytes) + (64u << 10)) << "position " << position;
        before = counts.active_bytes;
      }
    }
  }
}

}  // namespace
}  // namespace verbund::compute
#endif
