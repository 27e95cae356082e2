#include "engine/kv_blocks.h"

#include <map>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

namespace verbund::engine {
namespace {

using Tokens = std::vector<int32_t>;

Tokens sequence(size_t tokens, int32_t first = 0) {
  Tokens t(tokens);
  std::iota(t.begin(), t.end(), first);
  return t;
}

// Computes all of `tokens` from an empty state as the scheduler does, and returns the blocks it holds.
std::vector<uint32_t> fill(BlockManager& kv, const Tokens& tokens) {
  const auto prefix = kv.find_prefix(tokens, (tokens.size() - 1) / kKvBlock);
  kv.share(prefix);
  std::vector<uint32_t> held = prefix.blocks;
  ChainId chain = prefix.chain;
  for (size_t i = held.size(); i * kKvBlock < tokens.size(); ++i) {
    held.push_back(kv.allocate().value());
    if ((i + 1) * kKvBlock > tokens.size()) break;
    const auto known = kv.publish(held.back(), chain, std::span(tokens).subspan(i * kKvBlock, kKvBlock));
    held.back() = known.block;
    chain = known.chain;
  }
  return held;
}

void expect_stats(const BlockManager& kv, size_t free, size_t used, size_t cached) {
  const BlockStats s = kv.stats();
  EXPECT_EQ(s.free, free);
  EXPECT_EQ(s.used, used);
  EXPECT_EQ(s.cached, cached);
  EXPECT_EQ(s.free + s.used + s.cached, s.total);
}

TEST(KvBlocks, FullBlocksStayCachedPartialOnesAreFreed) {
  BlockManager kv(4);
  expect_stats(kv, 4, 0, 0);
  const auto held = fill(kv, sequence(70));
  expect_stats(kv, 1, 3, 0);
  kv.release(held);
  expect_stats(kv, 2, 0, 2);
  EXPECT_EQ(kv.available(), 4u);
}

TEST(KvBlocks, PrefixIsFoundAndShared) {
  BlockManager kv(8);
  const auto a = fill(kv, sequence(96));
  const auto while_used = kv.find_prefix(sequence(100), 3);
  EXPECT_EQ(while_used.blocks, a);
  EXPECT_EQ(while_used.unreferenced, 0u);
  kv.release(a);
  const auto cached = kv.find_prefix(sequence(100), 3);
  EXPECT_EQ(cached.blocks, a);
  EXPECT_EQ(cached.unreferenced, 3u);
  kv.share(cached);
  kv.share(cached);
  expect_stats(kv, 5, 3, 0);
  kv.release(cached.blocks);
  expect_stats(kv, 5, 3, 0);
  kv.release(cached.blocks);
  expect_stats(kv, 5, 0, 3);
  EXPECT_EQ(kv.stats().prefix_queries, 3u);  // fill() shared an empty prefix
  EXPECT_EQ(kv.stats().prefix_hit_blocks, 6u);
}

TEST(KvBlocks, PrefixEndsAtTheFirstDifference) {
  BlockManager kv(8);
  kv.release(fill(kv, sequence(96)));
  Tokens edited = sequence(96);
  edited[40] = 7777;
  EXPECT_EQ(kv.find_prefix(edited, 3).blocks.size(), 1u);
  EXPECT_EQ(kv.find_prefix(sequence(96), 2).blocks.size(), 2u);  // as the caller limits it
  EXPECT_EQ(kv.find_prefix(sequence(95), 9).blocks.size(), 2u);  // full blocks only
  // The same 32 tokens after another beginning are other content.
  const Tokens moved = sequence(64, 32);
  EXPECT_EQ(kv.find_prefix(moved, 2).blocks.size(), 0u);
}

TEST(KvBlocks, EqualContentIsKeptOnce) {
  BlockManager kv(8);
  // Two sequences with one prompt, computed in the same steps.
  const Tokens tokens = sequence(64);
  const uint32_t a0 = kv.allocate().value(), b0 = kv.allocate().value();
  const auto a = kv.publish(a0, kChainStart, std::span(tokens).first(32));
  const auto b = kv.publish(b0, kChainStart, std::span(tokens).first(32));
  EXPECT_EQ(a.block, a0);
  EXPECT_EQ(b.block, a0);
  EXPECT_EQ(a.chain, b.chain);
  expect_stats(kv, 7, 1, 0);
  kv.release(std::vector{a.block});
  expect_stats(kv, 7, 1, 0);
  kv.release(std::vector{b.block});
  expect_stats(kv, 7, 0, 1);
}

TEST(KvBlocks, LeastRecentlyUsedGoesFirstAndTheEndBeforeTheBeginning) {
  BlockManager kv(4);
  kv.release(fill(kv, sequence(64)));        // A: 2 blocks
  kv.release(fill(kv, sequence(64, 1000)));  // B: 2 blocks
  const auto again = kv.find_prefix(sequence(64), 2);
  kv.share(again);  // A is the younger one now
  kv.release(again.blocks);
  const auto left = [&](int32_t first) { return kv.find_prefix(sequence(64, first), 2).blocks.size(); };
  std::vector<uint32_t> all;
  const std::vector<std::pair<size_t, size_t>> expected{{2, 1}, {2, 0}, {1, 0}, {0, 0}};  // blocks left of A and B
  for (const auto& [a, b] : expected) {
    all.push_back(kv.allocate().value());
    EXPECT_EQ(left(0), a);
    EXPECT_EQ(left(1000), b);
  }
  EXPECT_EQ(kv.allocate(), std::nullopt);
  EXPECT_EQ(kv.stats().evictions, 4u);
  kv.release(all);
  expect_stats(kv, 4, 0, 0);
}

TEST(KvBlocks, AContentThatComesBackIsNotMistakenForOldChildren) {
  BlockManager kv(3);
  kv.release(fill(kv, sequence(64)));  // blocks P, C
  // Drop P and C, then compute P again: its chain id is new.
  std::vector<uint32_t> all;
  while (const auto block = kv.allocate()) all.push_back(*block);
  kv.release(all);
  kv.release(fill(kv, sequence(33)));
  EXPECT_EQ(kv.find_prefix(sequence(64), 2).blocks.size(), 1u);
}

TEST(KvBlocks, MemoryIsFlatOverRepeats) {
  BlockManager kv(400);
  const Tokens prompt = sequence(12000);
  std::optional<BlockStats> after;
  for (int i = 0; i < 80; ++i) {
    const auto held = fill(kv, prompt);
    kv.release(held);
    const BlockStats s = kv.stats();
    if (after) {
      EXPECT_EQ(s.free, after->free);
      EXPECT_EQ(s.cached, after->cached);
    }
    after = s;
  }
  EXPECT_EQ(after->cached, 375u);
  EXPECT_EQ(after->evictions, 0u);
  EXPECT_EQ(after->prefix_hit_blocks, 79u * 374);  // at least one token is computed again each time
}

// Against a model that remembers what every block holds: whatever is found holds exactly the tokens asked for.
TEST(KvBlocks, RandomUseFindsOnlyTheTruth) {
  std::mt19937 random(11);
  BlockManager kv(24);
  struct Held {
    Tokens tokens;
    std::vector<uint32_t> blocks;
  };
  std::vector<Held> live;
  std::map<uint32_t, Tokens> content;  // whole prefix up to the end of a full block
  size_t hits = 0;
  for (int round = 0; round < 20000; ++round) {
    if (live.size() < 4 && random() % 2) {
      // Few distinct blocks, so that prefixes meet in a tree.
      Tokens tokens;
      for (size_t n = 1 + random() % 5; n > 0; --n) {
        const Tokens part = sequence(kKvBlock, static_cast<int32_t>(random() % 3));
        tokens.insert(tokens.end(), part.begin(), part.end());
      }
      tokens.resize(tokens.size() - random() % kKvBlock);
      const auto prefix = kv.find_prefix(tokens, (tokens.size() - 1) / kKvBlock);
      for (size_t i = 0; i < prefix.blocks.size(); ++i)
        ASSERT_EQ(content.at(prefix.blocks[i]), Tokens(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>((i + 1) * kKvBlock)));
      hits += prefix.blocks.size();
      const auto blocks = fill(kv, tokens);
      for (size_t i = prefix.blocks.size(); i < blocks.size(); ++i)
        content[blocks[i]] = Tokens(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(std::min(tokens.size(), (i + 1) * kKvBlock)));
      live.push_back({tokens, blocks});
    } else if (!live.empty()) {
      const size_t i = random() % live.size();
      for (size_t b = 0; b < live[i].blocks.size(); ++b)  // nobody else has written into what was held
        ASSERT_EQ(content.at(live[i].blocks[b]),
                  Tokens(live[i].tokens.begin(),
                         live[i].tokens.begin() + static_cast<ptrdiff_t>(std::min(live[i].tokens.size(), (b + 1) * kKvBlock))));
      kv.release(live[i].blocks);
      live.erase(live.begin() + static_cast<ptrdiff_t>(i));
    }
  }
  for (const Held& held : live) kv.release(held.blocks);
  EXPECT_EQ(kv.stats().used, 0u);
  EXPECT_EQ(kv.available(), 24u);
  EXPECT_GT(hits, 1000u);
  EXPECT_GT(kv.stats().evictions, 1000u);
}

}  // namespace
}  // namespace verbund::engine
