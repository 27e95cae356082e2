// Broken and malicious safetensors files, and modules that contradict config.json.
#include <random>

#include "formats/safetensors_header.h"
#include "formats/safetensors_source.h"
#include "support.h"

namespace verbund::formats {
namespace {

using nlohmann::json;

void expect_broken(const Bytes& file, std::initializer_list<const char*> words) {
  const auto source = in_memory(file);
  // The header is held once as text: no longer than the file.
  expect_refused(
      Code::data_loss, words, [&] { parse_safetensors_header(*source); }, (256 << 10) + file.data.size());
}

// {"t": {dtype F32, shape [2], data_offsets [0, 8]}} with one part replaced.
Bytes one(std::string_view dtype, std::string_view shape, std::string_view offsets, size_t data = 8) {
  return safetensors_file(
      "{\"t\":{\"dtype\":" + std::string(dtype) + ",\"shape\":" + std::string(shape) + ",\"data_offsets\":" + std::string(offsets) + "}}",
      data);
}

TEST(SafetensorsHeader, ReadsEntriesInDataOrder) {
  const auto entries = parse_safetensors_header(*in_memory(
      safetensors_file(R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F16","shape":[1,2],"data_offsets":[8,12]},)"
                       R"("a":{"data_offsets":[0,8],"shape":[2],"dtype":"F32"},"s":{"dtype":"U8","shape":[],"data_offsets":[12,13]},)"
                       R"("e":{"dtype":"F32","shape":[0,4],"data_offsets":[13,13]}}   )",
                       13)));
  ASSERT_EQ(entries.size(), 4u);
  EXPECT_EQ(entries[0].name, "a");
  EXPECT_EQ(entries[1].name, "b");
  EXPECT_EQ(entries[1].shape, (std::vector<size_t>{1, 2}));
  EXPECT_EQ(entries[1].offset - entries[0].offset, 8u);
  EXPECT_EQ(entries[2].bytes, 1u);
  EXPECT_EQ(entries[3].bytes, 0u);
}

TEST(SafetensorsHostile, TruncatedAtEveryByte) {
  const Bytes whole = one("\"F32\"", "[2]", "[0,8]");
  EXPECT_NO_THROW(parse_safetensors_header(*in_memory(whole)));
  for (size_t length = 0; length < whole.data.size(); ++length) {
    Bytes cut = whole;
    cut.data.resize(length);
    expect_broken(cut, {std::to_string(length).c_str(), "test file"});
  }
}

TEST(SafetensorsHostile, TruncationNamesTensorAndBothSizes) {
  Bytes cut = one("\"F32\"", "[2]", "[0,8]");
  const std::string needed = std::to_string(cut.data.size());
  cut.data.resize(cut.data.size() - 3);
  expect_broken(cut, {"'t'", needed.c_str(), std::to_string(cut.data.size()).c_str()});
}

TEST(SafetensorsHostile, EveryByteChanged) {
  const Bytes whole = one("\"F32\"", "[2]", "[0,8]");
  std::mt19937 random(7);
  for (size_t at = 0; at < whole.data.size(); ++at)
    for (const unsigned value :
         {0u, 0x7fu, 0x80u, 0xffu, unsigned('"'), unsigned('['), unsigned('9'), static_cast<unsigned>(random() & 255)}) {
      Bytes changed = whole;
      changed.data[at] = static_cast<std::byte>(value);
      reset_allocation_probe();
      try {
        const SafetensorsSource source("folder", files(in_memory(changed)), json::object());
        for (const TensorInfo& info : source.tensors())
          if (info.readable) read_all(source, info.name);
      } catch (const Error& e) { EXPECT_NE(to_string(e.code()), "internal"); }
      EXPECT_LE(largest_allocation(), size_t(256) << 10);
    }
}

TEST(SafetensorsHostile, HeaderLength) {
  for (const uint64_t n : {uint64_t(100), uint64_t(1) << 40, uint64_t(1) << 63, UINT64_MAX, UINT64_MAX - 7})
    expect_broken(Bytes().u64(n).raw("{}").fill(33, ' '), {std::to_string(n).c_str()});
  expect_broken(Bytes().u64(0), {"'{'"});
  TempFolder folder;  // a sparse file: longer than any header may be, but nothing on the disk
  const std::string path = folder.write("sparse.safetensors", Bytes().u64(200'000'000));
  std::filesystem::resize_file(path, 300'000'000);
  const FileBytes sparse(path);
  expect_refused(Code::data_loss, {"200000000", "100000000"}, [&] { parse_safetensors_header(sparse); });
}

TEST(SafetensorsHostile, Json) {
  const auto broken = [](std::string_view header, std::initializer_list<const char*> words) {
    expect_broken(safetensors_file(header), words);
  };
  broken("[]", {"'{'"});
  broken("{", {"JSON at byte"});
  broken("{}x", {"JSON at byte"});
  broken("{\"t\":1}", {"'t'"});
  broken("{\"t\":\"x\"}", {"'t'"});
  broken("{\"t\":null}", {"'t'"});
  broken("{\"t\":[]}", {"'t'"});
  broken("{\"t\":{}}", {"'t'", "dtype"});
  broken("{\"t\":{\"dtype\":\"F32\",\"shape\":[]}}", {"'t'", "data_offsets"});
  broken("{\"t\":{\"dtype\":{}}}", {"'t'"});
  broken("{\"\xff\":{}}", {"JSON at byte"});
  broken("{\"\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", {"name"});
  broken("{\"__metadata__\":{\"a\":{}}}", {"object"});
  broken("{\"__metadata__\":{\"a\":1}}", {"number"});
}

TEST(SafetensorsHostile, DeepNesting) {
  const std::string lists(100000, '['), objects = [] {
    std::string s;
    for (int i = 0; i < 50000; ++i) s += "{\"a\":";
    return s;
  }();
  expect_broken(safetensors_file("{\"t\":{\"shape\":" + lists), {"'t'", "list"});
  expect_broken(safetensors_file(objects), {"object"});
}

TEST(SafetensorsHostile, Numbers) {
  expect_broken(one("\"F32\"", "[2]", "[-8,0]"), {"'t'", "-8"});
  expect_broken(one("\"F32\"", "[2]", "[0.0,8.0]"), {"'t'", "0.0"});
  expect_broken(one("\"F32\"", "[2]", "[0,1e1]"), {"'t'", "1e1"});
  expect_broken(one("\"F32\"", "[2]", "[8,0]"), {"'t'", "range"});
  expect_broken(one("\"F32\"", "[2]", "[0]"), {"'t'", "range"});
  expect_broken(one("\"F32\"", "[2]", "[0,4,8]"), {"'t'", "range"});
  expect_broken(one("\"F32\"", "[2]", "[\"0\",8]"), {"'t'"});
  expect_broken(one("\"F32\"", "[-2]", "[0,8]"), {"'t'", "-2"});
  expect_broken(one("\"F32\"", "[2.5]", "[0,8]"), {"'t'", "2.5"});
  expect_broken(one("\"F32\"", "2", "[0,8]"), {"'t'", "number"});
  expect_broken(one("5", "[2]", "[0,8]"), {"'t'"});
  expect_broken(one("\"\"", "[2]", "[0,8]"), {"'t'"});
  expect_broken(one("\"F32\"", "[99999999999999999999]", "[0,8]"), {"'t'", "99999999999999999999"});
}

TEST(SafetensorsHostile, ShapesAndPlaces) {
  expect_broken(one("\"F32\"", "[3]", "[0,8]"), {"'t'", "12", "8"});
  expect_broken(one("\"F32\"", "[4398046511105]", "[0,8]"), {"'t'", "17592186044420"});
  expect_broken(one("\"F32\"", "[9223372036854775808,2]", "[0,8]"), {"'t'", "shape"});
  expect_broken(one("\"F32\"", "[4294967296,4294967296,0]", "[0,0]", 0), {"'t'", "shape"});
  expect_broken(one("\"U8\"", "[18446744073709551615]", "[0,18446744073709551615]"), {"'t'", "shape"});
  expect_broken(one("\"FUTURE\"", "[1]", "[0,18446744073709551615]"), {"'t'", "2^64"});
  std::string many = "[1";
  for (int i = 1; i < 1000000; ++i) many += ",1";
  expect_broken(one("\"F32\"", many + "]", "[0,8]"), {"'t'", "more than 8"});
  expect_broken(one("\"F32\"", "[2]", "[0,8]", 9), {"accounts for"});
  expect_broken(one("\"F32\"", "[2]", "[0,8]", 7), {"'t'"});
  expect_broken(one("\"F32\"", "[2]", "[4,12]"), {"'t'"});
  expect_broken(
      safetensors_file(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8),
      {"overlap", "'a'", "'b'"});
}

TEST(SafetensorsHostile, DuplicateKeys) {
  expect_broken(
      safetensors_file(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8),
      {"'a'", "twice"});
  expect_broken(one("\"F32\",\"dtype\":\"F16\"", "[2]", "[0,8]"), {"'t'", "'dtype' twice"});
}

TEST(SafetensorsHostile, UnknownTypeIsListedButNotRead) {
  const SafetensorsSource source("folder", files(in_memory(one("\"F4_WEIRD\"", "[3]", "[0,8]"))), json::object());
  EXPECT_EQ(source.require("t").stored, "F4_WEIRD");
  expect_refused(Code::unimplemented, {"'t'", "F4_WEIRD"}, [&] { source.read_vector("t"); });
}

// ---- quantised modules

struct Part {
  std::string name, dtype;
  std::vector<size_t> shape;
};

Bytes module_file(const std::vector<Part>& parts, uint8_t fill = 0) {
  json header = json::object();
  size_t end = 0;
  for (const Part& p : parts) {
    size_t bytes = *safetensors_item_bytes(p.dtype);
    for (const size_t n : p.shape) bytes *= n;
    header[p.name] = {{"dtype", p.dtype}, {"shape", p.shape}, {"data_offsets", {end, end + bytes}}};
    end += bytes;
  }
  Bytes b = safetensors_file(header.dump());
  b.fill(end, fill);
  return b;
}

// 2 rows of 128 columns in 4 bits and groups of 64.
std::vector<Part> affine4() { return {{"m.weight", "U32", {2, 16}}, {"m.scales", "F16", {2, 2}}, {"m.biases", "F16", {2, 2}}}; }
json quantization(int bits, int group) { return {{"quantization", {{"bits", bits}, {"group_size", group}}}}; }

void expect_mismatch(const std::vector<Part>& parts, const json& config, std::initializer_list<const char*> words,
                     Code code = Code::data_loss) {
  const Bytes file = module_file(parts);
  expect_refused(code, words, [&] { SafetensorsSource("folder", files(in_memory(file)), config); });
}

TEST(MlxModule, FitsItsConfigOrIsRefused) {
  const SafetensorsSource source("folder", files(in_memory(module_file(affine4()))), quantization(4, 64));
  EXPECT_EQ(source.require("m.weight").shape, (std::vector<size_t>{2, 128}));
  expect_mismatch(affine4(), quantization(4, 32), {"'m'", "[2, 16]", "[2, 2]"});
  expect_mismatch(affine4(), quantization(8, 64), {"'m'", "8 bits"});
  expect_mismatch(affine4(), quantization(7, 64), {"'m'", "7 bits"});
  expect_mismatch(affine4(), quantization(4, 16), {"'m'", "16"});
  expect_mismatch(affine4(), json::object(), {"'m'", "no 'quantization'"});
}

TEST(MlxModule, PartsMustAgree) {
  auto parts = affine4();
  parts[2].shape = {2, 1};
  expect_mismatch(parts, quantization(4, 64), {"'m'", "biases", "[2, 1]"});
  parts = affine4();
  parts[2].dtype = "BF16";
  expect_mismatch(parts, quantization(4, 64), {"'m'", "biases", "BF16"});
  parts = affine4();
  parts.pop_back();
  expect_mismatch(parts, quantization(4, 64), {"'m'", "no biases"});
  parts = affine4();
  parts[1].shape = parts[2].shape = {3, 2};
  expect_mismatch(parts, quantization(4, 64), {"'m'", "[3, 2]"});
  parts = affine4();
  parts[1].dtype = parts[2].dtype = "U8";
  expect_mismatch(parts, quantization(4, 64), {"'m'", "U8"});
  parts = {{"m.weight", "U32", {16}}, {"m.scales", "F16", {2}}, {"m.biases", "F16", {2}}};
  expect_mismatch(parts, quantization(4, 64), {"'m'", "[16]"});
}

TEST(MlxModule, OverridesWinAndMeanAffineWithoutMode) {
  json config = quantization(8, 32);
  config["quantization"]["m"] = {{"bits", 4}, {"group_size", 64}};
  config["quantization"]["mode"] = "mxfp4";
  const SafetensorsSource source("folder", files(in_memory(module_file(affine4()))), config);
  EXPECT_EQ(source.require("m.weight").format.name(), "affine4 g64");
  config["quantization"]["m"] = false;
  expect_mismatch(affine4(), config, {"'m'", "not quantised"});
  config["quantization"]["m"] = {{"bits", 4}};
  expect_mismatch(affine4(), config, {"'m'", "group_size"});
  config["quantization"]["m"] = {{"bits", "4"}, {"group_size", 64}};
  expect_mismatch(affine4(), config, {"'m'", "bits"});
  config["quantization"]["m"] = {{"bits", -4}, {"group_size", 64}};
  expect_mismatch(affine4(), config, {"'m'", "-4"});
}

TEST(MlxModule, Mxfp4HasByteScalesAndNoBiases) {
  json config = quantization(4, 32);
  config["quantization"]["mode"] = "mxfp4";
  std::vector<Part> parts{{"m.weight", "U32", {2, 8}}, {"m.scales", "U8", {2, 2}}};
  const SafetensorsSource source("folder", files(in_memory(module_file(parts))), config);
  EXPECT_EQ(source.require("m.weight").format.coding, Coding::mxfp4);
  EXPECT_EQ(source.require("m.weight").cols(), 64u);
  expect_mismatch(parts, quantization(4, 32), {"'m'", "U8"});  // an affine rule without biases
  parts.push_back({"m.biases", "U8", {2, 2}});
  expect_mismatch(parts, config, {"'m'", "biases"});
  config["quantization"]["mode"] = "nvfp4";
  expect_mismatch(parts, config, {"'m'", "nvfp4"}, Code::unimplemented);
}

TEST(MlxModule, NonFiniteScaleNamesTheTensor) {
  const SafetensorsSource source("folder", files(in_memory(module_file(affine4(), 0xff))), quantization(4, 64));
  expect_refused(Code::data_loss, {"'m.weight'", "not finite"}, [&] { read_all(source, "m.weight"); });
}

TEST(ForeignQuantisation, IsRefusedByName) {
  for (const char* method : {"fp8", "awq", "gptq", "compressed-tensors", "mxfp4"}) {
    const json rule = {{"quant_method", method}, {"bits", 4}, {"group_size", 128}};
    expect_mismatch(affine4(), {{"quantization_config", rule}}, {method}, Code::unimplemented);
    expect_mismatch(affine4(), {{"text_config", {{"quantization_config", rule}}}}, {method}, Code::unimplemented);
  }
  expect_mismatch(affine4(), {{"quantization", 5}}, {"quantization"});
  // MLX writes its rule under both names.
  EXPECT_NO_THROW(
      SafetensorsSource("folder", files(in_memory(module_file(affine4()))), {{"quantization_config", {{"bits", 4}, {"group_size", 64}}}}));
}

}  // namespace
}  // namespace verbund::formats
