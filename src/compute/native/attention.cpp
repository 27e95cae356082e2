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

// How a cache's elements are read, and the factors of its positions (null: 1).
struct HalfCache {
  static constexpr size_t kSize = 2;
  static HWY_INLINE F16x load16(const std::byte* at) { return load_f16(at); }
  static HWY_INLINE const float* key_scales(const KvView&, const std::byte*) { return nullptr; }
  static HWY_INLINE const float* value_scales(const KvView&, const std::byte*) { return nullptr; }
};
struct FloatCache {
  static constexpr size_t kSize = 4;
  static HWY_INLINE F16x load16(const std::byte* at) { return load_f32(at); }
  static HWY_INLINE const float* key_scales(const KvView&, const std::byte*) { return nullptr; }
  static HWY_INLINE const float* value_scales(const KvView&, const std::byte*) { return nullptr; }
};
struct ByteCache {
  static constexpr size_t kSize = 1;
  static HWY_INLINE F16x load16(const std::byte* at) {
    F16x r;
    VERBUND_PARTS(p) {
      const hn::Rebind<int8_t, FloatTag> bytes;
      const auto codes = hn::LoadU(bytes, reinterpret_cast<const int8_t*>(at) + p * kLanes);
      r.v[p] = hn::ConvertTo(FloatTag(), hn::PromoteTo(IntTag(), codes));
    }
    return r;
  }
  static HWY_INLINE const float* key_scales(const KvView& kv, const std::byte* block) {
    return reinterpret_cast<const float*>(block + kv.scales_at);
  }
  static HWY_INLINE const float* value_scales(const KvView& kv, const std::byte* block) { return key_scales(kv, block) + kKvBlock; }
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

// What is in registers at once. Eight sums or more hide the latency of fma; with AVX-512 a dozen queries share each key and
// value that is widened, with half the registers half as wide it is four.
constexpr size_t kQueries = kParts == 1 ? 12 : 4;
constexpr size_t kHalves = kParts == 1 ? 2 : 1;  // groups of 16 positions
constexpr size_t chains_at_once(size_t queries) { return queries == 1 ? 4 : queries == 2 || (kParts == 1 && queries <= 4) ? 2 : 1; }
// Groups of 16 dimensions.
constexpr size_t dimensions_at_once(size_t queries) { return kParts == 1 ? (queries > 6 ? 2 : 4) : kParts == 2 ? 1 : 2; }

// A sequence's KV is read once a step and lies in blocks far apart: while one block is used the next one is asked for.
HWY_INLINE void prefetch_line(const std::byte* at) { __builtin_prefetch(at, 0, 3); }

// Scores of all 32 positions of a block for N queries, unscaled. `queries` is [head_dim][N]. The four chains of LANES4 are run
// some at a time.
template <class Cache, size_t N>
VERBUND_TILE_PART void block_scores(const float* queries, const std::byte* keys, const std::byte* next, size_t head_dim,
                                    float (*scores)[kKvBlock]) {
  constexpr size_t kChains = chains_at_once(N), kRowBytes = kKvBlock * Cache::kSize;
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
          if (half == 0) prefetch_line(next + (d + e) * kRowBytes);
          F16x k[kHalves];
          _Pragma("GCC unroll 2") for (size_t h = 0; h < kHalves; ++h) k[h] =
              Cache::load16(keys + (d + e) * kRowBytes + (half + h) * 16 * Cache::kSize);
          _Pragma("GCC unroll 12") for (size_t i = 0; i < N; ++i) {
            const F16x q = all(queries[(d + e) * N + i]);
            _Pragma("GCC unroll 2") for (size_t h = 0; h < kHalves; ++h) acc[e][i][h] = fma(q, k[h], acc[e][i][h]);
          }
        }
      }
      _Pragma("GCC unroll 4") for (size_t e = 0; e < kChains; ++e) _Pragma("GCC unroll 12") for (size_t i = 0; i < N; ++i)
          _Pragma("GCC unroll 2") for (size_t h = 0; h < kHalves; ++h) chains[c + e][i][h] = acc[e][i][h];
    }
    for (size_t i = 0; i < N; ++i)
      for (size_t h = 0; h < kHalves; ++h)
        store(add(add(chains[0][i][h], chains[2][i][h]), add(chains[1][i][h], chains[3][i][h])), scores[i] + 16 * (half + h));
  }
}

// Scales a block's scores, hides what is not visible and returns the new maximum of the query.
HWY_INLINE float new_maximum(const Running& run, float* scores, float scale, const float* key_scales, BlockRange range) {
  const FloatTag d;
  F16x s[2];
  for (size_t h = 0; h < 2; ++h) {
    const F16x factor = key_scales ? mul(all(scale), load(key_scales + 16 * h)) : all(scale);
    s[h] = mul(factor, load(scores + 16 * h));
    store(s[h], scores + 16 * h);
  }
  if (range.begin > 0 || range.end < kKvBlock) {
    std::fill(scores, scores + range.begin, kMinusInfinity);
    std::fill(scores + range.end, scores + kKvBlock, kMinusInfinity);
    s[0] = load(scores);
    s[1] = load(scores + 16);
  }
  auto largest = hn::Set(d, run.m);
  bool numbers = run.m == run.m;
  VERBUND_PARTS(p) {
    largest = hn::Max(largest, hn::Max(s[0].v[p], s[1].v[p]));
    numbers = numbers && hn::AllTrue(d, hn::And(hn::Eq(s[0].v[p], s[0].v[p]), hn::Eq(s[1].v[p], s[1].v[p])));
  }
  return numbers ? hn::GetLane(hn::MaxOfLanes(d, largest)) : std::numeric_limits<float>::quiet_NaN();
}

// Turns scores into weights p (0 where not visible, also where m is infinite or no number) and adds them up.
HWY_INLINE void to_weights(Running& run, float* scores, float m, float c, BlockRange range) {
  F16x a = exp16(sub(load(scores), all(m))), b = exp16(sub(load(scores + 16), all(m)));
  store(a, scores);
  store(b, scores + 16);
  if (range.begin > 0 || range.end < kKvBlock) {
    std::fill(scores, scores + range.begin, 0.0f);
    std::fill(scores + range.end, scores + kKvBlock, 0.0f);
    a = load(scores);
    b = load(scores + 16);
  }
  run.l = add(add(mul(run.l, all(c)), a), b);
  run.m = m;
}

// o = o * c + sum of p_j v_j, for N queries over positions [begin, end) and M groups of 16 dimensions from d.
template <class Cache, size_t N, size_t M>
VERBUND_TILE_PART void add_values_at(size_t d, const std::byte* values, const std::byte* next, size_t head_dim, size_t padded,
                                     const float (*p)[kKvBlock], const float* c, BlockRange range, float* out) {
  F16x o[N][M];
  _Pragma("GCC unroll 12") for (size_t i = 0; i < N; ++i) _Pragma("GCC unroll 4") for (size_t m = 0; m < M; ++m) o[i][m] =
      mul(load(out + i * padded + d + 16 * m), all(c[i]));
  for (size_t j = range.begin; j < range.end; ++j) {
    const size_t at = (j * head_dim + d) * Cache::kSize;
    prefetch_line(next + at);
    if constexpr (M * 16 * Cache::kSize > 64) prefetch_line(next + at + 64);
    F16x v[M];
    _Pragma("GCC unroll 4") for (size_t m = 0; m < M; ++m) v[m] = Cache::load16(values + at + 16 * m * Cache::kSize);
    _Pragma("GCC unroll 12") for (size_t i = 0; i < N; ++i) {
      const F16x weight = all(p[i][j]);
      _Pragma("GCC unroll 4") for (size_t m = 0; m < M; ++m) o[i][m] = fma(weight, v[m], o[i][m]);
    }
  }
  _Pragma("GCC unroll 12") for (size_t i = 0; i < N; ++i) _Pragma("GCC unroll 4") for (size_t m = 0; m < M; ++m)
      store(o[i][m], out + i * padded + d + 16 * m);
}

template <class Cache, size_t N>
HWY_INLINE void add_values(const std::byte* values, const std::byte* next, size_t head_dim, size_t padded, const float (*p)[kKvBlock],
                           const float* c, BlockRange range, float* out) {
  constexpr size_t kDimensions = dimensions_at_once(N);
  size_t d = 0;
  for (; d + 16 * kDimensions <= padded; d += 16 * kDimensions)
    add_values_at<Cache, N, kDimensions>(d, values, next, head_dim, padded, p, c, range, out);
  for (; d < padded; d += 16) add_values_at<Cache, N, 1>(d, values, next, head_dim, padded, p, c, range, out);
}

HWY_INLINE BlockRange visible(const Running& run, size_t block) {
  const size_t at = block * kKvBlock;
  return {std::max(run.first, at) - at, std::min(run.last + 1, at + kKvBlock) - at};
}
HWY_INLINE bool sees(const Running& run, size_t block) { return run.first < (block + 1) * kKvBlock && run.last >= block * kKvBlock; }

// N queries of a tile, in memory as the kernels want them.
template <size_t N>
struct Group {
  Running runs[N];
  const float* packed;  // [head_dim][N]
  float* out;           // [N][padded]
};

// One block for all queries, each of which sees some of it. Positions that all see are done together; at the edges (causal,
// window) the others one by one, so that a position a query must not see is never multiplied, not even by 0.
template <class Cache, size_t N>
HWY_INLINE void attend_block(const AttendTile& t, Group<N>& g, size_t block, const std::byte* next, size_t padded) {
  alignas(64) float scores[N][kKvBlock];
  alignas(64) float m[16], c[16] = {};  // c: the difference of maxima, then the factor of what was summed before
  BlockRange ranges[N], common{0, kKvBlock};
  const std::byte *keys = t.kv.layer + t.blocks[block] * t.kv.block_bytes, *values = keys + t.kv.values_at;
  block_scores<Cache, N>(g.packed, keys, next, t.kv.head_dim, scores);
  const float *key_scales = Cache::key_scales(t.kv, keys), *value_scales = Cache::value_scales(t.kv, keys);
  for (size_t i = 0; i < N; ++i) {
    ranges[i] = visible(g.runs[i], block);
    common = {std::max(common.begin, ranges[i].begin), std::min(common.end, ranges[i].end)};
    m[i] = new_maximum(g.runs[i], scores[i], t.scale, key_scales, ranges[i]);
    c[i] = g.runs[i].m - m[i];
  }
  store(exp16(load(c)), c);
  for (size_t i = 0; i < N; ++i) {
    if (block == g.runs[i].first / kKvBlock) c[i] = 0;
    to_weights(g.runs[i], scores[i], m[i], c[i], ranges[i]);
    if (value_scales)
      for (size_t j = 0; j < kKvBlock; j += 16) store(mul(load(scores[i] + j), load(value_scales + j)), scores[i] + j);
  }
  common.end = std::max(common.begin, common.end);
  const std::byte* next_values = next + t.kv.values_at;
  const auto alone = [&](size_t i, float factor, BlockRange range) HWY_ATTR {
    add_values<Cache, 1>(values, values, t.kv.head_dim, padded, scores + i, &factor, range, g.out + i * padded);
  };
  for (size_t i = 0; i < N; ++i) {
    if (ranges[i].begin == common.begin) continue;
    alone(i, c[i], {ranges[i].begin, std::min(common.begin, ranges[i].end)});
    c[i] = 1;
  }
  add_values<Cache, N>(values, next_values, t.kv.head_dim, padded, scores, c, common, g.out);
  for (size_t i = 0; i < N; ++i)
    if (ranges[i].end > common.end) alone(i, 1, {std::max(common.end, ranges[i].begin), ranges[i].end});
}

// A block that some of the queries do not see at all.
template <class Cache, size_t N>
HWY_INLINE void attend_block_one_by_one(const AttendTile& t, Group<N>& g, size_t block, size_t padded) {
  for (size_t i = 0; i < N; ++i) {
    if (!sees(g.runs[i], block)) continue;
    float* query = t.scratch + 2 * kTileQueries * padded;
    for (size_t d = 0; d < t.kv.head_dim; ++d) query[d] = g.packed[d * N + i];
    Group<1> one{{g.runs[i]}, query, g.out + i * padded};
    attend_block<Cache, 1>(t, one, block, t.kv.layer + t.blocks[block] * t.kv.block_bytes, padded);
    g.runs[i] = one.runs[0];
  }
}

// A partition's sums in memory (kernels.h).
HWY_INLINE void save_part(const Running& run, const float* o, size_t padded, float* part) {
  part[0] = run.m;
  part[1] = run.first <= run.last ? 1.0f : 0.0f;
  store(run.l, part + 16);
  std::copy(o, o + padded, part + 32);
}

HWY_INLINE void merge_part(float* sums, const float* next, size_t padded) {
  if (next[1] == 0) return;
  if (sums[1] == 0) {
    std::copy(next, next + 32 + padded, sums);
    return;
  }
  const bool numbers = sums[0] == sums[0] && next[0] == next[0];
  const float m = numbers ? std::max(sums[0], next[0]) : std::numeric_limits<float>::quiet_NaN();
  alignas(64) float factors[16] = {sums[0] - m, next[0] - m};
  store(exp16(load(factors)), factors);
  const F16x a = all(factors[0]), b = all(factors[1]);
  for (size_t i = 16; i < 32 + padded; i += 16) store(fma(load(next + i), b, mul(load(sums + i), a)), sums + i);
  sums[0] = m;
}

HWY_INLINE void finish(const F16x& l, float* o, size_t head_dim, float* out) {
  const F16x sum = all(fold16(l));
  for (size_t d = 0; d < head_dim; d += 16) store(div(load(o + d), sum), o + d);
  std::copy(o, o + head_dim, out);
}

void merge_partitions(float* parts, size_t count, size_t head_dim, float* out) {
  const size_t step = partition_floats(head_dim);
  for (size_t p = 1; p < count; ++p) merge_part(parts, parts + p * step, round_up(head_dim, 16));
  finish(load(parts + 16), parts + 32, head_dim, out);
}

// Sums one partition for N queries, some of which may see nothing of it.
template <class Cache, size_t N>
HWY_NOINLINE void attend_partition(const AttendTile& t, Group<N>& g, size_t first, size_t partition, size_t padded) {
  const size_t at = partition * kKvPartition, end = at + kKvPartition - 1;
  for (size_t i = 0; i < N; ++i) {
    const size_t position = t.positions[first + i];
    g.runs[i].m = kMinusInfinity;
    g.runs[i].l = zero16();
    g.runs[i].first = std::max(at, t.window == 0 || position < t.window ? 0 : position - t.window + 1);
    g.runs[i].last = std::min(end, position);
  }
  std::fill(g.out, g.out + N * padded, 0.0f);
  const size_t last = g.runs[N - 1].last / kKvBlock, beyond = t.positions[first + N - 1] / kKvBlock;
  for (size_t block = g.runs[0].first / kKvBlock; block <= last; ++block) {
    bool all_see = true;
    for (const Running& run : g.runs) all_see = all_see && sees(run, block);
    const std::byte* next = t.kv.layer + t.blocks[std::min(block + 1, beyond)] * t.kv.block_bytes;
    if (all_see)
      attend_block<Cache, N>(t, g, block, next, padded);
    else
      attend_block_one_by_one<Cache, N>(t, g, block, padded);
  }
}

template <class Cache, size_t N>
HWY_NOINLINE void attend_queries(const AttendTile& t, size_t first) {
  const size_t padded = round_up(t.kv.head_dim, 16), part_floats = partition_floats(t.kv.head_dim);
  float* packed = t.scratch + kTileQueries * padded;
  Group<N> g{{}, packed, t.scratch};
  for (size_t i = 0; i < N; ++i)
    for (size_t d = 0; d < t.kv.head_dim; ++d) packed[d * N + i] = t.queries[first + i][d];
  if (t.partition != kAllPartitions) {
    attend_partition<Cache, N>(t, g, first, t.partition, padded);
    for (size_t i = 0; i < N; ++i) save_part(g.runs[i], g.out + i * padded, padded, t.parts[first + i]);
    return;
  }
  const size_t oldest = t.positions[first], last = t.positions[first + N - 1] / kKvPartition;
  size_t partition = (t.window == 0 || oldest < t.window ? 0 : oldest - t.window + 1) / kKvPartition;
  attend_partition<Cache, N>(t, g, first, partition, padded);
  if (partition == last) {
    for (size_t i = 0; i < N; ++i) finish(g.runs[i].l, g.out + i * padded, t.kv.head_dim, t.out[first + i]);
    return;
  }
  float *sums = t.scratch + (2 * kTileQueries + 1) * padded, *part = sums + kTileQueries * part_floats;
  for (size_t i = 0; i < N; ++i) save_part(g.runs[i], g.out + i * padded, padded, sums + i * part_floats);
  while (++partition <= last) {
    attend_partition<Cache, N>(t, g, first, partition, padded);
    for (size_t i = 0; i < N; ++i) {
      save_part(g.runs[i], g.out + i * padded, padded, part);
      merge_part(sums + i * part_floats, part, padded);
    }
  }
  for (size_t i = 0; i < N; ++i) finish(load(sums + i * part_floats + 16), sums + i * part_floats + 32, t.kv.head_dim, t.out[first + i]);
}

// The tile's queries in groups of the sizes that are compiled, largest first.
template <class Cache>
HWY_INLINE void attend_with(const AttendTile& t) {
  static_assert(kTileQueries % kQueries == 0);
  size_t i = 0;
  if constexpr (kQueries == 12) {
    for (; i + 12 <= t.count; i += 12) attend_queries<Cache, 12>(t, i);
    for (; i + 8 <= t.count; i += 8) attend_queries<Cache, 8>(t, i);
    for (; i + 6 <= t.count; i += 6) attend_queries<Cache, 6>(t, i);
  }
  for (; i + 4 <= t.count; i += 4) attend_queries<Cache, 4>(t, i);
  for (; i + 3 <= t.count; i += 3) attend_queries<Cache, 3>(t, i);
  for (; i + 2 <= t.count; i += 2) attend_queries<Cache, 2>(t, i);
  for (; i < t.count; ++i) attend_queries<Cache, 1>(t, i);
}

void attend(const AttendTile& tile) {
  switch (tile.kv.type) {
    case KvType::f16: return attend_with<HalfCache>(tile);
    case KvType::f32: return attend_with<FloatCache>(tile);
    case KvType::q8: return attend_with<ByteCache>(tile);
  }
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

// Codes and scale of one position's vector, numerics.h point 2 with one block of head_dim; codes `step` apart.
HWY_INLINE float to_codes(const float* from, size_t n, int8_t* to, size_t step) {
  const IntTag d;
  alignas(64) float in[16];
  alignas(64) int32_t out[16];
  auto largest = hn::Zero(d);
  for (size_t i = 0; i < n; i += 16) {
    std::fill(std::copy(from + i, from + std::min(i + 16, n), in), in + 16, 0.0f);
    VERBUND_PARTS(p)
    largest = hn::Max(largest, hn::And(hn::BitCast(d, hn::Load(FloatTag(), in + p * kLanes)), hn::Set(d, 0x7fffffff)));
  }
  const CodeScale scale = code_scale(static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(d, largest))));
  for (size_t i = 0; i < n; i += 16) {
    const size_t count = std::min<size_t>(16, n - i);
    if (scale.factor == 0) {
      for (size_t k = 0; k < count; ++k) to[(i + k) * step] = 0;
      continue;
    }
    std::fill(std::copy(from + i, from + i + count, in), in + 16, 0.0f);
    VERBUND_PARTS(p)
    hn::Store(hn::NearestInt(hn::Mul(hn::Load(FloatTag(), in + p * kLanes), hn::Set(FloatTag(), scale.factor))), d, out + p * kLanes);
    for (size_t k = 0; k < count; ++k) to[(i + k) * step] = static_cast<int8_t>(out[k]);
  }
  return scale.scale;
}

void store_kv(const float* key, const float* value, std::byte* block_keys, const KvView& kv, size_t slot) {
  const size_t n = kv.head_dim;
  if (kv.type == KvType::q8) {
    auto* scales = reinterpret_cast<float*>(block_keys + kv.scales_at);
    scales[slot] = to_codes(key, n, reinterpret_cast<int8_t*>(block_keys) + slot, kKvBlock);
    scales[kKvBlock + slot] = to_codes(value, n, reinterpret_cast<int8_t*>(block_keys + kv.values_at) + slot * n, 1);
    return;
  }
  if (kv.type == KvType::f32) {
    auto* keys = reinterpret_cast<float*>(block_keys);
    for (size_t d = 0; d < n; ++d) keys[d * kKvBlock + slot] = key[d];
    std::copy(value, value + n, reinterpret_cast<float*>(block_keys + kv.values_at) + slot * n);
    return;
  }
  auto* keys = reinterpret_cast<uint16_t*>(block_keys);
  for (size_t d = 0; d < n; d += 16) {
    alignas(64) uint16_t part[16];
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
  kernels.merge_partitions = VERBUND_PICK(isa, merge_partitions);
  kernels.store_kv = VERBUND_PICK(isa, store_kv);
}

}  // namespace verbund::compute::native
#endif
