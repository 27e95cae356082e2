// Row-parallel products over ranks: splits, poison, sharded embeddings. Real meshes, a thread a rank.
#include <gmock/gmock.h>

#include "compute/numerics.h"
#include "compute/ranks.h"

namespace verbund::compute::testing {
namespace {

constexpr size_t kUnit = 64, kCols = 11 * kUnit - 32, kOut = 45, kRows = 3;  // the last unit is short

std::vector<float> columns(const std::vector<float>& x, Range cols) {
  std::vector<float> part;
  for (size_t r = 0; r < kRows; ++r) part.insert(part.end(), x.begin() + r * kCols + cols.begin, x.begin() + r * kCols + cols.end);
  return part;
}

Partial part_of(Backend& backend, const MemorySource& source, const std::vector<float>& x, Range cols) {
  const WeightPart part{"w", {0, kOut}, cols};
  const auto w = backend.load(source, {&part, 1}, kUnit);
  return backend.linear_partial(backend.from_host(kRows, cols.size(), columns(x, cols)), *w);
}

// The promise of docs/DESIGN.md 4.1: any split by units, summed in any order, gives the bits of the whole, also where the
// ranks run different instruction sets and some hold nothing.
TEST(Reduction, AnySplitGivesTheBitsOfTheWhole) {
  const std::vector<std::string> isas = native_isas();
  const std::vector<float> residual = random_values(kRows * kOut, 3), bias = random_values(kOut, 4);
  for (const WeightFormat& format : {affine(4, 32), symmetric(8, 32, 128), affine(2, 16, DType::f32), mxfp4(), dense(DType::f32)}) {
    MemorySource source;
    source.add("w", random_matrix(format, kOut, kCols, 1));
    const std::vector<float> x = random_values(kRows * kCols, 2);
    const auto alone = make_native_backend("scalar", 1);
    const auto solo = mesh::make_solo_mesh();
    const auto whole = host(*alone, alone->add_reduced(alone->from_host(kRows, kOut, residual), part_of(*alone, source, x, {0, kCols}),
                                                       alone->load_vector(bias).get(), *solo, soon()));
    for (const std::vector<size_t>& cuts : {std::vector<size_t>{0, 5, 11}, {0, 1, 1, 11}, {0, 4, 5, 9, 11}, {0, 2, 4, 6, 8, 11}}) {
      run_ranks(static_cast<int>(cuts.size()) - 1, [&](int rank, mesh::Mesh& mesh) {
        const auto i = static_cast<size_t>(rank);
        const auto backend = make_native_backend(isas[i % isas.size()], 1 + i % 2);
        const Range mine{cuts[i] * kUnit, std::min(cuts[i + 1] * kUnit, kCols)};
        const Partial partial = mine.empty() ? backend->zero_partial(kRows, kOut) : part_of(*backend, source, x, mine);
        const Tensor y =
            backend->add_reduced(backend->from_host(kRows, kOut, residual), partial, backend->load_vector(bias).get(), mesh, soon());
        EXPECT_TRUE(same_bits(host(*backend, y), whole)) << format.name() << " rank " << rank;
      });
    }
  }
}

TEST(Reduction, ShardedEmbeddingIsMadeWhole) {
  MemorySource source;
  source.add("w", random_matrix(affine(4, 32), 50, 96, 5));
  const std::vector<int32_t> ids{0, 49, 20, 19, 7, 7};
  const auto alone = make_native_backend("scalar", 1);
  const WeightPart all{"w", {0, 50}, {0, 96}};
  const auto whole = host(*alone, alone->embed(*alone->load(source, {&all, 1}, 0), ids, 0));
  run_ranks(3, [&](int rank, mesh::Mesh& mesh) {
    const std::vector<size_t> cuts{0, 7, 20, 50};
    const auto i = static_cast<size_t>(rank);
    const auto backend = make_native_backend("auto", 1);
    const WeightPart part{"w", {cuts[i], cuts[i + 1]}, {0, 96}};
    const auto table = backend->load(source, {&part, 1}, 0);
    EXPECT_TRUE(same_bits(host(*backend, backend->gather_embedding(backend->embed(*table, ids, cuts[i]), mesh, soon())), whole));
  });
}

// A value that no fixed-point number can hold ends the request with the same error on every rank, and names its rows.
TEST(Reduction, ValuesOutOfRangeNameTheirRowsOnEveryRank) {
  for (const WeightFormat& format : {affine(4, 32), symmetric(6, 16, 32), dense(DType::f32)}) {
    MemorySource source;
    source.add("w", random_matrix(format, kOut, kCols, 1));
    for (const float bad : {std::nanf(""), INFINITY, -INFINITY, 1e9f})
      for (const std::string& isa : native_isas()) {
        std::vector<float> x = random_values(kRows * kCols, 2);
        x[1 * kCols + 70] = bad;  // row 1, in the part of rank 0
        run_ranks(2, [&](int rank, mesh::Mesh& mesh) {
          const auto backend = make_native_backend(isa, 1);
          const Partial partial = part_of(*backend, source, x, rank == 0 ? Range{0, 128} : Range{128, kCols});
          try {
            backend->add_reduced(backend->from_host(kRows, kOut, std::vector<float>(kRows * kOut)), partial, nullptr, mesh, soon());
            ADD_FAILURE() << isa << " " << bad << " on rank " << rank << " was not noticed";
          } catch (const Error& e) {
            EXPECT_EQ(e.code(), Code::invalid_argument);
            EXPECT_EQ(e.lost(), Lost::request);
            EXPECT_EQ(e.parts().where, "rows 1");
          }
        });
      }
  }
}

// One output just inside and just outside 2^20.
TEST(Reduction, TheRangeEndsAtTwoToTheTwenty) {
  const auto solo = mesh::make_solo_mesh();
  for (const std::string& isa : native_isas()) {
    const auto backend = make_native_backend(isa, 1);
    for (const float edge : {1048576.0f, -1048576.0f, 1048576.125f, -1048576.125f}) {
      MemorySource source;
      WeightMatrix one;
      one.resize(dense(DType::f32), 1, 1);
      put(one.codes.data(), DType::f32, edge);
      source.add("w", std::move(one));
      const WeightPart part{"w", {0, 1}, {0, 1}};
      const auto w = backend->load(source, {&part, 1}, 1);
      const Partial partial = backend->linear_partial(backend->from_host(1, 1, std::vector<float>{1.0f}), *w);
      const Tensor zero = backend->from_host(1, 1, std::vector<float>{0.0f});
      if (std::fabs(edge) <= kFixedMax)
        EXPECT_EQ(host(*backend, backend->add_reduced(zero, partial, nullptr, *solo, soon()))[0], edge);
      else
        EXPECT_THROW(backend->add_reduced(zero, partial, nullptr, *solo, soon()), Error);
    }
  }
}

}  // namespace
}  // namespace verbund::compute::testing
