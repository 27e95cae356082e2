// From files into the layout of the kernels: every code and scale where packed.h says it is, by whichever way it came.
#include <cstring>

#include "compute/backend_fixture.h"
#include "compute/native/backend.h"
#include "support/random_gguf.h"

namespace verbund::compute::testing {
namespace {

using native::PackedWeight;
using native::Piece;

// The same tensors, with the way through blocks left out: what files without blocks go through.
class Canonical : public formats::TensorSource {
 public:
  explicit Canonical(const formats::TensorSource& source) : source_(source) {}
  std::span<const formats::TensorInfo> tensors() const override { return source_.tensors(); }
  const formats::TensorInfo* find(std::string_view name) const override { return source_.find(name); }
  void read(std::string_view name, Range rows, Range cols, WeightMatrix& into) const override { source_.read(name, rows, cols, into); }
  std::string path() const override { return source_.path(); }

 private:
  const formats::TensorSource& source_;
};

struct Loaded {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Weight> weight;
  const PackedWeight& packed() const { return native::packed(*weight); }
};

Loaded load(const formats::TensorSource& source, std::span<const WeightPart> parts, unsigned threads = 1) {
  Loaded loaded{make_native_backend("auto", threads), nullptr};
  loaded.weight = loaded.backend->load(source, parts, 0);
  return loaded;
}

bool same_memory(const PackedWeight& a, const PackedWeight& b) {
  return a.bytes == b.bytes && std::memcmp(a.memory.get(), b.memory.get(), a.bytes) == 0;
}

// Lanes past the last row hold zeros, as codes or as scales.
void expect_held(const Piece& piece, const WeightMatrix& m) {
  const size_t element = formats::size_of(m.format.dtype);
  std::vector<float> row(m.cols), expected(m.cols);
  for (size_t r = 0; r < piece.blocks() * native::kBlockRows; ++r) {
    const std::byte* block = piece.block(r / native::kBlockRows);
    native::unpack_row(piece, r, row.data());
    if (r >= piece.rows) {
      EXPECT_TRUE(std::all_of(row.begin(), row.end(), [](float v) { return v == 0; }));
      continue;
    }
    formats::dequantise_row(m, r, expected.data());
    if (m.format.coding == Coding::mxfp4)
      ASSERT_EQ(row, expected) << "row " << r;  // held as integers: both zeros of E2M1 are one
    else
      ASSERT_TRUE(same_bits(row, expected)) << "row " << r;
    if (m.format.coding != Coding::affine) continue;
    const size_t groups = m.format.group_count(m.cols);
    for (size_t k = 0; k < m.cols; ++k)
      ASSERT_EQ(native::held_code(piece, block, r % native::kBlockRows, k), static_cast<int>(stored_code(m, r, k)));
    for (size_t g = 0; g < groups; ++g) {
      const float held = native::held_scale(piece, block + piece.scales_at, r % native::kBlockRows, g);
      ASSERT_EQ(held, formats::to_f32(m.scales.data() + (r * groups + g) * element, m.format.dtype));
    }
  }
}

TEST(Pack, EveryFormOfGguf) {
  for (const uint32_t id : test::gguf_types()) {
    const formats::GgufType& type = *formats::find_gguf_type(id);
    SCOPED_TRACE(type.name);
    const auto source = test::random_gguf(type, 75, 768, id);
    for (const Range cols : {Range{0, 768}, Range{32, 544}})
      for (const Range rows : {Range{0, 75}, Range{3, 20}}) {
        const WeightPart part{"w", rows, cols};
        const Loaded loaded = load(*source, {&part, 1}, 2);
        WeightMatrix m;
        source->read("w", rows, cols, m);
        ASSERT_EQ(loaded.packed().pieces.size(), 1u);
        if (type.decode) expect_held(loaded.packed().pieces[0], m);
        EXPECT_TRUE(same_memory(loaded.packed(), load(Canonical(*source), {&part, 1}).packed()));
      }
  }
}

TEST(Pack, EveryFormOfMlxAndDense) {
  for (const ProductCase& c : product_cases()) {
    SCOPED_TRACE(c.name);
    MemorySource source;
    source.add("w", random_matrix(c.format, 41, c.cols, 1));
    const WeightPart part{"w", {0, 41}, {0, c.cols}};
    expect_held(load(source, {&part, 1}, 2).packed().pieces[0], source.matrix("w"));
  }
}

// Codes take their own bits in memory and nothing more: 16 rows x 256 columns of each form, scales and biases beside them.
TEST(Pack, EveryFormTakesItsOwnBits) {
  const auto block_bytes = [](const WeightFormat& format) { return native::piece_shape(format, 0, 16, 256).bytes(); };
  constexpr size_t kWeights = 16 * 256;
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    EXPECT_EQ(block_bytes(affine(bits, 32)), kWeights * static_cast<size_t>(bits) / 8 + kWeights / 32 * 4) << bits;
    EXPECT_EQ(block_bytes(affine(bits, 128, DType::f32)), kWeights * static_cast<size_t>(bits) / 8 + kWeights / 128 * 8) << bits;
    EXPECT_EQ(block_bytes(symmetric(bits, 16, 1, DType::f32)), kWeights * static_cast<size_t>(bits) / 8 + kWeights / 16 * 4) << bits;
  }
  EXPECT_EQ(block_bytes(mxfp4()), kWeights / 2 + kWeights / 32);
  EXPECT_EQ(block_bytes(dense(DType::bf16)), kWeights * 2);
  EXPECT_EQ(block_bytes(dense(DType::f32)), kWeights * 4);
  for (const uint32_t id : test::gguf_types()) {  // so files take what they took, but for scales that were products
    const formats::GgufType& type = *formats::find_gguf_type(id);
    const WeightFormat& f = type.format;
    if (f.coding == Coding::affine && f.dtype == DType::f16) {
      EXPECT_EQ(block_bytes(f), kWeights / type.block * type.block_bytes) << type.name;
    }
  }
}

// Blocks whose rows come from several parts, beside blocks that do not.
TEST(Pack, PartsThatMeetInsideABlock) {
  for (const uint32_t id : {1u, 3u, 12u, 39u}) {
    const auto source = test::random_gguf(*formats::find_gguf_type(id), 300, 256, id);
    const std::vector<WeightPart> parts{{"w", {0, 37}, {0, 256}},
                                        {"w", {40, 45}, {0, 256}},
                                        {"w", {50, 51}, {0, 256}},
                                        {"w", {1, 250}, {0, 256}},
                                        {"w", {299, 300}, {0, 256}}};
    const Loaded loaded = load(*source, parts, 3);
    WeightMatrix all, m;
    source->read("w", {0, 0}, {0, 256}, all);
    for (const WeightPart& part : parts) {
      source->read("w", part.rows, part.cols, m);
      all.rows += m.rows;
      all.codes.insert(all.codes.end(), m.codes.begin(), m.codes.end());
      all.scales.insert(all.scales.end(), m.scales.begin(), m.scales.end());
      all.biases.insert(all.biases.end(), m.biases.begin(), m.biases.end());
    }
    expect_held(loaded.packed().pieces[0], all);
  }
}

// Weights that are loaded together are as if loaded alone, on any number of threads; progress ends with all of them.
TEST(Pack, AllAtOnceIsAsOneByOne) {
  MemorySource source;
  source.add("a", random_matrix(affine(4, 32), 3000, 512, 1));
  source.add("b", random_matrix(dense(DType::bf16), 500, 512, 2));
  source.add("c", random_matrix(symmetric(6, 16, 32, DType::f32), 70, 2048, 3));
  const std::vector<WeightRequest> requests{{{{"a", {0, 2999}, {0, 512}}, {"b", {0, 500}, {0, 512}}}, 0},
                                            {{{"c", {0, 70}, {0, 1024}}}, 256},
                                            {{{"b", {7, 7}, {0, 512}}}, 0},
                                            {{{"c", {0, 70}, {1024, 2048}}}, 256},
                                            {{{"a", {5, 6}, {0, 512}}}, 0}};
  for (const unsigned threads : {1u, 4u}) {
    const auto backend = make_native_backend("auto", threads);
    uint64_t done = 0, total = 0;
    const auto weights = backend->load_all(source, requests, [&](uint64_t bytes) {
      EXPECT_GE(bytes, done);
      done = bytes;
    });
    ASSERT_EQ(weights.size(), requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto alone = backend->load(source, requests[i].parts, requests[i].unit);
      EXPECT_TRUE(same_memory(native::packed(*weights[i]), native::packed(*alone))) << i;
      EXPECT_EQ(weights[i]->bytes, backend->weight_bytes(source, requests[i].parts));
      EXPECT_EQ(native::packed(*weights[i]).unit, requests[i].unit);
      total += weights[i]->bytes;
    }
    EXPECT_EQ(done, total);
  }
}

// Broken blocks are found while they are packed, and the error says where.
TEST(Pack, ScalesThatAreNotFiniteAreErrors) {
  const formats::GgufType& type = *formats::find_gguf_type(12);
  auto blocks = test::random_blocks(type, 2000 * 2, 1);
  blocks[(1234 * 2 + 1) * type.block_bytes + 1] = std::byte{0x7c};
  const auto source = test::gguf_of(type, 2000, 512, blocks);
  const WeightPart part{"w", {0, 2000}, {0, 512}};
  for (const unsigned threads : {1u, 4u}) {
    try {
      load(*source, {&part, 1}, threads);
      ADD_FAILURE() << "loaded";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::data_loss);
      EXPECT_NE(std::string(e.what()).find("row 1234"), std::string::npos) << e.what();
    }
  }
  const WeightPart sound{"w", {0, 2000}, {0, 256}};
  EXPECT_NO_THROW(load(*source, {&sound, 1}, 4));
}

}  // namespace
}  // namespace verbund::compute::testing
