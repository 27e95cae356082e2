// Fused operations against the single ones: the same bits for any number of rows, threads, format and instruction set.
#include "compute/backend_fixture.h"
#include "compute/bits.h"

namespace verbund::compute::testing {
namespace {

struct Block {
  std::string name;
  size_t hidden, mlp;
  WeightFormat gate, up, down;
  size_t unit;
};

std::vector<Block> blocks() {
  return {{"demo", 192, 256, affine(4, 32), affine(4, 32), affine(4, 32), 64},
          {"mixed", 256, 192, affine(4, 32), symmetric(8, 32, 128), affine(4, 64), 64},  // gate and up are two pieces
          {"groups16", 128, 128, symmetric(6, 16, 32), symmetric(6, 16, 32), symmetric(6, 16, 32), 64},
          {"ragged", 96, 160 + 32, affine(4, 32), affine(4, 32), symmetric(4, 32, 8), 96},
          {"odd_halves", 64, 72 + 24, affine(4, 32), affine(4, 32), affine(4, 32), 32},
          {"dense", 80, 96, dense(DType::f16), dense(DType::bf16), dense(DType::f32), 48}};
}

struct Loaded {
  std::unique_ptr<Weight> gate_up, down;
  std::unique_ptr<Vector> norm, bias;
};

class Fused : public ::testing::TestWithParam<Block> {
 protected:
  void SetUp() override {
    const Block& b = GetParam();
    source_.add("gate", random_matrix(b.gate, b.mlp, b.hidden, 1));
    source_.add("up", random_matrix(b.up, b.mlp, b.hidden, 2));
    source_.add("down", random_matrix(b.down, b.hidden, b.mlp, 3));
  }
  Loaded load(Backend& backend) const {
    const Block& b = GetParam();
    const std::vector<WeightPart> pair{{"gate", {0, b.mlp}, {0, b.hidden}}, {"up", {0, b.mlp}, {0, b.hidden}}};
    const std::vector<WeightPart> down{{"down", {0, b.hidden}, {0, b.mlp}}};
    return {backend.load(source_, pair, 0), backend.load(source_, down, b.unit), backend.load_vector(random_values(b.hidden, 4)),
            backend.load_vector(random_values(2 * b.mlp, 5))};
  }
  MemorySource source_;
};

INSTANTIATE_TEST_SUITE_P(Blocks, Fused, ::testing::ValuesIn(blocks()), [](const auto& info) { return info.param.name; });

TEST_P(Fused, GivesTheBitsOfTheSingleOperations) {
  const Block& b = GetParam();
  const auto truth = make_native_backend("scalar", 1);
  const Loaded slow = load(*truth);
  for (const size_t rows : {1u, 15u, 16u, 33u, 65u, 300u}) {
    const std::vector<float> x = random_values(rows * b.hidden, 6 + rows);
    const Tensor in = truth->from_host(rows, b.hidden, x);
    const Tensor normed = truth->rms_norm(in, *slow.norm, 1e-5f);
    const Tensor pair = truth->linear(normed, *slow.gate_up, slow.bias.get());
    const std::vector<float> want_pair = host(*truth, pair);
    const std::vector<float> want = reduced(*truth, truth->linear_partial(truth->gated(pair, Activation::silu), *slow.down));
    note_bits("norm_linear/" + b.name + "/" + std::to_string(rows), want_pair);
    note_bits("norm_mlp/" + b.name + "/" + std::to_string(rows), want);
    for (const std::string& isa : native_isas()) {
      for (const unsigned threads : {1u, 3u}) {
        const auto backend = make_native_backend(isa, threads);
        const Loaded fast = load(*backend);
        const Tensor h = backend->from_host(rows, b.hidden, x);
        EXPECT_TRUE(same_bits(want_pair, host(*backend, backend->norm_linear(h, *fast.norm, 1e-5f, *fast.gate_up, fast.bias.get()))))
            << isa << ", " << threads << " threads, " << rows << " rows";
        const Partial partial = backend->norm_mlp(h, *fast.norm, 1e-5f, *fast.gate_up, fast.bias.get(), Activation::silu, *fast.down);
        EXPECT_TRUE(same_bits(want, reduced(*backend, partial))) << isa << ", " << threads << " threads, " << rows << " rows";
      }
    }
  }
}

}  // namespace
}  // namespace verbund::compute::testing
