#include "engine/kv_blocks.h"

#include <algorithm>
#include <cassert>

#include "base/bytes.h"

namespace verbund::engine {
namespace {

uint64_t hash_block(ChainId before, std::span<const int32_t> tokens) {
  return checksum(std::as_bytes(tokens), checksum(std::as_bytes(std::span(&before, 1))));
}

}  // namespace

BlockManager::BlockManager(size_t blocks) : blocks_(blocks + 1), tokens_(blocks * kKvBlock) {
  const auto head = static_cast<uint32_t>(blocks);
  blocks_[head].older = blocks_[head].newer = head;
  free_.reserve(blocks);
  for (size_t i = blocks; i > 0; --i) free_.push_back(static_cast<uint32_t>(i - 1));  // lowest numbers first
  index_.reserve(blocks);
}

std::optional<uint32_t> BlockManager::allocate() {
  if (free_.empty()) {
    if (cached_ == 0) return std::nullopt;
    evict_oldest();
  }
  const uint32_t block = free_.back();
  free_.pop_back();
  assert(blocks_[block].references == 0 && blocks_[block].chain == kChainStart);
  blocks_[block].references = 1;
  return block;
}

BlockManager::Prefix BlockManager::find_prefix(std::span<const int32_t> tokens, size_t max_blocks) const {
  Prefix prefix;
  const size_t count = std::min(max_blocks, tokens.size() / kKvBlock);
  for (size_t i = 0; i < count; ++i) {
    const auto part = tokens.subspan(i * kKvBlock, kKvBlock);
    const auto block = find(hash_block(prefix.chain, part), prefix.chain, part);
    if (!block) break;
    prefix.blocks.push_back(*block);
    prefix.chain = blocks_[*block].chain;
    prefix.unreferenced += blocks_[*block].references == 0;
  }
  return prefix;
}

void BlockManager::share(const Prefix& prefix) {
  for (uint32_t block : prefix.blocks) reference(block);
  ++prefix_queries_;
  prefix_hit_blocks_ += prefix.blocks.size();
}

BlockManager::Published BlockManager::publish(uint32_t block, ChainId before, std::span<const int32_t> tokens) {
  assert(tokens.size() == kKvBlock && blocks_[block].references == 1 && blocks_[block].chain == kChainStart);
  const uint64_t hash = hash_block(before, tokens);
  if (const auto known = find(hash, before, tokens)) {
    reference(*known);
    drop_reference(block);
    return {*known, blocks_[*known].chain};
  }
  Block& b = blocks_[block];
  b.chain = ++last_chain_;
  b.before = before;
  b.hash = hash;
  std::copy(tokens.begin(), tokens.end(), tokens_.begin() + static_cast<ptrdiff_t>(block * kKvBlock));
  index_.emplace(hash, block);
  return {block, b.chain};
}

void BlockManager::release(std::span<const uint32_t> blocks) {
  for (size_t i = blocks.size(); i > 0; --i) drop_reference(blocks[i - 1]);
}

BlockStats BlockManager::stats() const {
  BlockStats s{.total = blocks_.size() - 1, .free = free_.size(), .cached = cached_};
  s.used = s.total - s.free - s.cached;
  s.prefix_queries = prefix_queries_;
  s.prefix_hit_blocks = prefix_hit_blocks_;
  s.evictions = evictions_;
  return s;
}

std::optional<uint32_t> BlockManager::find(uint64_t hash, ChainId before, std::span<const int32_t> tokens) const {
  const auto [first, last] = index_.equal_range(hash);
  for (auto it = first; it != last; ++it)
    if (blocks_[it->second].before == before && std::ranges::equal(tokens_of(it->second), tokens)) return it->second;
  return std::nullopt;
}

std::span<const int32_t> BlockManager::tokens_of(uint32_t block) const { return std::span(tokens_).subspan(block * kKvBlock, kKvBlock); }

void BlockManager::reference(uint32_t block) {
  if (blocks_[block].references++ == 0) unlink(block);
}

void BlockManager::drop_reference(uint32_t block) {
  Block& b = blocks_[block];
  assert(b.references > 0);
  if (--b.references > 0) return;
  if (b.chain == kChainStart)
    free_.push_back(block);
  else
    link_newest(block);
}

void BlockManager::evict_oldest() {
  const uint32_t block = blocks_.back().newer;  // the head's newer neighbour is the oldest
  unlink(block);
  const auto [first, last] = index_.equal_range(blocks_[block].hash);
  index_.erase(std::find_if(first, last, [&](const auto& entry) { return entry.second == block; }));
  blocks_[block] = {};
  free_.push_back(block);
  ++evictions_;
}

void BlockManager::link_newest(uint32_t block) {
  const auto head = static_cast<uint32_t>(blocks_.size() - 1);
  Block& b = blocks_[block];
  b.newer = head;
  b.older = blocks_[head].older;
  blocks_[b.older].newer = block;
  blocks_[head].older = block;
  ++cached_;
}

void BlockManager::unlink(uint32_t block) {
  const Block& b = blocks_[block];
  blocks_[b.older].newer = b.newer;
  blocks_[b.newer].older = b.older;
  --cached_;
}

}  // namespace verbund::engine
