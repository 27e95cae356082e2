#include "formats/weight.h"

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "formats/codes.h"
#include "support.h"

namespace verbund::formats {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(Half, EveryF16SurvivesTheWayThroughF32) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const auto bits = static_cast<uint16_t>(h);
    const float v = f16_to_f32(bits);
    if (std::isnan(v))
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(v))));
    else
      ASSERT_EQ(f32_to_f16(v), bits);
  }
}

TEST(Half, KnownValues) {
  EXPECT_EQ(f16_to_f32(0x3c00), 1.f);
  EXPECT_EQ(f16_to_f32(0xc000), -2.f);
  EXPECT_EQ(f16_to_f32(0x7bff), 65504.f);
  EXPECT_EQ(f16_to_f32(0x0001), 0x1p-24f);
  EXPECT_EQ(f16_to_f32(0x03ff), 1023 * 0x1p-24f);
  EXPECT_EQ(f16_to_f32(0xfc00), -kInf);
  EXPECT_EQ(f32_to_f16(65519.996f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.f), 0x7c00);
  EXPECT_EQ(f32_to_f16(0x1p-25f), 0x0000);  // tie to even
  EXPECT_EQ(f32_to_f16(std::nextafter(0x1p-25f, 1.f)), 0x0001);
  EXPECT_EQ(f32_to_f16(-0.f), 0x8000);
  EXPECT_EQ(f32_to_f16(1.f + 0x1p-11f), 0x3c00);      // tie to even, down
  EXPECT_EQ(f32_to_f16(1.f + 3 * 0x1p-11f), 0x3c02);  // tie to even, up
}

// Nearest, ties to even, decided in f64 where both differences are exact.
void expect_nearest(float v, uint16_t got, float (*widen)(uint16_t)) {
  const auto magnitude = static_cast<uint16_t>(got & 0x7fff);
  const double target = std::abs(double(v)), mine = widen(magnitude), error = std::abs(mine - target);
  ASSERT_EQ(got >> 15, std::signbit(v));
  for (const int step : {-1, 1}) {
    const int other = magnitude + step;
    if (other < 0) continue;
    const double distance = std::abs(double(widen(static_cast<uint16_t>(other))) - target);
    ASSERT_TRUE(error < distance || (error == distance && magnitude % 2 == 0)) << v;
  }
}

TEST(Half, RoundsToNearestEven) {
  std::mt19937 random(3);
  for (int i = 0; i < 300000; ++i) {
    const float v = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isnan(v)) continue;
    if (std::abs(v) < 65504.f) expect_nearest(v, f32_to_f16(v), f16_to_f32);
    if (std::abs(v) < 3e38f) expect_nearest(v, f32_to_bf16(v), bf16_to_f32);
    const float small = static_cast<float>(random()) * 0x1p-50f;  // around and below the subnormals
    expect_nearest(small, f32_to_f16(small), f16_to_f32);
    const float tie = std::bit_cast<float>((static_cast<uint32_t>(random()) & 0x7fffe000u) | 0x1000u);  // halfway for f16
    if (tie < 65504.f) expect_nearest(tie, f32_to_f16(tie), f16_to_f32);
  }
}

TEST(Half, Bf16EndsOfTheRange) {
  EXPECT_EQ(f32_to_bf16(kInf), 0x7f80);
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(f32_to_bf16(1.f), 0x3f80);
  EXPECT_EQ(f32_to_bf16(1.f + 0x1p-8f), 0x3f80);
  EXPECT_EQ(f32_to_bf16(1.f + 3 * 0x1p-8f), 0x3f82);
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(NAN))));
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7f800001u)))));
}

TEST(Codes, AreALittleEndianBitStream) {
  std::mt19937 random(4);
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    std::vector<uint8_t> codes(64), back(64);
    for (uint8_t& c : codes) c = static_cast<uint8_t>(random() & ((1u << bits) - 1));
    std::vector<std::byte> packed(static_cast<size_t>(8 * bits));
    pack_codes(codes.data(), codes.size(), bits, packed.data());
    unpack_codes(packed.data(), codes.size(), bits, back.data());
    EXPECT_EQ(codes, back);
    for (size_t j = 0; j < codes.size(); ++j)
      for (size_t b = 0; b < static_cast<size_t>(bits); ++b) {
        const size_t at = j * static_cast<size_t>(bits) + b;
        ASSERT_EQ(std::to_integer<int>(packed[at / 8]) >> (at % 8) & 1, codes[j] >> b & 1);
      }
  }
}

TEST(WeightFormat, CountsBytes) {
  const WeightFormat dense{Coding::dense, DType::bf16, 0, 0, {}}, affine{Coding::affine, DType::f32, 3, 64, {}},
      symmetric{Coding::affine, DType::f16, 8, 32, 128}, mxfp4{Coding::mxfp4, DType::f32, 4, 32, {}};
  EXPECT_EQ(dense.bytes(3, 7), 42u);
  EXPECT_EQ(affine.bytes(2, 128), 2u * (48 + 2 * 2 * 4));
  EXPECT_EQ(symmetric.bytes(2, 64), 2u * (64 + 2 * 2));
  EXPECT_EQ(mxfp4.bytes(2, 64), 2u * (32 + 2));
  EXPECT_EQ(affine.name(), "affine3 g64");
  EXPECT_EQ(dense.name(), "bf16");
  EXPECT_EQ(mxfp4.name(), "mxfp4");
}

TEST(Dequantise, AffineIsOneFusedOperation) {
  WeightMatrix m;
  m.resize({Coding::affine, DType::f32, 8, 32, {}}, 1, 32);
  // scale * 255 needs 32 bits: rounding it before the sum would lose the difference to the bias.
  const float scale = 1.f + 0x1p-23f, bias = -255.f;
  std::memcpy(m.scales.data(), &scale, 4);
  std::memcpy(m.biases.data(), &bias, 4);
  for (size_t i = 0; i < 32; ++i) m.codes[i] = std::byte(255);
  EXPECT_EQ(dequantise(m)[5], 255 * 0x1p-23f);
}

TEST(Dequantise, SymmetricSubtractsZeroBeforeScaling) {
  WeightMatrix m;
  m.resize({Coding::affine, DType::f16, 4, 32, 8}, 2, 32);
  EXPECT_TRUE(m.biases.empty());
  const uint16_t scale = f32_to_f16(0.25f);
  std::memcpy(m.scales.data() + 2, &scale, 2);
  m.codes[16] = std::byte(0xf0);  // row 1: element 0 is 0, element 1 is 15
  float row[32];
  dequantise_row(m, 1, row);
  EXPECT_EQ(row[0], -2.f);
  EXPECT_EQ(row[1], 1.75f);
}

TEST(Dequantise, Mxfp4HasLowNibbleFirst) {
  WeightMatrix m;
  m.resize({Coding::mxfp4, DType::f32, 4, 32, {}}, 1, 32);
  m.scales[0] = std::byte(128);
  m.codes[0] = std::byte(0xd7);  // 6, -3
  float row[32];
  dequantise_row(m, 0, row);
  EXPECT_EQ(row[0], 12.f);
  EXPECT_EQ(row[1], -6.f);
  m.scales[0] = std::byte(0);  // 2^-127, a subnormal
  dequantise_row(m, 0, row);
  EXPECT_EQ(row[0], 6 * 0x1p-127f);
}

TEST(WeightMatrix, ResizeKeepsItsBuffers) {
  WeightMatrix m;
  const WeightFormat format{Coding::affine, DType::f32, 4, 32, {}};
  m.resize(format, 8, 64);
  const std::byte* before = m.codes.data();
  m.resize(m.format, 4, 64);
  EXPECT_EQ(m.codes.data(), before);
  EXPECT_EQ(m.codes.size(), 4u * 32);
}

}  // namespace
}  // namespace verbund::formats
