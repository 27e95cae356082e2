// The safetensors reader against weights quantised by MLX (scripts/fixtures/gguf_formats.py).
#include <set>
#include <thread>

#include "formats/model_files.h"
#include "formats/safetensors_source.h"
#include "support.h"

namespace verbund::formats {
namespace {

const std::string kData = std::string(VERBUND_TEST_DATA) + "/formats/";

class MlxValues : public testing::Test {
 protected:
  ModelFiles model_ = open_model(kData + "mlx");
  SafetensorsSource expected_{"expected", files(std::make_unique<FileBytes>(kData + "mlx.safetensors")), nlohmann::json::object()};
};

TEST_F(MlxValues, OfEveryBitsGroupAndScaleTypeAreExact) {
  std::set<std::string> affine;
  for (const TensorInfo& wanted : expected_.tensors()) {
    EXPECT_EQ(read_all(*model_.tensors, wanted.name), read_all(expected_, wanted.name)) << wanted.name;
    const TensorInfo& info = model_.tensors->require(wanted.name);
    EXPECT_EQ(info.shape, wanted.shape);
    if (info.format.coding == Coding::affine) affine.insert(info.stored + " " + std::string(to_string(info.format.dtype)));
  }
  EXPECT_EQ(affine.size(), 6u * 3 * 3);
}

TEST_F(MlxValues, SlicesEqualTheWhole) {
  for (const TensorInfo& wanted : expected_.tensors()) expect_slices(*model_.tensors, wanted.name, read_all(expected_, wanted.name), 40);
}

TEST_F(MlxValues, ManyThreadsReadOneSource) {
  const std::vector<float> whole = read_all(expected_, "affine3.g32.bf16.weight");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) threads.emplace_back([&] { expect_slices(*model_.tensors, "affine3.g32.bf16.weight", whole, 50); });
  for (std::thread& t : threads) t.join();
}

TEST_F(MlxValues, ModulesAreOneTensorEach) {
  EXPECT_EQ(model_.tensors->find("mx.scales"), nullptr);
  EXPECT_EQ(model_.tensors->find("experts.up.biases"), nullptr);
  const TensorInfo& experts = model_.tensors->require("experts.up.weight");
  EXPECT_EQ(experts.rows(), 6u);
  EXPECT_EQ(experts.cols(), 64u);
  EXPECT_EQ(experts.stored, "affine4 g64");
  EXPECT_EQ(experts.stored_bytes, 6u * (32 + 2 + 2));
  EXPECT_EQ(model_.tensors->require("mx.weight").stored, "mxfp4");
  uint64_t sum = 0;
  for (const TensorInfo& info : model_.tensors->tensors()) sum += info.stored_bytes;
  EXPECT_LT(sum, model_.bytes_on_disk);
}

TEST_F(MlxValues, OtherTypesAreListedAndRefusedByName) {
  const TensorInfo& ids = model_.tensors->require("position_ids");
  EXPECT_FALSE(ids.readable);
  EXPECT_EQ(ids.stored, "I64");
  expect_refused(Code::unimplemented, {"'position_ids'", "I64", "model.safetensors"}, [&] { model_.tensors->read_vector("position_ids"); });
}

TEST_F(MlxValues, RangesAreCheckedAgainstGroups) {
  WeightMatrix m;
  const auto read = [&](const char* name, Range cols) { return [this, name, cols, &m] { model_.tensors->read(name, {0, 1}, cols, m); }; };
  expect_refused(Code::invalid_argument, {"affine4.g128.f16.weight", "multiples of 128"}, read("affine4.g128.f16.weight", {64, 128}));
  expect_refused(Code::invalid_argument, {"mx.weight", "multiples of 32"}, read("mx.weight", {0, 16}));
  expect_refused(Code::invalid_argument, {"plain.f16", "outside"}, read("plain.f16", {0, 41}));
}

TEST_F(MlxValues, ConfigComesAlong) {
  EXPECT_EQ(model_.container, Container::safetensors);
  EXPECT_EQ(model_.config.at("model_type"), "llama");
  EXPECT_TRUE(model_.generation_config.is_null());
  EXPECT_TRUE(model_.metadata.is_null());
}

}  // namespace
}  // namespace verbund::formats
