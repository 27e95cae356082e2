#include "mesh/shm.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "mesh/frame.h"
#include "mesh/sockets.h"

namespace verbund::mesh {
namespace {

Error shm_error(const std::string& what) {
  return Error({errno == ENOMEM || errno == EMFILE || errno == ENFILE ? Code::resource_exhausted : Code::unavailable,
                Lost::instance,
                what + ": " + errno_text(errno),
                {},
                {}});
}

Error broken_ring(const std::string& what) {
  return Error({Code::data_loss, Lost::instance, "shared memory of a peer is damaged: " + what, {}, {}});
}

// Head of the shared memory; one cache line for each writer, so that a look at one does not slow down another.
struct RingControl {
  alignas(64) std::atomic<uint64_t> written;          // bytes since the start; only the producer stores it
  alignas(64) std::atomic<uint64_t> consumed;         // only the consumer stores it
  alignas(64) std::atomic<uint32_t> consumer_sleeps;  // "send me a byte when there is something"
  alignas(64) std::atomic<uint32_t> producer_sleeps;  // "... when there is room"
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(RingControl) == 256);

size_t page_bytes() {
  static const size_t bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

// Asks for a line as a store would, without waiting for it.
void own_line(const std::byte* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*line));  // does nothing on CPUs without it
#else
  __builtin_prefetch(line, 1, 3);
#endif
}

// A mapped ring: control page, then the data twice in a row, so that every window is contiguous.
class RingMap {
 public:
  // Vectors often begin a page, and a frame in the ring does: with both at the same place of their pages a load waits for stores that
  // only look as if they went to the same address (the low 12 bits decide).
  static constexpr uint64_t kSkew = 2048;

  explicit RingMap(const Fd& memory) {
    const size_t page = page_bytes();
    base_ = static_cast<std::byte*>(::mmap(nullptr, page + 2 * kRingBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED) throw shm_error("cannot reserve a ring");
    int flags = MAP_SHARED | MAP_FIXED;
#ifdef MAP_POPULATE
    flags |= MAP_POPULATE;  // no page faults in the first steps
#endif
    if (::mmap(base_, page + kRingBytes, PROT_READ | PROT_WRITE, flags, memory.get(), 0) == MAP_FAILED ||
        ::mmap(base_ + page + kRingBytes, kRingBytes, PROT_READ | PROT_WRITE, flags, memory.get(), static_cast<off_t>(page)) ==
            MAP_FAILED) {
      const Error error = shm_error("cannot map a ring");
      ::munmap(base_, page + 2 * kRingBytes);
      throw error;
    }
  }
  ~RingMap() { ::munmap(base_, page_bytes() + 2 * kRingBytes); }
  RingMap(const RingMap&) = delete;
  RingMap& operator=(const RingMap&) = delete;

  RingControl& control() const { return *reinterpret_cast<RingControl*>(base_); }
  std::byte* at(uint64_t position) const { return base_ + page_bytes() + (position + kSkew) % kRingBytes; }

 private:
  std::byte* base_;
};

// Nameless memory of one ring, all zero.
Fd make_ring_memory() {
  const off_t bytes = static_cast<off_t>(page_bytes() + kRingBytes);
#ifdef __linux__
  Fd memory(::memfd_create("verbund-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.valid()) throw shm_error("cannot create a ring");
  if (::ftruncate(memory.get(), bytes) != 0) throw shm_error("cannot size a ring");
  // A sealed size is what lets the peer map it without fear of SIGBUS.
  if (::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) throw shm_error("cannot seal a ring");
#else
  const std::string name = fmt::format("/vb-{:016x}", random_u64());
  Fd memory(::shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600));
  if (!memory.valid()) throw shm_error("cannot create a ring");
  ::shm_unlink(name.c_str());
  set_cloexec(memory.get());
  if (::ftruncate(memory.get(), bytes) != 0) throw shm_error("cannot size a ring");
#endif
  return memory;
}

void check_ring_memory(const Fd& memory) {
  struct stat s {};
  if (::fstat(memory.get(), &s) != 0) throw shm_error("cannot look at a peer's ring");
  if (static_cast<uint64_t>(s.st_size) < page_bytes() + kRingBytes) throw broken_ring(fmt::format("a ring of {} bytes", s.st_size));
#ifdef __linux__
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) throw broken_ring("a ring that could shrink");
#endif
}

constexpr std::byte kWake{1}, kNotice{2};  // on the socket; all after kNotice is its text

class ShmLink final : public Link {
 public:
  ShmLink(Fd socket, const Fd& out, const Fd& in) : socket_(std::move(socket)), out_(out), in_(in) {}

  size_t frame_align() const override { return kFrameGap; }

  std::span<std::byte> room(size_t lead) override {
    const uint64_t wanted = lead + kPieceBytes;
    uint64_t free = kRingBytes - (written_ - their_consumed_);
    if (free < wanted) {
      their_consumed_ = out_.control().consumed.load(std::memory_order_acquire);
      if (written_ - their_consumed_ > kRingBytes) throw broken_ring("more consumed than written");
      free = kRingBytes - (written_ - their_consumed_);
    }
    room_seen_ = free;
    return {out_.at(written_), std::min(free, wanted)};
  }

  // The consumer has last read these lines, so that a store to each would wait for it; asked for now, they come meanwhile
  // (4.5 KiB: 1.4 against 1.0 us).
  void expect(size_t bytes) override {
    const uint64_t next = round_up(written_, kFrameGap), end = next + bytes;
    if (bytes > kExpectMax || end - their_consumed_ > kRingBytes) return;
    for (uint64_t at = next; at < end; at += kLineBytes) own_line(out_.at(at));
  }

  void commit(size_t bytes) override {
    written_ += bytes;
    room_seen_ -= bytes;
    out_.control().written.store(written_, std::memory_order_release);
  }

  std::span<const std::byte> arrived(size_t want) override {
    uint64_t have = their_written_ - consumed_;
    if (have < want) {
      their_written_ = in_.control().written.load(std::memory_order_acquire);
      have = their_written_ - consumed_;
      if (have > kRingBytes) throw broken_ring("more written than fits");
    }
    return {in_.at(consumed_), have};
  }

  void consume(size_t bytes) override {
    consumed_ += bytes;
    in_.control().consumed.store(consumed_, std::memory_order_release);
  }

  // The exchange orders our stores before the look at the flag: either the peer sees them after raising it, or we see it raised.
  bool flush() override {
    const bool wake_consumer = out_.control().consumer_sleeps.exchange(0, std::memory_order_acq_rel) != 0;
    const bool wake_producer = in_.control().producer_sleeps.exchange(0, std::memory_order_acq_rel) != 0;
    if ((wake_consumer || wake_producer) && !closed_) try_write(socket_.get(), {&kWake, 1});  // full: it has bytes enough to wake it
    return true;
  }

  bool arm(bool want_arrived, bool want_room, pollfd& p) override {
    p = {socket_.get(), POLLIN, 0};
    if (want_arrived) {
      in_.control().consumer_sleeps.exchange(1, std::memory_order_acq_rel);
      if (in_.control().written.load(std::memory_order_acquire) != their_written_) return false;
    }
    if (want_room) {
      out_.control().producer_sleeps.exchange(1, std::memory_order_acq_rel);
      if (kRingBytes - (written_ - out_.control().consumed.load(std::memory_order_acquire)) > room_seen_) return false;
    }
    return true;
  }

  void disarm(const pollfd& p) override {
    in_.control().consumer_sleeps.store(0, std::memory_order_relaxed);
    out_.control().producer_sleeps.store(0, std::memory_order_relaxed);
    if (p.revents != 0) read_socket();
  }

  bool closed() const override { return closed_; }
  std::string_view notice() const override { return notice_; }
  bool has_notices() const override { return true; }

  void hang_up(std::string_view notice) override {
    std::string words(1, static_cast<char>(kNotice));
    words += notice;
    if (!closed_) try_write(socket_.get(), std::as_bytes(std::span(words)));
    ::shutdown(socket_.get(), SHUT_RDWR);
  }

  std::string_view transport() const override { return "shm"; }
  uint64_t buffer_bytes() const override { return page_bytes() + kRingBytes; }

 private:
  // A vector is published piece by piece, so that the peer sums while this rank still copies. Measured with `verbund bench link`, all_reduce of
  // 16, 64 and 256 KiB: pieces of 2, 4, 8, 16 KiB take 3.9, 3.6, 3.5, 3.3; 15, 11, 11, 10; 53, 47, 46, 44 us.
  static constexpr uint64_t kPieceBytes = 8 * 1024;
  // Frames begin this far apart at least: a core's prefetchers run ahead within a page, and the consumer's would pull lines out of the
  // producer's cache that the next frame is being written to (4.5 KiB: 1.15 against 1.0 us).
  static constexpr size_t kFrameGap = 4096;
  static constexpr uint64_t kExpectMax = 20 * 1024;  // the lines of larger frames would not stay in L1

  void read_socket() {
    std::array<std::byte, 256> bytes;
    while (!closed_) {
      const auto n = try_read(socket_.get(), bytes);
      if (n == 0u) return;
      if (!n) closed_ = true;
      for (size_t i = 0; i < n.value_or(0); ++i) {
        if (noticing_ && notice_.size() < kGiveUpBytesMax) notice_ += static_cast<char>(bytes[i]);
        noticing_ = noticing_ || bytes[i] == kNotice;
      }
    }
  }

  Fd socket_;
  RingMap out_, in_;
  uint64_t written_ = 0, their_consumed_ = 0, room_seen_ = 0;
  uint64_t consumed_ = 0, their_written_ = 0;
  bool closed_ = false, noticing_ = false;
  std::string notice_;
};

// Each side sends one byte with its ring's descriptor, and gets one.
class ShmPairing final : public Pairing {
 public:
  explicit ShmPairing(Fd connection) : socket_(std::move(connection)), out_(make_ring_memory()) {}

  bool advance() override {
    if (!sent_) sent_ = send_ring();
    if (!in_.valid()) receive_ring();
    return sent_ && in_.valid();
  }
  int fd() const override { return socket_.get(); }
  std::unique_ptr<Link> take() override { return std::make_unique<ShmLink>(std::move(socket_), out_, in_); }

 private:
  union ControlBuffer {
    cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int))];
  };

  bool send_ring() {
    std::byte byte = kWake;
    iovec data{&byte, 1};
    ControlBuffer control{};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof control.bytes;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = out_.get();
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
    int flags = 0;
#ifdef MSG_NOSIGNAL
    flags = MSG_NOSIGNAL;
#endif
    if (::sendmsg(socket_.get(), &message, flags) == 1) return true;
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return false;
    throw shm_error("cannot pass a ring to a peer");
  }

  void receive_ring() {
    std::byte byte{};
    iovec data{&byte, 1};
    ControlBuffer control{};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof control.bytes;
    int flags = 0;
#ifdef MSG_CMSG_CLOEXEC
    flags = MSG_CMSG_CLOEXEC;
#endif
    const ssize_t n = ::recvmsg(socket_.get(), &message, flags);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (n < 0) throw shm_error("cannot get a ring from a peer");
    if (n == 0) throw Error({Code::unavailable, Lost::instance, "the connection was closed before the rings were exchanged", {}, {}});
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (!header || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof(int)))
      throw broken_ring("no descriptor came with it");
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    Fd memory(fd);
    set_cloexec(fd);
    check_ring_memory(memory);
    in_ = std::move(memory);
  }

  Fd socket_, out_, in_;
  bool sent_ = false;
};

}  // namespace

std::unique_ptr<Pairing> pair_shm(Fd connection) { return std::make_unique<ShmPairing>(std::move(connection)); }

}  // namespace verbund::mesh
