// Attention over paged KV (numerics.h point 8).
//
// A tile holds the queries of one segment that read the same KV head: the query heads of a group and neighbouring rows. Few
// queries (decode) stream keys and values from the cache, converted in registers. Many (prefill) widen a block once to
// f32 in L1 and then run register tiles of kGroup queries over it.
#include "compute/numerics.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compute/native/attention.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "compute/native/kv-inl.h"

HWY_BEFORE_NAMESPACE();
namespace verbund::compute::native {
namespace HWY_NAMESPACE {
#if VERBUND_SIMD

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

constexpr size_t kGroup = 6;         // queries in a register tile
constexpr size_t kStreamed = 4;      // up to as many queries: no widening
constexpr size_t kBlocksAhead = 2;   // how far prefetching of a stream runs ahead
constexpr size_t kBlocksPerPartition = kKvPartition / kKvBlock;

// How much of a block is in registers at once: enough sums to hide the latency of fma, few enough not to spill.
constexpr size_t kHalves = kParts == 1 ? 2 : 1;  // groups of 16 positions
constexpr size_t chains_at_once(size_t queries) {
  if (kParts == 1) return queries <= 3 ? 4 : 2;
  return queries == 1 ? 4 : queries == 2 ? 2 : 1;
}
constexpr size_t dimensions_at_once(size_t queries) {  // groups of 16 dimensions
  if (kParts == 1) return 4;
  return queries == 1 ? 4 : queries <= 3 ? 2 : 1;
}

struct BlockRange {
  size_t begin, end;  // visible positions in the block
  bool operator==(const BlockRange&) const = default;
};

// The queries of a tile inside one partition.
struct Work {
  alignas(64) float scores[kTileQueries][kKvBlock];  // then weights
  alignas(64) float m[round_up(kTileQueries, 16)];
  alignas(64) float next_m[round_up(kTileQueries, 16)];
  alignas(64) float c[round_up(kTileQueries, 16)];
  size_t first[kTileQueries], last[kTileQueries];  // visible positions, inclusive
  float* l[kTileQueries];
  float* o[kTileQueries];
  BlockRange range[kTileQueries];
};

// Scores of all 32 positions of a block for N queries, unscaled. The four chains of LANES4 run some at a time, in the
// order 0, 2, 1, 3: what is added first is finished first.
template <class Cache, size_t N>
HWY_INLINE void block_scores(const float* const* queries, const std::byte* keys, const std::byte* ahead, size_t head_dim,
                             float (*scores)[kKvBlock]) {
  constexpr size_t kChains = chains_at_once(N);
  constexpr size_t kOrder[4] = {0, 2, 1, 3};
  for (size_t half = 0; half < 2; half += kHalves) {
    F16x chains[4][N][kHalves];
    for (size_t c = 0; c < 4; c += kChains) {
      F16x acc[kChains][N][kHalves];
      _Pragma("GCC unroll 4") for (auto& chain : acc) {
        _Pragma("GCC unroll 6") for (auto& query : chain) {
          _Pragma("GCC unroll 2") for (F16x& sum : query) sum = zero16();
        }
      }
      for (size_t d = 0; d < head_dim; d += 4) {
        _Pragma("GCC unroll 4") for (size_t e = 0; e < kChains; ++e) {
          const size_t at = d + kOrder[c + e];
          if (at >= head_dim) continue;
          const std::byte* row = keys + (at * kKvBlock + half * 16) * Cache::kSize;
          if (ahead) __builtin_prefetch(ahead + (at * kKvBlock + half * 16) * Cache::kSize, 0, 2);
          F16x k[kHalves];
          _Pragma("GCC unroll 2") for (size_t h = 0; h < kHalves; ++h) k[h] = Cache::load16(row + h * 16 * Cache::kSize);
          _Pragma("GCC unroll 6") for (size_t i = 0; i < N; ++i) {
            const F16x q = all(queries[i][at]);
            _Pragma("GCC unroll 2") for (size_t h = 0; h < kHalves; ++h) acc[e][i][h] = fma(q, k[h], acc[e][i][h]);
          }
        }
      }
      _Pragma("GCC unroll 4") for (size_t e = 0; e < kChains; ++e) {
        _Pragma("GCC unroll 6") for (size_t i = 0; i < N; ++i) {
          _Pragma("GCC unroll 2") for (size_t h = 0; h < kHalves; ++h) chains[c + e][i][h] = acc[e][i][h];
        }
      }
    }
    _Pragma("GCC unroll 6") for (size_t i = 0; i < N; ++i) {
      _Pragma("GCC unroll 2") for (size_t h = 0; h < kHalves; ++h)
        store(add(add(chains[0][i][h], chains[1][i][h]), add(chains[2][i][h], chains[3][i][h])), scores[i] + 16 * (half + h));
    }
  }
}

HWY_INLINE void mask(float* scores, const BlockRange& range, float with) {
  std::fill(scores, scores + range.begin, with);
  std::fill(scores + range.end, scores + kKvBlock, with);
}

// Turns scores of queries [begin, end) into weights (0 where not visible) and updates m and l. A score that is no number
// makes its weight and so l no number, whatever m is: m needs no test. Likewise c of the first block needs none: exp(-inf)
// is 0, and where m stays infinite l is no number.
HWY_INLINE void softmax_step(Work& w, size_t begin, size_t end, float scale, const BlockView& block) {
  const FloatTag d;
  F16x lo = all(scale), hi = lo;
  if (block.key_scales) {
    lo = mul(lo, load(block.key_scales));
    hi = mul(hi, load(block.key_scales + 16));
  }
  for (size_t i = begin; i < end; ++i) {
    float* s = w.scores[i];
    F16x a = mul(lo, load(s)), b = mul(hi, load(s + 16));
    store(a, s);
    store(b, s + 16);
    if (w.range[i] != BlockRange{0, kKvBlock}) {
      mask(s, w.range[i], kMinusInfinity);
      a = load(s);
      b = load(s + 16);
    }
    auto largest = hn::Set(d, w.m[i]);
    VERBUND_PARTS(p) largest = hn::Max(largest, hn::Max(a.v[p], b.v[p]));
    w.next_m[i] = hn::GetLane(hn::MaxOfLanes(d, largest));
  }
  for (size_t i = begin / 16 * 16; i < end; i += 16) store(exp16(sub(load(w.m + i), load(w.next_m + i))), w.c + i);
  for (size_t i = begin; i < end; ++i) {
    float* s = w.scores[i];
    const F16x m = all(w.next_m[i]);
    F16x a = exp16(sub(load(s), m)), b = exp16(sub(load(s + 16), m));
    if (w.range[i] != BlockRange{0, kKvBlock}) {  // also where m is infinite or no number
      store(a, s);
      store(b, s + 16);
      mask(s, w.range[i], 0.0f);
      a = load(s);
      b = load(s + 16);
    }
    store(add(add(mul(load(w.l[i]), all(w.c[i])), a), b), w.l[i]);
    if (block.value_scales) {
      a = mul(a, load(block.value_scales));
      b = mul(b, load(block.value_scales + 16));
    }
    store(a, s);
    store(b, s + 16);
    w.m[i] = w.next_m[i];
  }
}

// o = o * c + sum of w_j v_j, for N queries over the same positions and M groups of 16 dimensions from d.
template <class Cache, size_t N, size_t M>
HWY_INLINE void add_values_at(size_t d, const BlockView& block, const std::byte* ahead, Work& w, size_t first, BlockRange range) {
  F16x o[N][M];
  _Pragma("GCC unroll 6") for (size_t i = 0; i < N; ++i) {
    _Pragma("GCC unroll 4") for (size_t m = 0; m < M; ++m) o[i][m] = mul(load(w.o[first + i] + d + 16 * m), all(w.c[first + i]));
  }
  const float* weights = w.scores[first];
  for (size_t j = range.begin; j < range.end; ++j) {
    const std::byte* row = block.values + j * block.value_row + d * Cache::kSize;
    if (ahead) {
      _Pragma("GCC unroll 4") for (size_t b = 0; b < M * 16 * Cache::kSize; b += 64)
          __builtin_prefetch(ahead + j * block.value_row + d * Cache::kSize + b, 0, 2);
    }
    F16x v[M];
    _Pragma("GCC unroll 4") for (size_t m = 0; m < M; ++m) v[m] = Cache::load16(row + 16 * m * Cache::kSize);
    _Pragma("GCC unroll 6") for (size_t i = 0; i < N; ++i) {
      const F16x weight = all(weights[i * kKvBlock + j]);
      _Pragma("GCC unroll 4") for (size_t m = 0; m < M; ++m) o[i][m] = fma(weight, v[m], o[i][m]);
    }
  }
  _Pragma("GCC unroll 6") for (size_t i = 0; i < N; ++i) {
    _Pragma("GCC unroll 4") for (size_t m = 0; m < M; ++m) store(o[i][m], w.o[first + i] + d + 16 * m);
  }
}

template <class Cache, size_t N>
HWY_INLINE void add_values(const BlockView& block, const std::byte* ahead, size_t head_dim, Work& w, size_t first) {
  constexpr size_t kDimensions = dimensions_at_once(N);
  const size_t padded = round_up(head_dim, 16);
  size_t d = 0;
  for (; d + 16 * kDimensions <= padded; d += 16 * kDimensions)
    add_values_at<Cache, N, kDimensions>(d, block, ahead, w, first, w.range[first]);
  for (; d < padded; d += 16) add_values_at<Cache, N, 1>(d, block, ahead, w, first, w.range[first]);
}

// Calls f(N, first) with a constant N for [begin, end) in groups of at most Largest.
template <size_t Largest, class F>
HWY_INLINE void for_groups(size_t begin, size_t end, F&& f) {
  static_assert(Largest <= 6);
  for (size_t i = begin; i < end; i += Largest) {
    switch (std::min(Largest, end - i)) {
      case 1: f(std::integral_constant<size_t, 1>(), i); break;
      case 2: f(std::integral_constant<size_t, 2>(), i); break;
      case 3: f(std::integral_constant<size_t, 3>(), i); break;
      case 4: f(std::integral_constant<size_t, std::min<size_t>(4, Largest)>(), i); break;
      case 5: f(std::integral_constant<size_t, std::min<size_t>(5, Largest)>(), i); break;
      default: f(std::integral_constant<size_t, Largest>(), i); break;
    }
  }
}

// One block for the queries [begin, end), all of which see some of it. At the edges (causal, window) values are added query
// by query, so that a position a query must not see is never multiplied, not even by 0.
template <class Cache, size_t Largest>
void attend_block(const AttendTile& t, Work& w, size_t begin, size_t end, const BlockView& block, const BlockView* ahead) {
  const size_t dim = t.kv.head_dim;
  const std::byte* keys_ahead = ahead ? ahead->keys : nullptr;
  const std::byte* values_ahead = ahead ? ahead->values : nullptr;
  for_groups<Largest>(begin, end, [&](auto n, size_t i) {
    block_scores<Cache, n()>(t.queries + i, block.keys, keys_ahead, dim, w.scores + i);
  });
  softmax_step(w, begin, end, t.scale, block);
  for_groups<Largest>(begin, end, [&](auto n, size_t i) {
    bool same = true;
    for (size_t k = 1; k < n(); ++k) same = same && w.range[i + k] == w.range[i];
    if (same)
      add_values<Cache, n()>(block, values_ahead, dim, w, i);
    else
      for (size_t k = 0; k < n(); ++k) add_values<Cache, 1>(block, nullptr, dim, w, i + k);
  });
}

// Blocks [first_block, end_block) of one partition.
template <class Cache>
HWY_INLINE void attend_blocks(const AttendTile& t, Work& w, size_t first_block, size_t end_block, float* widened) {
  for (size_t b = first_block; b < end_block; ++b) {
    const size_t at = b * kKvBlock;
    size_t begin = 0, end = t.count;
    while (begin < end && w.last[begin] < at) ++begin;
    while (end > begin && w.first[end - 1] >= at + kKvBlock) --end;
    if (begin == end) continue;
    for (size_t i = begin; i < end; ++i)
      w.range[i] = {std::max(w.first[i], at) - at, std::min(w.last[i] + 1, at + kKvBlock) - at};
    const BlockView block = stored_block<Cache>(t.kv, t.blocks[b]);
    if (t.count <= kStreamed) {
      const BlockView ahead = stored_block<Cache>(t.kv, t.blocks[std::min(b + kBlocksAhead, end_block - 1)]);
      attend_block<Cache, kStreamed>(t, w, begin, end, block, &ahead);
    } else {
      attend_block<FloatCache, kGroup>(t, w, begin, end, widened_block<Cache>(block, t.kv.head_dim, widened), nullptr);
    }
  }
}

HWY_INLINE void merge(float* state, const float* part, size_t padded) {
  const float m = std::max(state[0], part[0]);
  const F16x a = all(exp_f32_inline(state[0] - m)), b = all(exp_f32_inline(part[0] - m));
  state[0] = m;
  for (size_t i = kStateSums; i < kStateOut + padded; i += 16)
    store(fma(load(state + i), a, mul(load(part + i), b)), state + i);
}

template <class Cache>
HWY_INLINE void attend_with(const AttendTile& t) {
  const size_t padded = round_up(t.kv.head_dim, 16), state_floats = attend_state_floats(t.kv.head_dim);
  float* parts = t.scratch + 2 * kKvBlock * padded;  // behind a widened block
  Work w;
  std::fill(std::begin(w.m), std::end(w.m), 0.0f);
  std::fill(std::begin(w.next_m), std::end(w.next_m), 0.0f);
  for (size_t i = 0; i < t.count; ++i) {
    w.last[i] = t.positions[i];
    w.first[i] = first_visible(t.positions[i], t.window);
  }
  for (size_t p = t.partitions.begin; p < t.partitions.end; ++p) {
    const auto sees = [&](size_t i) { return w.first[i] / kKvPartition <= p && w.last[i] / kKvPartition >= p; };
    const auto state_of = [&](size_t i) {
      return p == std::max<size_t>(t.partitions.begin, w.first[i] / kKvPartition) ? t.states[i] : parts + i * state_floats;
    };
    for (size_t i = 0; i < t.count; ++i) {
      if (!sees(i)) continue;
      float* state = state_of(i);
      w.m[i] = kMinusInfinity;
      w.l[i] = state + kStateSums;
      w.o[i] = state + kStateOut;
      std::fill(w.l[i], w.o[i] + padded, 0.0f);
    }
    const size_t first_block = std::max(w.first[0] / kKvBlock, p * kBlocksPerPartition);
    const size_t end_block = std::min(w.last[t.count - 1] / kKvBlock + 1, (p + 1) * kBlocksPerPartition);
    attend_blocks<Cache>(t, w, first_block, end_block, t.scratch);
    for (size_t i = 0; i < t.count; ++i) {
      if (!sees(i)) continue;
      float* state = state_of(i);
      state[0] = w.m[i];
      if (state != t.states[i]) merge(t.states[i], state, padded);
    }
  }
}

void attend(const AttendTile& tile) {
  switch (tile.kv.type) {
    case KvType::f16: return attend_with<HalfCache>(tile);
    case KvType::f32: return attend_with<FloatCache>(tile);
    case KvType::q8: return attend_with<ByteCache>(tile);
  }
}

void finish_attend(float* const* states, size_t count, size_t head_dim, float* out) {
  const size_t padded = round_up(head_dim, 16);
  for (size_t i = 1; i < count; ++i) merge(states[0], states[i], padded);
  const F16x sum = all(fold16(load(states[0] + kStateSums)));
  float* o = states[0] + kStateOut;
  for (size_t d = 0; d < padded; d += 16) store(div(load(o + d), sum), o + d);
  std::copy(o, o + head_dim, out);
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
  kernels.finish_attend = VERBUND_PICK(isa, finish_attend);
  kernels.store_kv = VERBUND_PICK(isa, store_kv);
}

}  // namespace verbund::compute::native
#endif
