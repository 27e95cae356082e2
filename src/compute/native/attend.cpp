// Attention of the native backend: first every row's keys and values into the cache and its queries prepared, then tiles
// of queries that read the same KV head, one task each. With fewer tiles than would keep the threads busy each partition of a
// long context is a task, and a last turn merges them.
#include <algorithm>
#include <cstring>

#include "compute/native/backend.h"
#include "compute/numerics.h"

namespace verbund::compute::native {
namespace {

struct QueryRef {
  uint32_t row;
  uint32_t head;
  uint32_t position;
};

// One tile: queries of one segment and KV head.
struct TilePlan {
  const Segment* segment;
  uint32_t kv_head;
  size_t count;
  QueryRef queries[kTileQueries];

  // Of the context that some query sees.
  Range partitions(size_t window) const {
    const size_t oldest = queries[0].position, first = window == 0 || oldest < window ? 0 : oldest - window + 1;
    return {first / kKvPartition, queries[count - 1].position / kKvPartition + 1};
  }
};

// Heads that read one KV head, row by row: positions ascend in a tile, and neighbours share nearly all blocks.
std::vector<TilePlan> plan_tiles(const AttentionParams& params, std::span<const Segment> segments) {
  std::vector<TilePlan> tiles;
  for (const Segment& segment : segments) {
    for (uint32_t kv = 0; kv < params.kv_heads; ++kv) {
      TilePlan tile{&segment, kv, 0, {}};
      for (uint32_t r = 0; r < segment.rows; ++r) {
        for (uint32_t h = 0; h < params.heads; ++h) {
          if (params.kv_of_head[h] != kv) continue;
          tile.queries[tile.count++] = {segment.first_row + r, h, segment.first_position + r};
          if (tile.count == kTileQueries) {
            tiles.push_back(tile);
            tile.count = 0;
          }
        }
      }
      if (tile.count > 0) tiles.push_back(tile);
    }
  }
  // The longest first: what is left at the end is short, so threads finish together.
  std::stable_sort(tiles.begin(), tiles.end(),
                   [](const TilePlan& a, const TilePlan& b) { return a.queries[0].position > b.queries[0].position; });
  return tiles;
}

void check(const FloatTensor& qkv, const NativeKvCache& cache, const AttentionParams& p, std::span<const Segment> segments) {
  const KvLayout& layout = cache.layout;
  if (qkv.cols != (p.heads + 2 * p.kv_heads) * p.head_dim)
    throw shape_error("attention: " + std::to_string(qkv.cols) + " columns are not q, k and v");
  if (p.layer >= layout.layers || p.kv_heads != layout.kv_heads || p.head_dim != layout.head_dim)
    throw shape_error("attention: the KV cache has another shape");
  if (p.kv_of_head.size() != p.heads ||
      std::any_of(p.kv_of_head.begin(), p.kv_of_head.end(), [&](uint32_t kv) { return kv >= p.kv_heads; }))
    throw shape_error("attention: kv_of_head does not name a KV head for each head");
  if ((p.q_norm && p.q_norm->size != p.head_dim) || (p.k_norm && p.k_norm->size != p.head_dim))
    throw shape_error("attention: head norms are not head_dim wide");
  if (p.rope_mode != RopeMode::none && (!p.rope || 2 * p.rope->pairs > p.head_dim))
    throw shape_error("attention: no rope table, or a wider one than heads");
  for (const Segment& s : segments) {
    const size_t end = size_t{s.first_position} + s.rows;
    if (size_t{s.first_row} + s.rows > qkv.rows) throw shape_error("attention: a segment's rows lie outside the step");
    if (s.blocks.size() * kKvBlock < end) throw shape_error("attention: a segment's blocks end before its positions");
    for (size_t b = 0; b * kKvBlock < end; ++b)
      if (s.blocks[b] >= layout.blocks)
        throw shape_error("attention: KV block " + std::to_string(s.blocks[b]) + " of " + std::to_string(layout.blocks));
    if (p.rope_mode != RopeMode::none && end * p.rope->pairs > p.rope->cos.size())
      throw shape_error("attention: position " + std::to_string(end - 1) + " lies beyond the rope table");
  }
}

// Tiles that are fewer than this are cut into partitions: threads finish together, and all have something to do.
size_t split_tiles_below(unsigned threads) { return threads == 1 ? 0 : 4 * threads; }

// Parts of a tile: [query][partition].
template <class TileOf>
void attend_by_partitions(const Kernels& kernels, ThreadPool& threads, BufferPool& pool, const std::vector<TilePlan>& tiles,
                          const TileOf& tile_of, size_t window, size_t head_dim) {
  struct Task {
    const TilePlan* tile;
    Range partitions;
    size_t parts_at, index;  // index: the partition, or the query that is merged
  };
  const size_t step = partition_floats(head_dim);
  std::vector<Task> tasks, merges;
  size_t parts = 0;
  for (const TilePlan& tile : tiles) {
    const Range partitions = tile.partitions(window);
    for (size_t p = partitions.begin; p < partitions.end; ++p) tasks.push_back({&tile, partitions, parts, p});
    for (size_t q = 0; q < tile.count; ++q) merges.push_back({&tile, partitions, parts, q});
    parts += tile.count * partitions.size();
  }
  const BufferPool::Buffer buffer = pool.take(parts * step * sizeof(float) + kSlackBytes);
  const auto part = [&](const Task& task, size_t query, size_t partition) {
    return buffer.as<float>() + (task.parts_at + query * task.partitions.size() + partition - task.partitions.begin) * step;
  };
  threads.parallel_for(tasks.size(), [&](size_t i) {
    AttendTile tile = tile_of(*tasks[i].tile);
    tile.partition = tasks[i].index;
    for (size_t q = 0; q < tile.count; ++q) tile.parts[q] = part(tasks[i], q, tile.partition);
    kernels.attend(tile);
  });
  threads.parallel_for(merges.size(), [&](size_t i) {
    const Task& task = merges[i];
    kernels.merge_partitions(part(task, task.index, task.partitions.begin), task.partitions.size(), head_dim,
                             tile_of(*task.tile).out[task.index]);
  });
}

}  // namespace

// queries: [rows][heads][stride_of(head_dim)]
void NativeBackend::store_keys_values(const FloatTensor& qkv, NativeKvCache& cache, const AttentionParams& p,
                                      std::span<const Segment> segments, float* queries) {
  const size_t dim = p.head_dim, padded = stride_of(dim);
  const auto norm_of = [&p](const Vector* v) { return HeadNorm{v ? static_cast<const NativeVector*>(v)->data() : nullptr, p.norm_eps}; };
  const HeadNorm q_norm = norm_of(p.q_norm), k_norm = norm_of(p.k_norm);
  std::vector<std::pair<const Segment*, uint32_t>> rows;
  for (const Segment& s : segments)
    for (uint32_t r = 0; r < s.rows; ++r) rows.emplace_back(&s, r);
  for_chunks(rows.size(), std::max<size_t>(1, 8192 / qkv.cols), [&](size_t i) {
    const auto [segment, r] = rows[i];
    const size_t row = segment->first_row + r, position = size_t{segment->first_position} + r;
    HeadRope rope{p.rope_mode, 0, nullptr, nullptr};
    if (p.rope_mode != RopeMode::none)
      rope = {p.rope_mode, p.rope->pairs, p.rope->cos.data() + position * p.rope->pairs, p.rope->sin.data() + position * p.rope->pairs};
    const HeadRope* turn = p.rope_mode == RopeMode::none ? nullptr : &rope;
    const float* x = qkv.row(row);
    for (size_t h = 0; h < p.heads; ++h)
      kernels_.prepare_head(x + h * dim, dim, p.q_norm ? &q_norm : nullptr, turn, queries + (row * p.heads + h) * padded);
    // Keys are prepared in the row's own slot behind the queries: no allocation, no sharing between threads.
    float* key = queries + (qkv.rows * p.heads + row) * padded;
    for (size_t h = 0; h < p.kv_heads; ++h) {
      const KvView kv = cache.view(p.layer, h);
      kernels_.prepare_head(x + (p.heads + h) * dim, dim, p.k_norm ? &k_norm : nullptr, turn, key);
      std::byte* block = const_cast<std::byte*>(kv.layer) + segment->blocks[position / kKvBlock] * kv.block_bytes;
      kernels_.store_kv(key, x + (p.heads + p.kv_heads + h) * dim, block, kv, position % kKvBlock);
    }
  });
}

uint64_t NativeBackend::attention_bytes(size_t context, size_t head_dim) const {
  const size_t partitions = ceil_div(context, kKvPartition);
  if (partitions < 2) return 0;
  return split_tiles_below(threads_.threads()) * kTileQueries * partitions * partition_floats(head_dim) * sizeof(float);
}

Tensor NativeBackend::attention(const Tensor& qkv, KvCache& cache, const AttentionParams& params, std::span<const Segment> segments) {
  const FloatTensor& in = floats(qkv, "attention");
  auto* kv_cache = dynamic_cast<NativeKvCache*>(&cache);
  if (!kv_cache) throw shape_error("attention: the KV cache belongs to another backend");
  check(in, *kv_cache, params, segments);
  const size_t dim = params.head_dim, padded = stride_of(dim);
  BufferPool::Buffer queries = pool_->take(in.rows * (params.heads + 1) * padded * sizeof(float) + kSlackBytes);
  store_keys_values(in, *kv_cache, params, segments, queries.as<float>());

  auto y = make_floats(in.rows, params.heads * dim);
  for (size_t r = 0; r < y->rows; ++r) std::fill(y->row(r), y->row(r) + y->stride(), 0.0f);
  const std::vector<TilePlan> tiles = plan_tiles(params, segments);
  const auto tile_of = [&](const TilePlan& plan) {
    thread_local std::vector<float> scratch;
    scratch.resize(std::max(scratch.size(), attend_scratch_floats(dim)));
    AttendTile tile;
    tile.kv = kv_cache->view(params.layer, plan.kv_head);
    tile.blocks = plan.segment->blocks.data();
    tile.count = plan.count;
    tile.scratch = scratch.data();
    tile.scale = params.scale;
    tile.window = params.window;
    for (size_t q = 0; q < plan.count; ++q) {
      const QueryRef& ref = plan.queries[q];
      tile.queries[q] = queries.as<float>() + (ref.row * params.heads + ref.head) * padded;
      tile.positions[q] = ref.position;
      tile.out[q] = y->row(ref.row) + ref.head * dim;
    }
    return tile;
  };
  if (tiles.size() < split_tiles_below(threads_.threads()) &&
      std::any_of(tiles.begin(), tiles.end(), [&](const TilePlan& t) { return t.partitions(params.window).size() > 1; }))
    attend_by_partitions(kernels_, threads_, *pool_, tiles, tile_of, params.window, dim);
  else
    threads_.parallel_for(tiles.size(), [&](size_t i) { kernels_.attend(tile_of(tiles[i])); });
  return Tensor(y);
}

}  // namespace verbund::compute::native
