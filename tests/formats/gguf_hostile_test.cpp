// Broken and malicious GGUF files: one clear error, at once, without a large allocation.
#include <random>

#include "formats/gguf_header.h"
#include "formats/gguf_source.h"
#include "formats/model_files.h"
#include "support.h"

namespace verbund::formats {
namespace {

constexpr uint32_t kU8 = 0, kU32 = 4, kF32 = 6, kBool = 7, kString = 8, kArray = 9, kU64 = 10;
constexpr uint32_t kTypeF32 = 0, kTypeF16 = 1, kTypeQ4_0 = 2;

Bytes head(uint64_t tensors, uint64_t keys, uint32_t version = 3) {
  Bytes b;
  b.raw("GGUF").u32(version).u64(tensors).u64(keys);
  return b;
}

Bytes& tensor(Bytes& b, std::string_view name, std::vector<uint64_t> dims, uint32_t type, uint64_t offset) {
  b.text(name).u32(static_cast<uint32_t>(dims.size()));
  for (const uint64_t d : dims) b.u64(d);
  return b.u32(type).u64(offset);
}

// Two keys, a Q4_0 matrix of 2 x 32 and an F32 vector of 4.
Bytes tiny(uint32_t version = 3) {
  Bytes b = head(2, 2, version);
  b.text("general.architecture").u32(kString).text("llama").text("llama.block_count").u32(kU32).u32(1);
  tensor(b, "w", {32, 2}, kTypeQ4_0, 0);
  tensor(b, "n", {4}, kTypeF32, 64);
  b.align(32);
  b.u16(0x3c00).fill(16, 0x98).u16(0x4000).fill(16, 0x00).align(32);
  return b.f32(1).f32(2).f32(3).f32(4);
}

void expect_broken(const Bytes& file, std::initializer_list<const char*> words, Code code = Code::data_loss) {
  const auto source = in_memory(file);
  expect_refused(code, words, [&] { parse_gguf_header(*source); });
}

TEST(GgufTiny, IsReadInBothVersions) {
  for (const uint32_t version : {2u, 3u}) {
    const GgufSource source(files(in_memory(tiny(version))));
    EXPECT_EQ(source.read_vector("n"), (std::vector<float>{1, 2, 3, 4}));
    const std::vector<float> w = read_all(source, "w");
    EXPECT_EQ(w[0], 0.f);
    EXPECT_EQ(w[16], 1.f);
    EXPECT_EQ(w[32], -16.f);
  }
}

TEST(GgufTiny, MayBePaddedAtTheEndButNotLonger) {
  Bytes padded = tiny();
  padded.align(32);
  EXPECT_NO_THROW(parse_gguf_header(*in_memory(padded)));
  padded.u8(0);
  expect_broken(padded, {"last tensor 'n'", std::to_string(padded.data.size()).c_str()});
}

TEST(GgufHostile, TruncatedAtEveryByte) {
  const Bytes whole = tiny();
  for (size_t length = 0; length < whole.data.size(); ++length) {
    Bytes cut = whole;
    cut.data.resize(length);
    expect_broken(cut, {std::to_string(length).c_str()});
  }
}

TEST(GgufHostile, EveryByteChanged) {
  const Bytes whole = tiny();
  std::mt19937 random(6);
  for (size_t at = 0; at < whole.data.size(); ++at)
    for (const unsigned value : {0u, 1u, 0x7fu, 0x80u, 0xffu, static_cast<unsigned>(random() & 255)}) {
      Bytes changed = whole;
      changed.data[at] = static_cast<std::byte>(value);
      reset_allocation_probe();
      try {
        const GgufSource source(files(in_memory(changed)));
        for (const TensorInfo& info : source.tensors()) read_all(source, info.name);
      } catch (const Error& e) { EXPECT_NE(to_string(e.code()), "internal"); }
      EXPECT_LE(largest_allocation(), size_t(256) << 10);
    }
}

TEST(GgufHostile, NotGguf) {
  expect_broken(Bytes{}, {"0"});
  expect_broken(Bytes().raw("GGML").fill(39, 0), {"GGUF"});
  expect_broken(head(0, 0, 1), {"version 1"}, Code::unimplemented);
  expect_broken(head(0, 0, 4), {"version 4"}, Code::unimplemented);
  expect_broken(head(0, 0, 0), {"version 0"}, Code::unimplemented);
  expect_broken(head(0, 0, 0x03000000), {"big-endian"}, Code::unimplemented);
}

TEST(GgufHostile, HugeCounts) {
  for (const uint64_t n : {uint64_t(1) << 63, UINT64_MAX, uint64_t(1) << 32, uint64_t(1000)}) {
    expect_broken(head(n, 0).fill(19, 0), {std::to_string(n).c_str(), "tensors"});  // 43 bytes
    expect_broken(head(0, n).fill(19, 0), {std::to_string(n).c_str(), "keys"});
    expect_broken(head(0, 1).u64(n).fill(99, 'k'), {std::to_string(n).c_str()});
    expect_broken(head(0, 1).text("k").u32(kString).u64(n).raw("text"), {std::to_string(n).c_str(), "'k'"});
    expect_broken(head(0, 1).text("k").u32(kArray).u32(kU8).u64(n).raw("x"), {std::to_string(n).c_str(), "'k'"});
    expect_broken(head(0, 1).text("k").u32(kArray).u32(kString).u64(n).raw("x"), {std::to_string(n).c_str(), "'k'"});
    expect_broken(head(1, 0).u64(n).fill(24, 'x'), {std::to_string(n).c_str(), "tensor 1 of 1"});
  }
}

TEST(GgufHostile, WrongTypes) {
  expect_broken(head(0, 1).text("k").u32(13).u64(0), {"type 13", "'k'"});
  expect_broken(head(0, 1).text("k").u32(UINT32_MAX).u64(0), {"4294967295"});
  expect_broken(head(0, 1).text("k").u32(kArray).u32(99).u64(1).u64(0), {"type 99"});
  expect_broken(head(0, 1).text("k").u32(kBool).u8(2), {"bool"});
}

TEST(GgufHostile, NestedArrays) {
  Bytes shallow = head(0, 1);
  shallow.text("k").u32(kArray).u32(kArray).u64(2).u32(kU8).u64(1).u8(7).u32(kU8).u64(0);
  EXPECT_EQ(parse_gguf_header(*in_memory(shallow)).metadata.at("k").dump(), "[[7],[]]");
  Bytes deep = head(0, 1);
  deep.text("k").u32(kArray);
  for (int i = 0; i < 100000; ++i) deep.u32(kArray).u64(1);
  expect_broken(deep.u32(kU8).u64(1).u8(0), {"nested", "'k'"});
}

TEST(GgufHostile, BadUtf8AndDuplicates) {
  expect_broken(head(0, 1).text("k\xff").u32(kU8).u8(0), {"UTF-8"});
  expect_broken(head(0, 1).text("k").u32(kString).text("a\xc0\xaf"), {"UTF-8", "'k'"});
  expect_broken(head(0, 2).text("k").u32(kU8).u8(0).text("k").u32(kU8).u8(0), {"'k'", "twice"});
  Bytes b = head(2, 0);
  tensor(b, "w", {4}, kTypeF32, 0);
  tensor(b, "w", {4}, kTypeF32, 32);
  expect_broken(b.align(32).fill(48, 0), {"'w'", "twice"});
  Bytes bad = head(1, 0);
  expect_broken(tensor(bad, "\xed\xa0\x80", {4}, kTypeF32, 0).align(32).fill(16, 0), {"UTF-8"});
}

TEST(GgufHostile, Dimensions) {
  const auto one = [](std::vector<uint64_t> dims, uint32_t type, uint64_t offset = 0) {
    Bytes b = head(1, 0);
    return tensor(b, "w", dims, type, offset).align(32).fill(256, 0);
  };
  expect_broken(one({(uint64_t(1) << 42) + 1}, kTypeF32), {"'w'", "17592186044420"});
  expect_broken(one({uint64_t(1) << 62, 4}, kTypeF16), {"'w'"});
  expect_broken(one({uint64_t(1) << 63, 2, 2, 2}, kTypeF32), {"'w'", "2^64"});
  expect_broken(one({UINT64_MAX}, kTypeF32), {"'w'"});
  expect_broken(one({UINT64_MAX - 31}, kTypeQ4_0), {"'w'"});
  expect_broken(one({0, 4}, kTypeF32), {"'w'", "0"});
  expect_broken(one({33}, kTypeQ4_0), {"'w'", "33", "Q4_0"});
  expect_broken(one({1, 32}, kTypeQ4_0), {"'w'", "blocks of 32"});
  expect_broken(one({1, 1, 1, 1, 1}, kTypeF32), {"5 dimensions"});
  expect_broken(head(1, 0).text("w").u32(1000000).fill(8000, 1), {"1000000 dimensions"});
}

TEST(GgufHostile, TypesThatAreNotRead) {
  const auto of = [](uint32_t type) {
    Bytes b = head(1, 0);
    return tensor(b, "blk.0.w", {256}, type, 0).align(32).fill(512, 0);
  };
  expect_broken(of(20), {"'blk.0.w'", "IQ4_NL"}, Code::unimplemented);
  expect_broken(of(16), {"IQ2_XXS"}, Code::unimplemented);
  expect_broken(of(28), {"F64"}, Code::unimplemented);
  expect_broken(of(40), {"NVFP4"}, Code::unimplemented);
  expect_broken(of(4242), {"4242"}, Code::unimplemented);
}

TEST(GgufHostile, Places) {
  const auto two = [](uint64_t first, uint64_t second) {
    Bytes b = head(2, 0);
    tensor(b, "a", {16}, kTypeF32, first);
    return tensor(b, "b", {16}, kTypeF32, second).align(32).fill(128, 0);
  };
  EXPECT_NO_THROW(parse_gguf_header(*in_memory(two(0, 64))));
  EXPECT_NO_THROW(parse_gguf_header(*in_memory(two(64, 0))));
  expect_broken(two(0, 0), {"overlap", "'a'", "'b'"});
  expect_broken(two(0, 32), {"overlap"});
  expect_broken(two(0, 63), {"'b'", "63"});
  expect_broken(two(0, 96), {"'b'"});
  expect_broken(two(0, uint64_t(1) << 63), {"'b'"});
  expect_broken(two(0, UINT64_MAX - 31), {"'b'", "2^64"});
}

TEST(GgufHostile, Alignment) {
  const auto with = [](uint64_t alignment) {
    Bytes b = head(1, 1);
    b.text("general.alignment").u32(kU64).u64(alignment);
    return tensor(b, "w", {4}, kTypeF32, 0).align(64).fill(16, 0);
  };
  EXPECT_NO_THROW(parse_gguf_header(*in_memory(with(64))));
  for (const uint64_t bad : {uint64_t(0), uint64_t(3), uint64_t(48), uint64_t(1) << 32, uint64_t(1) << 63, UINT64_MAX})
    expect_broken(with(bad), {"alignment"});
  expect_broken(head(0, 1).text("general.alignment").u32(kString).text("32"), {"alignment"});
  expect_broken(head(0, 1).text("general.alignment").u32(kF32).f32(32), {"alignment"});
}

TEST(GgufHostile, NonFiniteScaleNamesTheTensor) {
  for (const uint16_t scale : {uint16_t(0x7c00), uint16_t(0xfc00), uint16_t(0x7e00)}) {
    Bytes b = head(1, 0);
    tensor(b, "blk.7.w", {32, 2}, kTypeQ4_0, 0).align(32).u16(0x3c00).fill(16, 0).u16(scale).fill(16, 0);
    const GgufSource source(files(in_memory(b)));
    WeightMatrix m;
    expect_refused(Code::data_loss, {"'blk.7.w'", "not finite", "row 1"}, [&] { source.read("blk.7.w", {0, 2}, {0, 32}, m); });
    EXPECT_NO_THROW(source.read("blk.7.w", {0, 1}, {0, 32}, m));
  }
  Bytes b = head(1, 0);
  tensor(b, "m", {32}, 39, 0).align(32).u8(255).fill(16, 0);
  const GgufSource source(files(in_memory(b)));
  expect_refused(Code::data_loss, {"'m'", "not finite"}, [&] { read_all(source, "m"); });
}

class GgufShards : public testing::Test {
 protected:
  static Bytes shard(uint32_t number, uint32_t count, uint32_t total, std::string_view tensor_name) {
    Bytes b = head(1, 3);
    b.text("split.no").u32(kU32).u32(number).text("split.count").u32(kU32).u32(count).text("split.tensors.count").u32(kU32).u32(total);
    return tensor(b, tensor_name, {2}, kTypeF32, 0).align(32).f32(static_cast<float>(number)).f32(7);
  }
  std::string name(int number, int count = 3) const {
    char text[40];
    std::snprintf(text, sizeof text, "m-%05d-of-%05d.gguf", number, count);
    return text;
  }
  TempFolder folder_;
};

TEST_F(GgufShards, AreOneModel) {
  for (uint32_t i = 0; i < 3; ++i) folder_.write(name(static_cast<int>(i) + 1), shard(i, 3, 3, "t" + std::to_string(i)));
  const ModelFiles model = open_model(folder_.path() + "/" + name(1));
  ASSERT_EQ(model.tensors->tensors().size(), 3u);
  EXPECT_EQ(model.tensors->read_vector("t2"), (std::vector<float>{2, 7}));
  EXPECT_EQ(model.metadata.at("split.count"), 3);
  expect_refused(Code::invalid_argument, {"shard 2 of 3", name(1).c_str()}, [&] { open_model(folder_.path() + "/" + name(2)); });
}

TEST_F(GgufShards, MustBeCompleteAndBelongTogether) {
  folder_.write(name(1), shard(0, 3, 3, "t0"));
  folder_.write(name(3), shard(2, 3, 3, "t2"));
  const auto open = [&] { open_model(folder_.path() + "/" + name(1)); };
  expect_refused(Code::not_found, {"shard 2 of 3", name(2).c_str()}, open);
  folder_.write(name(2), shard(1, 3, 3, "t0"));
  expect_refused(Code::data_loss, {"'t0'", "two shards"}, open);
  folder_.write(name(2), shard(2, 3, 3, "t1"));
  expect_refused(Code::data_loss, {"shard 3 of 3", name(2).c_str()}, open);
  folder_.write(name(2), shard(1, 3, 9, "t1"));
  folder_.write(name(1), shard(0, 3, 9, "t0"));
  expect_refused(Code::data_loss, {"3 tensors", "9"}, open);
  folder_.write("renamed.gguf", shard(0, 3, 3, "t0"));
  expect_refused(Code::data_loss, {"1 of 3"}, [&] { open_model(folder_.path() + "/renamed.gguf"); });
}

}  // namespace
}  // namespace verbund::formats
