// Attention over paged KV (numerics.h point 8).
//
// Keys lie [head_dim][32 positions], so that a lane is a position: scores need no sum across lanes, and exp runs over
// whole registers. Values lie [32 positions][head_dim]: there a lane is a dimension of the output. Both are streamed once
// for all queries of a tile (the query heads of a group and neighbouring rows).
#include <algorithm>
#include <bit>
#include <limits>

#include "compute/native/kernels.h"
#include "compute/numerics.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/native/attention.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "compute/native/vec16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace verbund::compute::native {
namespace HWY_NAMESPACE {
#if VERBUND_SIMD

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

struct HalfCache {
  static constexpr size_t kSize = 2;
  static HWY_INLINE F16x load16(const std::byte* at) { return load_f16(at); }
};
struct FloatCache {
  static constexpr size_t kSize = 4;
  static HWY_INLINE F16x load16(const std::byte* at) { return load_f32(at); }
};

// Online softmax of one query.
struct Running {
  float m = kMinusInfinity;
  F16x l;
  size_t first = 0, last = 0;  // visible positions, inclusive
};

struct BlockRange {
  size_t begin, end;  // visible positions in the block
};

// How much of a block is in registers at once. Eight sums or more hide the latency of fma; what does not fit spills.
constexpr size_t kHalves = kParts == 1 ? 2 : 1;  // groups of 16 positions
constexpr size_t chains_at_once(size_t queries) { return queries == 1 ? 4 : queries == 2 || kParts == 1 ? 2 : 1; }
constexpr size_t kDimensions = kParts == 1 ? 4 : kParts == 2 ? 1 : 2;  // groups of 16 dimensions

// Scores of all 32 positions of a block for N queries, unscaled. The four chains of LANES4 are run some at a time.
template <class Cache, size_t N>
HWY_INLINE void block_scores(const float* const* queries, const std::byte* keys, size_t head_dim, float (*scores)[kKvBlock]) {
  constexpr size_t kChains = chains_at_once(N);
  for (size_t half = 0; half < 2; half += kHalves) {
    F16x chains[4][N][kHalves];
    for (size_t c = 0; c < 4; c += kChains) {
      F16x acc[kChains][N][kHalves];
      for (auto& chain : acc)
        for (auto& query : chain)
          for (F16x& sum : query) sum = zero16();
      for (size_t d = c; d < head_dim; d += 4) {
        _Pragma("GCC unroll 4") for (size_t e = 0; e < kChains; ++e) {
          if (d + e >= head_dim) break;
          F16x k[kHalves];
          _Pragma("GCC unroll 2") for (size_t h = 0; h < kHalves; ++h) k[h] =
              Cache::load16(keys + ((d + e) * kKvBlock + (half + h) * 16) * Cache::kSize);
          _Pragma("GCC unroll 4") for (size_t i = 0; i < N; ++i) {
            const F16x q = all(queries[i][d + e]);
            _Pragma("GCC unroll 2") for (size_t h = 0; h < kHalves; ++h) acc[e][i][h] = fma(q, k[h], acc[e][i][h]);
          }
        }
      }
      for (size_t e = 0; e < kChains; ++e)
        for (size_t i = 0; i < N; ++i)
          for (size_t h = 0; h < kHalves; ++h) chains[c + e][i][h] = acc[e][i][h];
    }
    for (size_t i = 0; i < N; ++i)
      for (size_t h = 0; h < kHalves; ++h)
        store(add(add(chains[0][i][h], chains[2][i][h]), add(chains[1][i][h], chains[3][i][h])), scores[i] + 16 * (half + h));
  }
}

// Turns a block's scores into weights p (0 where not visible) and returns c, the factor of what was summed before.
HWY_INLINE float softmax_step(Running& run, float* scores, float scale, size_t begin, size_t end, bool first_block) {
  const FloatTag d;
  const F16x lo = mul(load(scores), all(scale)), hi = mul(load(scores + 16), all(scale));
  store(lo, scores);
  store(hi, scores + 16);
  std::fill(scores, scores + begin, kMinusInfinity);
  std::fill(scores + end, scores + kKvBlock, kMinusInfinity);
  const F16x a = load(scores), b = load(scores + 16);
  auto largest = hn::Set(d, run.m);
  bool numbers = run.m == run.m;
  VERBUND_PARTS(p) {
    largest = hn::Max(largest, hn::Max(a.v[p], b.v[p]));
    numbers = numbers && hn::AllTrue(d, hn::And(hn::Eq(a.v[p], a.v[p]), hn::Eq(b.v[p], b.v[p])));
  }
  const float m = numbers ? hn::GetLane(hn::MaxOfLanes(d, largest)) : std::numeric_limits<float>::quiet_NaN();
  const float c = first_block ? 0.0f : exp_f32_inline(run.m - m);
  const F16x pa = exp16(sub(a, all(m))), pb = exp16(sub(b, all(m)));
  store(pa, scores);
  store(pb, scores + 16);
  if (begin > 0) std::fill(scores, scores + begin, 0.0f);  // also where m is infinite or no number
  if (end < kKvBlock) std::fill(scores + end, scores + kKvBlock, 0.0f);
  run.l = add(add(mul(run.l, all(c)), load(scores)), load(scores + 16));
  run.m = m;
  return c;
}

// o = o * c + sum of p_j v_j, for N queries over positions [begin, end) and M groups of 16 dimensions from d.
template <class Cache, size_t N, size_t M>
HWY_INLINE void add_values_at(size_t d, const std::byte* values, size_t head_dim, size_t padded, const float (*p)[kKvBlock], const float* c,
                              BlockRange range, float* out) {
  F16x o[N][M];
  for (size_t i = 0; i < N; ++i)
    for (size_t m = 0; m < M; ++m) o[i][m] = mul(load(out + i * padded + d + 16 * m), all(c[i]));
  for (size_t j = range.begin; j < range.end; ++j) {
    F16x v[M];
    _Pragma("GCC unroll 4") for (size_t m = 0; m < M; ++m) v[m] = Cache::load16(values + (j * head_dim + d + 16 * m) * Cache::kSize);
    _Pragma("GCC unroll 4") for (size_t i = 0; i < N; ++i) {
      const F16x weight = all(p[i][j]);
      _Pragma("GCC unroll 4") for (size_t m = 0; m < M; ++m) o[i][m] = fma(weight, v[m], o[i][m]);
    }
  }
  for (size_t i = 0; i < N; ++i)
    for (size_t m = 0; m < M; ++m) store(o[i][m], out + i * padded + d + 16 * m);
}

template <class Cache, size_t N>
HWY_INLINE void add_values(const std::byte* values, size_t head_dim, size_t padded, const float (*p)[kKvBlock], const float* c,
                           BlockRange range, float* out) {
  size_t d = 0;
  for (; d + 16 * kDimensions <= padded; d += 16 * kDimensions)
    add_values_at<Cache, N, kDimensions>(d, values, head_dim, padded, p, c, range, out);
  for (; d < padded; d += 16) add_values_at<Cache, N, 1>(d, values, head_dim, padded, p, c, range, out);
}

HWY_INLINE BlockRange visible(const Running& run, size_t block) {
  const size_t at = block * kKvBlock;
  return {std::max(run.first, at) - at, std::min(run.last + 1, at + kKvBlock) - at};
}

template <class Cache, size_t N>
HWY_INLINE void attend_block(const AttendTile& t, size_t first_query, Running* runs, size_t block, size_t padded) {
  alignas(64) float scores[N][kKvBlock];
  float c[N];
  const std::byte* keys = t.kv.layer + t.blocks[block] * t.kv.block_bytes;
  block_scores<Cache, N>(t.queries + first_query, keys, t.kv.head_dim, scores);
  BlockRange range{0, kKvBlock};
  for (size_t i = 0; i < N; ++i) {
    Running& run = runs[first_query + i];
    range = visible(run, block);
    c[i] = softmax_step(run, scores[i], t.scale, range.begin, range.end, block == run.first / kKvBlock);
  }
  add_values<Cache, N>(keys + t.kv.values_at, t.kv.head_dim, padded, scores, c, range, t.scratch + first_query * padded);
}

// A block that every query of the tile sees in the same range is done together; at the edges (causal, window) one by one,
// so that a position a query must not see is never multiplied, not even by 0.
template <class Cache, size_t N>
HWY_INLINE void attend_queries(const AttendTile& t) {
  const size_t padded = round_up(t.kv.head_dim, 16);
  Running runs[N];
  for (size_t i = 0; i < N; ++i) {
    runs[i].l = zero16();
    runs[i].last = t.positions[i];
    runs[i].first = t.window == 0 || runs[i].last < t.window ? 0 : runs[i].last - t.window + 1;
  }
  std::fill(t.scratch, t.scratch + N * padded, 0.0f);
  for (size_t block = runs[0].first / kKvBlock; block <= runs[N - 1].last / kKvBlock; ++block) {
    const size_t begin = block * kKvBlock, end = begin + kKvBlock;
    bool all_whole = true, all_same = true;
    for (size_t i = 0; i < N; ++i) {
      all_whole = all_whole && runs[i].first <= begin && runs[i].last + 1 >= end;
      all_same = all_same && runs[i].first == runs[0].first && runs[i].last == runs[0].last;
    }
    if (all_whole || all_same) {
      attend_block<Cache, N>(t, 0, runs, block, padded);
      continue;
    }
    for (size_t i = 0; i < N; ++i)
      if (runs[i].first < end && runs[i].last >= begin) attend_block<Cache, 1>(t, i, runs, block, padded);
  }
  for (size_t i = 0; i < N; ++i) {
    const F16x sum = all(fold16(runs[i].l));
    float* o = t.scratch + i * padded;
    for (size_t d = 0; d < padded; d += 16) store(div(load(o + d), sum), o + d);
    std::copy(o, o + t.kv.head_dim, t.out[i]);
  }
}

template <class Cache>
HWY_INLINE void attend_with(const AttendTile& t) {
  static_assert(kTileQueries == 4);
  switch (t.count) {
    case 1: return attend_queries<Cache, 1>(t);
    case 2: return attend_queries<Cache, 2>(t);
    case 3: return attend_queries<Cache, 3>(t);
    case 4: return attend_queries<Cache, 4>(t);
    default: return;
  }
}

void attend(const AttendTile& tile) {
  if (tile.kv.type == KvType::f16)
    attend_with<HalfCache>(tile);
  else
    attend_with<FloatCache>(tile);
}

HWY_INLINE void to_half(const float* from, size_t n, uint16_t* to) {
  const hn::Rebind<hwy::float16_t, FloatTag> half;
  alignas(64) float in[16];
  alignas(64) uint16_t out[16];
  for (size_t i = 0; i < n; i += 16) {
    const size_t count = std::min<size_t>(16, n - i);
    std::fill(std::copy(from + i, from + i + count, in), in + 16, 0.0f);
    VERBUND_PARTS(p)
    hn::StoreU(hn::DemoteTo(half, hn::Load(FloatTag(), in + p * kLanes)), half, reinterpret_cast<hwy::float16_t*>(out) + p * kLanes);
    std::copy(out, out + count, to + i);
  }
}

void store_kv(const float* key, const float* value, std::byte* block_keys, const KvView& kv, size_t slot) {
  const size_t n = kv.head_dim;
  if (kv.type == KvType::f32) {
    auto* keys = reinterpret_cast<float*>(block_keys);
    for (size_t d = 0; d < n; ++d) keys[d * kKvBlock + slot] = key[d];
    std::copy(value, value + n, reinterpret_cast<float*>(block_keys + kv.values_at) + slot * n);
    return;
  }
  auto* keys = reinterpret_cast<uint16_t*>(block_keys);
  for (size_t d = 0; d < n; d += 16) {
    uint16_t part[16];
    const size_t count = std::min<size_t>(16, n - d);
    to_half(key + d, count, part);
    for (size_t i = 0; i < count; ++i) keys[(d + i) * kKvBlock + slot] = part[i];
  }
  to_half(value, n, reinterpret_cast<uint16_t*>(block_keys + kv.values_at) + slot * n);
}

#endif  // VERBUND_SIMD
}  // namespace HWY_NAMESPACE
}  // namespace verbund::compute::native
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "compute/native/dispatch.h"

namespace verbund::compute::native {

void fill_attention(Kernels& kernels, Isa isa) {
  kernels.attend = VERBUND_PICK(isa, attend);
  kernels.store_kv = VERBUND_PICK(isa, store_kv);
}

}  // namespace verbund::compute::native
#endif
