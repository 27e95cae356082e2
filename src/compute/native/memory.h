// Memory of the native backend: aligned blocks, and a pool of buffers that steps recycle.
//
// An AlignedBytes owns one block (64-byte aligned; large ones are fresh pages on 2 MiB borders with huge ones asked for,
// because a decode step streams through all weights and would miss the TLB every 4 KiB). A BufferPool belongs to one backend and
// one thread; buffers go back to it when their handle dies, and a later step of the same shape allocates nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace verbund::compute::native {

// For the thread that is about to fill fresh memory of an AlignedBytes: touches its pages for the first time, and notices
// when huge ones are slow to come. (A virtual machine whose host has taken free memory back gets it 4 KiB at a time: 10 ms a
// huge page instead of 0.3.) From then on new memory is on small pages, until reconsider_pages() leaves it to the kernel to
// join them in the background. Only bytes in the range are written, with 0. Any thread.
void touch_fresh(std::byte* data, size_t bytes);
void reconsider_pages(std::byte* data, size_t bytes);

class AlignedBytes {
 public:
  AlignedBytes() = default;
  explicit AlignedBytes(size_t bytes, bool zeroed = false);  // throws resource_exhausted
  AlignedBytes(AlignedBytes&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  AlignedBytes& operator=(AlignedBytes&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~AlignedBytes();
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Weights of one backend, one behind the other in large blocks: a matrix of a few hundred KiB shares its huge pages with its
// neighbours, and a step reads them in the order they were loaded. Memory that no weight has taken is never touched. A block
// lives as long as any weight in it. One thread at a time.
class WeightArena {
 public:
  // 64-byte aligned; kept alive by the pointer.
  std::shared_ptr<std::byte> take(size_t bytes);

 private:
  std::shared_ptr<AlignedBytes> block_;
  size_t used_ = 0;
};

// Turns memory that was loaded on small pages, because huge ones came slowly, into huge pages while the program already works:
// a decode step that misses the TLB every 4 KiB is a fifth slower. One thread of its own, which ends with the last page or with
// the joiner. Does nothing where the system cannot (Linux can since 6.1).
class PageJoiner {
 public:
  ~PageJoiner();
  // `memory` is kept until its pages are joined. Once at a time; a second call waits for the first.
  void join_later(std::shared_ptr<std::byte> memory, size_t bytes);

 private:
  void stop();
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  // A borrowed block; returns to the pool with its last owner. Never outlives the pool's memory (it shares the pool).
  class Buffer {
   public:
    Buffer() = default;
    Buffer(std::shared_ptr<BufferPool> pool, AlignedBytes bytes) : pool_(std::move(pool)), bytes_(std::move(bytes)) {}
    Buffer(Buffer&&) noexcept = default;
    Buffer& operator=(Buffer&& other) noexcept {
      std::swap(pool_, other.pool_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Buffer() {
      if (pool_) pool_->give_back(std::move(bytes_));
    }
    template <class T>
    T* as() const {
      return reinterpret_cast<T*>(bytes_.data());
    }
    size_t size() const { return bytes_.size(); }

   private:
    std::shared_ptr<BufferPool> pool_;
    AlignedBytes bytes_;
  };

  Buffer take(size_t bytes);
  // Bytes that the pool holds, lent or free, and their peak.
  size_t held_bytes() const { return held_; }
  size_t held_bytes_peak() const { return held_peak_; }

 private:
  void give_back(AlignedBytes bytes);
  void drop_free(size_t bytes);

  std::vector<AlignedBytes> free_;  // ascending size
  size_t held_ = 0, held_peak_ = 0;
};

}  // namespace verbund::compute::native
