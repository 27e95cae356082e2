#include <array>
#include <cstring>

#include "roof.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace verbund::bench {
namespace {

constexpr int kTurns = 20'000;  // of a loop below: tens of microseconds

#if defined(__x86_64__)
#define VERBUND_TARGET(isa) __attribute__((target(isa)))
// Makes the compiler believe that a register has changed, so that a product is not computed once for all turns.
#define VERBUND_TOUCH(x) asm volatile("" : "+v"(x))
// All sums begin alike, and the compiler would compute one for all of them if it knew.
#define VERBUND_TELL_APART(sums) \
  for (auto& sum : sums) asm volatile("" : "+x"(sum))

constexpr int kChains = 12;  // independent sums: more than latency times throughput of any of these instructions

VERBUND_TARGET("avx2,fma") void int8_avx2(unsigned) {
  __m256i sums[kChains] = {}, a = _mm256_set1_epi8(1), b = _mm256_set1_epi8(1);
  const __m256i ones = _mm256_set1_epi16(1);
  VERBUND_TELL_APART(sums);
  for (int i = 0; i < kTurns; ++i) {
#pragma GCC unroll 12
    for (__m256i& sum : sums) {
      asm volatile("" : "+x"(a));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones));
    }
  }
  asm volatile("" ::"r"(sums) : "memory");
}

VERBUND_TARGET("avx512f,avx512bw,avx512vnni") void int8_avx512(unsigned) {
  __m512i sums[kChains] = {}, a = _mm512_set1_epi8(1), b = _mm512_set1_epi8(1);
  VERBUND_TELL_APART(sums);
  for (int i = 0; i < kTurns; ++i) {
    VERBUND_TOUCH(a);
#pragma GCC unroll 12
    for (__m512i& sum : sums) sum = _mm512_dpbusd_epi32(sum, a, b);
  }
  asm volatile("" ::"r"(sums) : "memory");
}

VERBUND_TARGET("avx512f,avx512bf16") void bf16_avx512(unsigned) {
  __m512 sums[kChains] = {};
  __m512i ones = _mm512_set1_epi16(0x3f80);
  VERBUND_TELL_APART(sums);
  for (int i = 0; i < kTurns; ++i) {
    VERBUND_TOUCH(ones);
#pragma GCC unroll 12
    for (__m512& sum : sums) sum = _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(ones), reinterpret_cast<__m512bh>(ones));
  }
  asm volatile("" ::"r"(sums) : "memory");
}

VERBUND_TARGET("avx2,fma") void f32_avx2(unsigned) {
  __m256 sums[kChains] = {}, a = _mm256_set1_ps(1e-3f);
  VERBUND_TELL_APART(sums);
  for (int i = 0; i < kTurns; ++i) {
    asm volatile("" : "+x"(a));
#pragma GCC unroll 12
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(a, a, sum);
  }
  asm volatile("" ::"r"(sums) : "memory");
}

VERBUND_TARGET("avx512f") void f32_avx512(unsigned) {
  __m512 sums[kChains] = {}, a = _mm512_set1_ps(1e-3f);
  VERBUND_TELL_APART(sums);
  for (int i = 0; i < kTurns; ++i) {
    VERBUND_TOUCH(a);
#pragma GCC unroll 12
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(a, a, sum);
  }
  asm volatile("" ::"r"(sums) : "memory");
}

constexpr double vector_units(int lanes) { return double(kTurns) * kChains * lanes; }
#endif

#if defined(__x86_64__) && defined(__linux__)
// Tiles 0-3: sums; 4, 5: rows of A; 6, 7: columns of B. All of 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

constexpr int kBlocks = 8;  // 64-byte steps of K: 16 KiB of A and 16 KiB of B stay in the first-level cache
constexpr int kTileTurns = kTurns / 400;
struct alignas(64) TileOperands {
  std::byte a[2 * kBlocks][1024], b[2 * kBlocks][1024];
};

// Each turn: two tiles of A and two of B are loaded, four products use each of them twice.
#define VERBUND_TILE_LOOP(multiply)                                                    \
  static const TileOperands operands{};                                                \
  const TileConfig config;                                                             \
  asm volatile("" ::"r"(&config) : "memory"); /* g++ 12 sees 8 of its 64 bytes read */ \
  _tile_loadconfig(&config);                                                           \
  _tile_zero(0);                                                                       \
  _tile_zero(1);                                                                       \
  _tile_zero(2);                                                                       \
  _tile_zero(3);                                                                       \
  for (int i = 0; i < kTileTurns; ++i)                                                 \
    for (int k = 0; k < 2 * kBlocks; k += 2) {                                         \
      _tile_loadd(4, operands.a[k], 64);                                               \
      _tile_loadd(6, operands.b[k], 64);                                               \
      multiply(0, 4, 6);                                                               \
      _tile_loadd(7, operands.b[k + 1], 64);                                           \
      multiply(1, 4, 7);                                                               \
      _tile_loadd(5, operands.a[k + 1], 64);                                           \
      multiply(2, 5, 6);                                                               \
      multiply(3, 5, 7);                                                               \
    }                                                                                  \
  _tile_release()

VERBUND_TARGET("amx-tile,amx-int8") void int8_amx(unsigned) { VERBUND_TILE_LOOP(_tile_dpbssd); }
VERBUND_TARGET("amx-tile,amx-bf16") void bf16_amx(unsigned) { VERBUND_TILE_LOOP(_tile_dpbf16ps); }

constexpr double tile_units(int elements_per_row) { return double(kTileTurns) * kBlocks * 4 * 16 * 16 * elements_per_row; }

struct TileFeatures {
  bool tile = false, int8 = false, bf16 = false;
};
TileFeatures tile_features() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return {};
  return {(d >> 24 & 1) != 0, (d >> 25 & 1) != 0, (d >> 22 & 1) != 0};
}
#endif

void add(std::vector<Peak>& list, Peak peak, unsigned threads, double seconds, double units, void (*call)(unsigned)) {
  if (peak.available) peak.per_s = best_rate(threads, seconds, units, call);
  list.push_back(std::move(peak));
}

}  // namespace

bool request_tiles() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return tile_features().tile && ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

std::vector<Peak> peaks(unsigned threads, double seconds) {
  std::vector<Peak> list;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool vnni = __builtin_cpu_supports("avx512vnni"), bf16 = __builtin_cpu_supports("avx512bf16");
  add(list, {"int8 AVX2", "vpmaddubsw, vpmaddwd, vpaddd", "avx2", avx2}, threads, seconds, vector_units(32), int8_avx2);
  add(list, {"int8 AVX-512", "vpdpbusd", "avx512", vnni}, threads, seconds, vector_units(64), int8_avx512);
#if defined(__linux__)
  const TileFeatures tiles = request_tiles() ? tile_features() : TileFeatures{};
  add(list, {"int8 AMX", "tdpbssd, 2x2 tiles", "amx", tiles.int8}, threads, seconds, tile_units(64), int8_amx);
  add(list, {"bf16 AMX", "tdpbf16ps, 2x2 tiles", "", tiles.bf16}, threads, seconds, tile_units(32), bf16_amx);
#endif
  add(list, {"bf16 AVX-512", "vdpbf16ps", "", bf16}, threads, seconds, vector_units(32), bf16_avx512);
  add(list, {"f32 AVX2", "vfmadd231ps", "avx2", avx2}, threads, seconds, vector_units(8), f32_avx2);
  add(list, {"f32 AVX-512", "vfmadd231ps", "avx512", bool(__builtin_cpu_supports("avx512f"))}, threads, seconds, vector_units(16),
      f32_avx512);
#endif
  return list;
}

}  // namespace verbund::bench
