#include "formats/model_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include "support.h"

namespace verbund::formats {
namespace {

class OpenModel : public testing::Test {
 protected:
  void expect(Code code, const std::string& path, std::initializer_list<const char*> words) {
    expect_refused(code, words, [&] { open_model(path); });
  }
  void write_shard(const std::string& file, const std::string& tensor, float value) {
    Bytes b = safetensors_file("{\"" + tensor + "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}");
    folder_.write(file, b.f32(value));
  }
  TempFolder folder_;
};

TEST_F(OpenModel, SaysWhatAPathIsThatIsNoModel) {
  expect(Code::not_found, folder_.path() + "/none", {"none", "no such file"});
  expect(Code::invalid_argument, "/dev/null", {"/dev/null", "regular"});
  expect(Code::invalid_argument, folder_.path(), {"config.json"});
  expect(Code::invalid_argument, folder_.write("empty", ""), {"0 bytes"});
  expect(Code::invalid_argument,
         folder_.write("elf",
                       "\x7f"
                       "ELF and more"),
         {"'\\x7fELF'", "13 bytes", "GGUF"});
  expect(Code::invalid_argument, folder_.write("x.safetensors", "12345678"), {"folder"});
  const std::string pipe = folder_.path() + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect(Code::invalid_argument, pipe, {"regular"});
  folder_.write("m.gguf", "GGUF");
  expect(Code::invalid_argument, folder_.path(), {"config.json", "m.gguf"});
  expect(Code::data_loss, folder_.path() + "/m.gguf", {"m.gguf of 4 bytes"});
}

TEST_F(OpenModel, ReadsOneFileOrAnIndexOrACompleteSet) {
  folder_.write("config.json", R"({"model_type":"llama"})");
  folder_.write("generation_config.json", R"({"eos_token_id":[1,2]})");
  write_shard("model.safetensors", "a", 1);
  ModelFiles model = open_model(folder_.path());
  EXPECT_EQ(model.tensors->read_vector("a"), std::vector<float>{1});
  EXPECT_EQ(model.generation_config.at("eos_token_id").size(), 2u);

  write_shard("x1.safetensors", "b", 2);
  write_shard("x2.safetensors", "c", 3);
  folder_.write("model.safetensors.index.json", R"({"metadata":{},"weight_map":{"b":"x1.safetensors","c":"x2.safetensors"}})");
  model = open_model(folder_.path());
  EXPECT_EQ(model.tensors->tensors().size(), 2u);
  EXPECT_EQ(model.tensors->read_vector("c"), std::vector<float>{3});

  for (const char* name : {"model.safetensors", "x1.safetensors", "x2.safetensors", "model.safetensors.index.json"})
    std::filesystem::remove(folder_.path() + "/" + name);
  write_shard("model-00001-of-00002.safetensors", "b", 4);
  expect(Code::not_found, folder_.path(), {"index.json"});
  write_shard("model-00002-of-00002.safetensors", "c", 5);
  model = open_model(folder_.path());
  EXPECT_EQ(model.tensors->read_vector("c"), std::vector<float>{5});
  write_shard("other.safetensors", "d", 6);
  expect(Code::not_found, folder_.path(), {"3 .safetensors files"});
}

TEST_F(OpenModel, RefusesIndexesThatLeadElsewhereOrLie) {
  folder_.write("config.json", "{}");
  write_shard("x.safetensors", "a", 1);
  const auto index = [&](const std::string& map) { folder_.write("model.safetensors.index.json", "{\"weight_map\":" + map + "}"); };
  for (const char* name :
       {"../x.safetensors", "/etc/passwd", "sub/x.safetensors", "..", ".", "", "a\\\\b", "c:x", "x\\u0000.safetensors"}) {
    index("{\"a\":\"" + std::string(name) + "\"}");
    expect(Code::permission_denied, folder_.path(), {"plain name"});
  }
  index(R"({"a":"x.safetensors","b":"x.safetensors"})");
  expect(Code::data_loss, folder_.path(), {"'b'", "index"});
  index(R"({"a":"x.safetensors","b":"y.safetensors"})");
  expect(Code::not_found, folder_.path(), {"1 of 2", "y.safetensors"});
  index(R"({"a":5})");
  expect(Code::data_loss, folder_.path(), {"'a'"});
  index("[]");
  expect(Code::data_loss, folder_.path(), {"weight_map"});
}

TEST_F(OpenModel, RefusesBrokenConfig) {
  const auto with = [&](std::string_view text, std::initializer_list<const char*> words) {
    folder_.write("config.json", text);
    expect(Code::data_loss, folder_.path(), words);
  };
  with("{", {"config.json", "byte 2"});
  with("[1]", {"config.json", "object"});
  with("", {"config.json"});
  with("{\"a\":1e999}", {"config.json"});
  with("{\"a\":" + std::string(100000, '[') + "}", {"config.json", "nested"});
  folder_.write("config.json", std::string(5 << 20, ' '));
  expect_refused(Code::invalid_argument, {"config.json", "5.0 MiB"}, [&] { open_model(folder_.path()); });
}

TEST_F(OpenModel, NoWeights) {
  folder_.write("config.json", "{}");
  expect(Code::not_found, folder_.path(), {".safetensors"});
}

TEST_F(OpenModel, TensorInTwoShards) {
  folder_.write("config.json", "{}");
  write_shard("model-00001-of-00002.safetensors", "a", 1);
  write_shard("model-00002-of-00002.safetensors", "a", 2);
  expect(Code::data_loss, folder_.path(), {"'a'", "two files"});
}

TEST_F(OpenModel, UnreadableFile) {
  if (::geteuid() == 0) GTEST_SKIP() << "root reads everything";
  const std::string path = folder_.write("m.gguf", "GGUF");
  ::chmod(path.c_str(), 0);
  expect(Code::permission_denied, path, {"m.gguf"});
}

}  // namespace
}  // namespace verbund::formats
