#include "compute/native/memory.h"

#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/bytes.h"
#include "base/error.h"

namespace verbund::compute::native {
namespace {

constexpr size_t kCacheLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kSmallPage = 4096, kMapUnit = 16384;  // a multiple of every page size we meet
constexpr size_t kArenaBlock = size_t{64} << 20;

// Large blocks are mapped, so that they are known to be fresh. AddressSanitizer watches over what comes from the heap.
#ifdef __SANITIZE_ADDRESS__
constexpr size_t kMappedLeast = SIZE_MAX;
#else
constexpr size_t kMappedLeast = kHugePage;
#endif

constexpr int64_t kSlowTouchNs = 2'500'000;
constexpr int kSlowTouches = 2;  // one alone may be chance
std::atomic<int> slow_touches = 0;

bool huge_pages_are_slow() { return slow_touches.load(std::memory_order_relaxed) >= kSlowTouches; }

// Time of this thread alone: on a busy machine others do not count.
int64_t thread_ns() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

std::byte* huge_page_of(std::byte* at) { return at - reinterpret_cast<uintptr_t>(at) % kHugePage; }

// Only whole huge pages: the tail stays on small pages, so no more memory is touched than was asked for.
void want_huge(std::byte* data, size_t bytes, bool want) {
#ifdef __linux__
  if (bytes >= kHugePage) madvise(data, bytes / kHugePage * kHugePage, want ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#endif
}

// Many small pages a call, contents left alone. A huge page's worth at a time: the process's other threads wait for each call when
// they map memory themselves, and the one that answers heartbeats must not wait long. False where the system has no such call.
bool populate(std::byte* data, size_t bytes) {
#ifdef MADV_POPULATE_WRITE
  const size_t lead = reinterpret_cast<uintptr_t>(data) % kMapUnit;
  std::byte* const end = data - lead + round_up(bytes + lead, kMapUnit);
  for (std::byte* at = data - lead; at < end; at += kHugePage)
    if (madvise(at, std::min(kHugePage, static_cast<size_t>(end - at)), MADV_POPULATE_WRITE) != 0) return false;
  return true;
#else
  return false;
#endif
}

std::byte* map_fresh(size_t bytes) {
  const size_t size = round_up(bytes, kMapUnit), reserved = size + kHugePage;
  void* at = ::mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(at);
  std::byte* data = huge_page_of(begin + kHugePage - 1);
  if (data != begin) ::munmap(begin, static_cast<size_t>(data - begin));
  if (const size_t rest = static_cast<size_t>(begin + reserved - (data + size)); rest > 0) ::munmap(data + size, rest);
  return data;
}

std::byte* allocate(size_t bytes) {
  if (bytes > SIZE_MAX / 2) return nullptr;
  if (bytes >= kMappedLeast) return map_fresh(bytes);
  void* data = nullptr;
  return posix_memalign(&data, bytes >= kHugePage ? kHugePage : kCacheLine, bytes) == 0 ? static_cast<std::byte*>(data) : nullptr;
}

}  // namespace

void touch_fresh(std::byte* data, size_t bytes) {
  for (std::byte *at = data, *end = data + bytes; at < end;) {
    std::byte* page = huge_page_of(at);
    if (huge_pages_are_slow()) {
      // To the end of the last huge page: what lies there is other fresh memory of the same block.
      want_huge(page, round_up(static_cast<size_t>(end - page), kHugePage), false);
      populate(at, static_cast<size_t>(end - at));
      return;
    }
    const int64_t begin = thread_ns();
    *static_cast<volatile std::byte*>(at) = std::byte{0};
    if (thread_ns() - begin > kSlowTouchNs) slow_touches.fetch_add(1, std::memory_order_relaxed);
    at = page + kHugePage;
  }
}

void reconsider_pages(std::byte* data, size_t bytes) {
  if (huge_pages_are_slow()) want_huge(huge_page_of(data), bytes, true);
}

AlignedBytes::AlignedBytes(size_t bytes, bool zeroed) : size_(bytes) {
  if (bytes == 0) return;
  data_ = allocate(bytes);
  if (!data_)
    throw Error({Code::resource_exhausted, Lost::instance, "out of memory: " + format_bytes(bytes) + " could not be allocated",
                 "native backend", ""});
  want_huge(data_, bytes, !huge_pages_are_slow());
  if (!zeroed) return;
  if (bytes < kMappedLeast) {
    std::memset(data_, 0, bytes);
    return;
  }
  // Fresh pages are zeros: each is touched once and not written a second time.
  touch_fresh(data_, bytes);
  if (!populate(data_, bytes))
    for (size_t at = 0; at < bytes; at += kSmallPage) *static_cast<volatile std::byte*>(data_ + at) = std::byte{0};
  reconsider_pages(data_, bytes);
}

AlignedBytes::~AlignedBytes() {
  if (size_ >= kMappedLeast)
    ::munmap(data_, round_up(size_, kMapUnit));
  else
    std::free(data_);
}

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

PageJoiner::~PageJoiner() { stop(); }

void PageJoiner::stop() {
  stopping_ = true;
  if (thread_.joinable()) thread_.join();
  stopping_ = false;
}

void PageJoiner::join_later(std::shared_ptr<std::byte> memory, size_t bytes) {
#ifdef __linux__
  if (!huge_pages_are_slow() || bytes < 2 * kHugePage) return;
  stop();
  thread_ = std::thread([this, memory = std::move(memory), bytes] {
    constexpr int kCollapse = 25;  // MADV_COLLAPSE, newer than the headers we may be built with
    std::byte* const end = memory.get() + bytes;
    for (std::byte* page = huge_page_of(memory.get() + kHugePage - 1); page + kHugePage <= end && !stopping_; page += kHugePage) {
      madvise(page, kHugePage, MADV_HUGEPAGE);
      if (madvise(page, kHugePage, kCollapse) != 0 && errno == EINVAL) return;
    }
  });
#endif
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
