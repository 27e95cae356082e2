// Loading: stacked parts, mixed formats, slices, and the memory it takes.
#include "compute/backend_fixture.h"
#include "compute/native/backend.h"

namespace verbund::compute::testing {
namespace {

std::vector<float> stacked(const std::vector<std::vector<float>>& parts, size_t rows) {
  std::vector<float> y;
  for (size_t r = 0; r < rows; ++r)
    for (const auto& part : parts)
      y.insert(y.end(), part.begin() + r * (part.size() / rows), part.begin() + (r + 1) * (part.size() / rows));
  return y;
}

// q, k and v are one weight: rows of each as if loaded alone, whatever their sizes and formats are.
TEST(Load, StackedPartsAreAsIfAlone) {
  MemorySource source;
  source.add("q", random_matrix(affine(4, 32), 100, 256, 1));
  source.add("k", random_matrix(affine(4, 32), 30, 256, 2));
  source.add("v", random_matrix(symmetric(6, 16, 32, DType::f32), 30, 256, 3));
  source.add("g", random_matrix(dense(DType::bf16), 9, 256, 4));
  const std::vector<WeightPart> parts{
      {"q", {7, 90}, {64, 256}}, {"k", {0, 30}, {64, 256}}, {"q", {5, 5}, {64, 256}}, {"v", {3, 20}, {64, 256}}, {"g", {0, 9}, {64, 256}}};
  const auto x = random_values(3 * 192, 5);
  for (const std::string& isa : native_isas())
    for (unsigned threads : {1u, 3u}) {
      const auto backend = make_native_backend(isa, threads);
      const Tensor input = backend->from_host(3, 192, x);
      std::vector<std::vector<float>> alone;
      for (const WeightPart& part : parts)
        if (!part.rows.empty()) alone.push_back(host(*backend, backend->linear(input, *backend->load(source, {&part, 1}, 0), nullptr)));
      const auto w = backend->load(source, parts, 0);
      EXPECT_EQ(w->rows, 83u + 30 + 17 + 9);
      EXPECT_EQ(w->bytes, backend->weight_bytes(source, parts));
      EXPECT_TRUE(same_bits(host(*backend, backend->linear(input, *w, nullptr)), stacked(alone, 3))) << isa;
    }
}

// Rows so wide that a band holds less than sixteen of them are read in pieces.
TEST(Load, VeryWideRowsAreReadInPieces) {
  for (const WeightFormat& format : {dense(DType::f32), affine(8, 128, DType::f32)}) {
    const size_t cols = 131072 / (format.bits ? 1 : 4);
    MemorySource source;
    source.add("w", random_matrix(format, 20, cols, 1));
    const auto backend = make_native_backend("auto", 2);
    const WeightPart part{"w", {0, 20}, {0, cols}};
    const auto w = backend->load(source, {&part, 1}, 0);
    const std::vector<int32_t> ids{0, 19};
    const auto y = host(*backend, backend->embed(*w, ids, 0));
    std::vector<float> row(cols);
    for (size_t i = 0; i < 2; ++i) {
      formats::dequantise_row(source.matrix("w"), static_cast<size_t>(ids[i]), row.data());
      EXPECT_TRUE(same_bits(slice(y, i * cols, cols), row));
    }
  }
}

TEST(Load, WrongRangesAreErrors) {
  MemorySource source;
  source.add("w", random_matrix(affine(4, 64), 8, 256, 1));
  source.add("narrow", random_matrix(affine(4, 64), 8, 128, 1));
  const auto backend = make_native_backend("auto", 1);
  const auto code = [&](const std::vector<WeightPart>& parts, size_t unit) {
    try {
      backend->load(source, parts, unit);
    } catch (const Error& e) { return std::string(to_string(e.code())); }
    return std::string("loaded");
  };
  EXPECT_EQ(code({{"w", {0, 8}, {64, 256}}}, 64), "loaded");
  EXPECT_EQ(code({{"absent", {0, 8}, {0, 256}}}, 0), "not_found");
  EXPECT_EQ(code({{"w", {0, 9}, {0, 256}}}, 0), "invalid_argument");
  EXPECT_EQ(code({{"w", {0, 8}, {0, 288}}}, 0), "invalid_argument");
  EXPECT_EQ(code({{"w", {0, 8}, {0, 96}}}, 0), "invalid_argument");      // inside a group
  EXPECT_EQ(code({{"w", {0, 8}, {0, 256}}}, 96), "invalid_argument");    // units cut groups
  EXPECT_EQ(code({{"w", {0, 8}, {64, 256}}}, 128), "invalid_argument");  // begins inside a unit
  EXPECT_EQ(code({{"w", {0, 8}, {0, 256}}, {"narrow", {0, 8}, {0, 128}}}, 0), "invalid_argument");
}

// What steps hold stays below what was announced, also when their shapes change.
TEST(Memory, StepsStayBelowTheirEstimate) {
  MemorySource source;
  const size_t hidden = 576, mlp = 1536, qkv = 960;
  source.add("qkv", random_matrix(affine(4, 32), qkv, hidden, 1));
  source.add("o", random_matrix(affine(4, 32), hidden, hidden, 2));
  source.add("gate_up", random_matrix(affine(4, 32), 2 * mlp, hidden, 3));
  source.add("down", random_matrix(affine(4, 32), hidden, mlp, 4));
  native::NativeBackend backend(native::choose_isa("auto"), 2);
  const auto load = [&](const char* name, size_t rows, size_t cols, size_t unit) {
    const WeightPart part{name, {0, rows}, {0, cols}};
    return backend.load(source, {&part, 1}, unit);
  };
  const auto w_qkv = load("qkv", qkv, hidden, 0), w_o = load("o", hidden, hidden, 192), w_gate_up = load("gate_up", 2 * mlp, hidden, 0),
             w_down = load("down", hidden, mlp, 192);
  const auto norm = backend.load_vector(random_values(hidden, 5));
  const auto cache = backend.make_kv_cache({1, 3, 64, 20, KvType::f16});
  const auto solo = mesh::make_solo_mesh();
  const std::vector<uint32_t> kv_of_head{0, 0, 0, 1, 1, 1, 2, 2, 2};
  std::vector<uint32_t> blocks(20);
  for (uint32_t i = 0; i < 20; ++i) blocks[i] = i;
  AttentionParams params{};
  params.heads = 9;
  params.kv_heads = 3;
  params.head_dim = 64;
  params.kv_of_head = kv_of_head;
  params.scale = 0.125f;
  params.rope_mode = RopeMode::none;
  for (const uint32_t rows : {512u, 1u, 100u, 512u, 7u, 256u}) {
    backend.begin_step();
    Tensor h = backend.from_host(rows, hidden, random_values(rows * hidden, 6));
    const Segment segment{0, rows, 0, blocks};
    for (int layer = 0; layer < 2; ++layer) {
      Tensor attended = backend.attention(backend.norm_linear(h, *norm, 1e-5f, *w_qkv, nullptr), *cache, params, {&segment, 1});
      h = backend.add_reduced(h, backend.linear_partial(attended, *w_o), nullptr, *solo, soon());
      const Partial mlp_sums = backend.norm_mlp(h, *norm, 1e-5f, *w_gate_up, nullptr, Activation::silu, *w_down);
      h = backend.add_reduced(h, mlp_sums, nullptr, *solo, soon());
    }
    backend.end_step();
  }
  const uint64_t announced = backend.step_bytes(512, 3 * hidden + 3 * mlp + 2 * hidden, 2 * mlp);
  EXPECT_LE(backend.step_bytes_peak(), announced);
  // And the estimate is no fantasy, though a step this large keeps no gates and ups, and the scratch of threads is not in the peak.
  EXPECT_GE(backend.step_bytes_peak(), announced / 10);
}

}  // namespace
}  // namespace verbund::compute::testing
