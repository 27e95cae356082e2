// The GGUF reader against files and values of the gguf package (scripts/fixtures/gguf_formats.py).
#include <map>
#include <thread>

#include "formats/gguf_source.h"
#include "formats/model_files.h"
#include "formats/safetensors_source.h"
#include "support.h"

namespace verbund::formats {
namespace {

const std::string kData = std::string(VERBUND_TEST_DATA) + "/formats/";

std::unique_ptr<TensorSource> expectations() {
  return std::make_unique<SafetensorsSource>("expected", files(std::make_unique<FileBytes>(kData + "types.safetensors")),
                                             nlohmann::json::object());
}

class GgufValues : public testing::TestWithParam<const char*> {
 protected:
  ModelFiles model_ = open_model(kData + "types.gguf");
  std::string name_ = std::string("w.") + GetParam();
};

// Exact, also for K-quants: their products are exact in f32, so the difference is rounded once in either formula.
TEST_P(GgufValues, AreThoseOfTheGgufPackage) {
  EXPECT_EQ(model_.tensors->require(name_).stored, GetParam());
  EXPECT_EQ(read_all(*model_.tensors, name_), read_all(*expectations(), name_));
}

TEST_P(GgufValues, SlicesEqualTheWhole) { expect_slices(*model_.tensors, name_, read_all(*expectations(), name_), 60); }

TEST_P(GgufValues, ManyThreadsReadOneSource) {
  const std::vector<float> whole = read_all(*expectations(), name_);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) threads.emplace_back([&] { expect_slices(*model_.tensors, name_, whole, 10); });
  for (std::thread& t : threads) t.join();
}

INSTANTIATE_TEST_SUITE_P(Types, GgufValues,
                         testing::Values("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K",
                                         "Q6_K", "MXFP4"),
                         [](const auto& info) { return std::string(info.param); });

TEST(GgufFormats, TranslateAsDocumented) {
  const ModelFiles model = open_model(kData + "types.gguf");
  const std::map<std::string, WeightFormat> expected{
      {"F32", {Coding::dense, DType::f32, 0, 0, {}}},    {"F16", {Coding::dense, DType::f16, 0, 0, {}}},
      {"BF16", {Coding::dense, DType::bf16, 0, 0, {}}},  {"Q4_0", {Coding::affine, DType::f16, 4, 32, 8}},
      {"Q4_1", {Coding::affine, DType::f16, 4, 32, {}}}, {"Q5_0", {Coding::affine, DType::f16, 5, 32, 16}},
      {"Q5_1", {Coding::affine, DType::f16, 5, 32, {}}}, {"Q8_0", {Coding::affine, DType::f16, 8, 32, 128}},
      {"Q2_K", {Coding::affine, DType::f32, 2, 16, {}}}, {"Q3_K", {Coding::affine, DType::f32, 3, 16, 4}},
      {"Q4_K", {Coding::affine, DType::f32, 4, 32, {}}}, {"Q5_K", {Coding::affine, DType::f32, 5, 32, {}}},
      {"Q6_K", {Coding::affine, DType::f32, 6, 16, 32}}, {"MXFP4", {Coding::mxfp4, DType::f32, 4, 32, {}}}};
  ASSERT_EQ(model.tensors->tensors().size(), expected.size());
  for (const TensorInfo& info : model.tensors->tensors()) {
    EXPECT_EQ(info.format, expected.at(info.stored)) << info.name;
    EXPECT_EQ(info.shape, (std::vector<size_t>{3, 512}));
    EXPECT_TRUE(info.exact && info.readable);
  }
}

TEST(GgufMetadata, KeepsEveryKind) {
  const ModelFiles model = open_model(kData + "types.gguf");
  const nlohmann::json& m = model.metadata;
  EXPECT_EQ(model.container, Container::gguf);
  EXPECT_EQ(model.bytes_on_disk, std::filesystem::file_size(kData + "types.gguf"));
  EXPECT_EQ(m.at("general.architecture"), "llama");
  EXPECT_EQ(m.at("kind.u8"), 200);
  EXPECT_EQ(m.at("kind.i8"), -100);
  EXPECT_EQ(m.at("kind.u16"), 60000);
  EXPECT_EQ(m.at("kind.i16"), -30000);
  EXPECT_EQ(m.at("kind.u32"), 4000000000u);
  EXPECT_EQ(m.at("kind.i32"), -2000000000);
  EXPECT_EQ(m.at("kind.u64").get<uint64_t>(), (uint64_t(1) << 63) + 1);
  EXPECT_EQ(m.at("kind.i64").get<int64_t>(), -(int64_t(1) << 62));
  EXPECT_TRUE(m.at("kind.f32").is_number_float());
  EXPECT_EQ(m.at("kind.f32"), 0.5);
  EXPECT_EQ(m.at("kind.f64"), 0.1);
  EXPECT_EQ(m.at("kind.bool"), true);
  EXPECT_EQ(m.at("kind.string"), "Grüße, 世界");
  EXPECT_EQ(m.at("kind.strings"), (nlohmann::json{"a", "", "ß"}));
  EXPECT_EQ(m.at("kind.integers"), (nlohmann::json{1, -2, 3}));
}

TEST(GgufRead, ErrorsNameTensorAndFile) {
  const ModelFiles model = open_model(kData + "types.gguf");
  WeightMatrix m;
  expect_refused(Code::not_found, {"'w.Q9'", "types.gguf"}, [&] { model.tensors->read("w.Q9", {0, 1}, {0, 32}, m); });
  expect_refused(Code::invalid_argument, {"'w.Q4_0'", "3 x 512"}, [&] { model.tensors->read("w.Q4_0", {0, 4}, {0, 32}, m); });
  expect_refused(Code::invalid_argument, {"'w.Q4_0'", "multiples of 32"}, [&] { model.tensors->read("w.Q4_0", {0, 1}, {0, 16}, m); });
  expect_refused(Code::invalid_argument, {"'w.Q6_K'", "multiples of 32"}, [&] { model.tensors->read("w.Q6_K", {0, 1}, {16, 64}, m); });
  expect_refused(Code::invalid_argument, {"'w.F32'"}, [&] { model.tensors->read("w.F32", {2, 1}, {0, 4}, m); });
  expect_refused(Code::invalid_argument, {"'w.F32'", "3 rows"}, [&] { model.tensors->read_vector("w.F32"); });
}

}  // namespace
}  // namespace verbund::formats
