// Who holds which block of the KV cache, and which blocks can be used again (prefix cache).
//
// A block is kKvBlock positions of one sequence on every rank and layer; its number means the same block on each rank. A block is
//   free    its content is worthless,
//   used    referenced by one sequence or, if full and published, by several,
//   cached  full, published and unreferenced: found again by its token prefix, or evicted (least recently used first).
// Only full blocks are shared and full blocks are never written again, so there is no copy-on-write. A published block is
// known by (chain id of the block before it, its own tokens), compared in full and not only by hash; a chain id is given
// once and never reused, so equal chain ids mean equal tokens from position 0 on.
// All memory is taken in the constructor except the hash index, which has at most one entry a block.
// Not thread-safe: belongs to the scheduler.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "compute/backend.h"

namespace verbund::engine {

using compute::kKvBlock;

using ChainId = uint64_t;
constexpr ChainId kChainStart = 0;  // "nothing before": position 0

struct BlockStats {
  size_t total = 0, free = 0, used = 0, cached = 0;
  uint64_t prefix_queries = 0;     // share() calls
  uint64_t prefix_hit_blocks = 0;  // blocks taken from the cache by them
  uint64_t evictions = 0;
};

class BlockManager {
 public:
  explicit BlockManager(size_t blocks);

  // A block for new content, evicting if it must. nullopt: all are referenced.
  std::optional<uint32_t> allocate();
  size_t available() const { return free_.size() + cached_; }  // that allocate() can give

  struct Prefix {
    std::vector<uint32_t> blocks;  // published blocks that hold the first tokens, in order
    ChainId chain = kChainStart;   // of the last one
    size_t unreferenced = 0;       // of them: share() takes these out of available()
  };
  // Longest known prefix of full blocks, at most max_blocks of them. Changes nothing.
  Prefix find_prefix(std::span<const int32_t> tokens, size_t max_blocks) const;
  void share(const Prefix& prefix);  // one reference to each block

  struct Published {
    uint32_t block;
    ChainId chain;
  };
  // A used block has become full with `tokens` (kKvBlock of them) after the prefix `before`. If the same content is known
  // already, the caller's reference moves to that block and the given one is released: use the returned block from now on.
  Published publish(uint32_t block, ChainId before, std::span<const int32_t> tokens);

  // Drops one reference to each. Goes backwards, so that of one sequence the end is evicted before the beginning.
  void release(std::span<const uint32_t> blocks);

  BlockStats stats() const;

 private:
  struct Block {
    uint32_t references = 0;
    ChainId chain = kChainStart;  // its own, once published; else kChainStart
    ChainId before = kChainStart;
    uint64_t hash = 0;
    uint32_t older = 0, newer = 0;  // LRU list of cached blocks
  };

  std::optional<uint32_t> find(uint64_t hash, ChainId before, std::span<const int32_t> tokens) const;
  std::span<const int32_t> tokens_of(uint32_t block) const;
  void reference(uint32_t block);
  void drop_reference(uint32_t block);
  void evict_oldest();
  void link_newest(uint32_t block);
  void unlink(uint32_t block);

  std::vector<Block> blocks_;    // [total + 1]: the last is the LRU list's head
  std::vector<int32_t> tokens_;  // [total * kKvBlock], of published blocks
  std::vector<uint32_t> free_;
  std::unordered_multimap<uint64_t, uint32_t> index_;
  size_t cached_ = 0;
  ChainId last_chain_ = kChainStart;
  uint64_t prefix_queries_ = 0, prefix_hit_blocks_ = 0, evictions_ = 0;
};

}  // namespace verbund::engine
