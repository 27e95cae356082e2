#include "compute/native/memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "base/bytes.h"
#include "base/error.h"

namespace verbund::compute::native {
namespace {

constexpr size_t kCacheLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kArenaBlock = size_t{64} << 20;

}  // namespace

AlignedBytes::AlignedBytes(size_t bytes, bool zeroed) : size_(bytes) {
  if (bytes == 0) return;
  const size_t alignment = bytes >= kHugePage ? kHugePage : kCacheLine;
  void* data = nullptr;
  if (bytes > SIZE_MAX / 2 || posix_memalign(&data, alignment, bytes) != 0)
    throw Error({Code::resource_exhausted, Lost::instance, "out of memory: " + format_bytes(bytes) + " could not be allocated",
                 "native backend", ""});
  data_ = static_cast<std::byte*>(data);
#ifdef __linux__
  // Only whole huge pages: the tail stays on small pages, so no more memory is touched than was asked for.
  if (alignment == kHugePage) madvise(data, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
#endif
  if (zeroed) std::memset(data_, 0, bytes);
}

AlignedBytes::~AlignedBytes() { std::free(data_); }

std::shared_ptr<std::byte> WeightArena::take(size_t bytes) {
  const size_t at = round_up(used_, kCacheLine);
  if (!block_ || at > block_->size() || bytes > block_->size() - at) {
    block_ = std::make_shared<AlignedBytes>(std::max(kArenaBlock, round_up(bytes, kHugePage)));
    used_ = bytes;
    return {block_, block_->data()};
  }
  used_ = at + bytes;
  return {block_, block_->data() + at};
}

BufferPool::Buffer BufferPool::take(size_t bytes) {
  const auto fit = std::lower_bound(free_.begin(), free_.end(), bytes, [](const AlignedBytes& b, size_t n) { return b.size() < n; });
  if (fit != free_.end()) {
    AlignedBytes found = std::move(*fit);
    free_.erase(fit);
    return Buffer(shared_from_this(), std::move(found));
  }
  // Everything free is too small: let as much of it go as comes in, so that the pool stays near what is in use at once.
  drop_free(bytes);
  AlignedBytes fresh(bytes);
  held_ += bytes;
  held_peak_ = std::max(held_peak_, held_);
  return Buffer(shared_from_this(), std::move(fresh));
}

void BufferPool::drop_free(size_t bytes) {
  size_t dropped = 0;
  while (!free_.empty() && dropped < bytes) {
    dropped += free_.back().size();
    free_.pop_back();
  }
  held_ -= dropped;
}

void BufferPool::give_back(AlignedBytes bytes) {
  const auto at = std::lower_bound(free_.begin(), free_.end(), bytes.size(), [](const AlignedBytes& b, size_t n) { return b.size() < n; });
  free_.insert(at, std::move(bytes));
}

}  // namespace verbund::compute::native
