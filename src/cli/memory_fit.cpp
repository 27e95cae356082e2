#include "cli/memory_fit.h"

#include <algorithm>

#include "base/bytes.h"
#include "compute/backend.h"

namespace verbund::cli {
namespace {

using engine::MemoryPlan;

constexpr size_t kNodesMax = 64;  // what --local takes

uint64_t per_context(const MemoryPlan& p) { return p.kv + p.tables; }

// Weights, KV and activations shrink with the number of nodes; the process, the tokenizer and tables do not, and each
// further node costs buffers for one more peer.
std::optional<size_t> nodes_that_fit(const std::vector<engine::RankReport>& ranks, uint32_t planned_context, uint32_t needed_context,
                                     uint64_t budget) {
  constexpr uint64_t kBuffersOfAPeer = 640 * 1024;  // where there is no peer yet to read it from
  uint64_t shared = 0, fixed = 0, per_peer = kBuffersOfAPeer;
  for (const auto& r : ranks) {
    const MemoryPlan& p = r.planned;
    shared += p.weights + p.activations + (p.kv / planned_context + 1) * needed_context;
    fixed = std::max(fixed, p.process + p.tokenizer + p.tables);
    if (ranks.size() > 1) per_peer = std::max(per_peer, p.transport / (ranks.size() - 1));
  }
  for (size_t n = ranks.size() + 1; n <= kNodesMax; ++n)
    if (fixed + (n - 1) * per_peer + shared / n * 11 / 10 <= budget) return n;  // a tenth for shares that do not divide evenly
  return std::nullopt;
}

}  // namespace

uint32_t context_that_fits(const std::vector<engine::RankReport>& ranks, uint32_t planned_context, uint64_t budget) {
  uint64_t context = UINT32_MAX;
  for (const auto& r : ranks) {
    const uint64_t fixed = r.planned.total() - per_context(r.planned);
    if (fixed >= budget) return 0;
    if (const uint64_t all = per_context(r.planned))
      context = std::min<uint64_t>(
          context, static_cast<uint64_t>(static_cast<double>(budget - fixed) / (static_cast<double>(all) / planned_context)));
  }
  return static_cast<uint32_t>(context / compute::kKvBlock * compute::kKvBlock);
}

Error does_not_fit(const std::vector<engine::RankReport>& ranks, uint32_t planned_context, uint32_t needed_context, uint64_t budget) {
  const auto& worst =
      *std::max_element(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a.planned.total() < b.planned.total(); });
  const MemoryPlan& p = worst.planned;
  std::string what = "rank " + std::to_string(worst.rank) + " needs " + format_bytes(p.total()) + ", its node has " + format_bytes(budget) +
                     " (weights " + format_bytes(p.weights) + ", KV cache " + format_bytes(p.kv) + " for a context of " +
                     std::to_string(planned_context) + ", activations " + format_bytes(p.activations) + ", buffers and tables " +
                     format_bytes(p.transport + p.tables) + ", tokenizer " + format_bytes(p.tokenizer) + ", the process itself " +
                     format_bytes(p.process) + ")";
  const uint32_t context = context_that_fits(ranks, planned_context, budget);
  std::string hint = "would fit: ";
  if (context >= needed_context) hint += "--context " + std::to_string(context) + "; or ";
  if (const auto nodes = nodes_that_fit(ranks, planned_context, needed_context, budget))
    hint += "--local " + std::to_string(*nodes) + " nodes of this size; or ";
  hint += "--memory " + std::to_string(p.total() / 1'000'000 + 1) + "MB";
  return Error({Code::resource_exhausted, Lost::instance, what, {}, hint});
}

}  // namespace verbund::cli
