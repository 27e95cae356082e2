#include "mesh/fabric.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace verbund::mesh {
namespace {

void cpu_pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // yield is a no-op on the cores we know
#endif
}

// "rank 1", "ranks 1, 2"
std::string name_ranks(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

}  // namespace

std::chrono::nanoseconds spin_for_threads(int threads_on_host) {
  // Ranks between two collectives of a decode step differ by tens of microseconds, and a sleep and wake-up across cores of a virtual
  // machine costs about 50. On one core a hand-over by sleep costs 3 and any spin comes on top.
  return static_cast<unsigned>(threads_on_host) <= available_cores() ? std::chrono::microseconds(200) : std::chrono::microseconds(0);
}

Fabric::Fabric(int rank, std::vector<std::unique_ptr<Link>> links, std::chrono::nanoseconds spin)
    : rank_(rank), spin_(spin), polled_(links.size() + 1) {
  int ends[2];
  if (::pipe(ends) != 0) throw Error({Code::resource_exhausted, Lost::instance, "cannot open a pipe: " + errno_text(errno), {}, {}});
  alarm_read_ = Fd(ends[0]);
  alarm_write_ = Fd(ends[1]);
  set_cloexec(ends[0]);
  set_cloexec(ends[1]);
  set_nonblocking(ends[1]);
  for (size_t r = 0; r < links.size(); ++r)
    peers_.push_back(links[r] ? std::make_unique<Peer>(rank, static_cast<int>(r), std::move(links[r])) : nullptr);
}

Fabric::~Fabric() = default;

void Fabric::check() {
  if (dead_) throw *dead_;
  if (cancelled_.load(std::memory_order_acquire)) {
    std::lock_guard lock(reason_mutex_);
    throw Error({Code::cancelled, Lost::instance, "cancelled: " + reason_, {}, {}});
  }
}

void Fabric::fail(Error error) {
  if (dead_) throw *dead_;
  dead_ = std::move(error);
  for (auto& peer : peers_) {
    if (!peer) continue;
    try {
      peer->give_up(*dead_);
    } catch (const Error&) {  // the peer is gone too; the first cause stays
    }
  }
  throw *dead_;
}

bool Fabric::flush_all(std::span<Peer* const> peers) {
  bool all = true;
  for (Peer* peer : peers) all = peer->flush() && all;
  return all;
}

void Fabric::cancel(const std::string& reason) {
  {
    std::lock_guard lock(reason_mutex_);
    if (cancelled_.load(std::memory_order_relaxed)) return;
    reason_ = reason;
    cancelled_.store(true, std::memory_order_release);
  }
  const char byte = 1;
  while (::write(alarm_write_.get(), &byte, 1) < 0 && errno == EINTR) {}
}

uint64_t Fabric::buffer_bytes() const {
  uint64_t bytes = 0;
  for (const auto& peer : peers_)
    if (peer) bytes += peer->link().buffer_bytes();
  return bytes;
}

Fabric::Wait::Wait(Fabric& fabric, const FrameHeader& operation, std::span<Peer* const> peers, const Deadline& deadline)
    : fabric_(fabric), operation_(operation), peers_(peers), deadline_(deadline) {}

void Fabric::Wait::once() {
  if (fabric_.cancelled_.load(std::memory_order_relaxed)) fabric_.check();
  if (turns_++ % 16 != 0 && fabric_.spin_.count() > 0) return cpu_pause();  // a look at the clock costs as much as a look at the links

  const auto now = Deadline::Clock::now();
  if (const uint64_t moved = this->moved(); moved != moved_ || spin_until_ == Deadline::Clock::time_point{}) {
    moved_ = moved;
    spin_until_ = now + fabric_.spin_;
  }
  if (now >= deadline_.at()) {
    // One last look: a rank that was stopped itself should not blame those who gave it up meanwhile.
    if (std::exchange(last_look_, true)) throw_deadline();
    return fabric_.look(0);
  }
  if (now < spin_until_ && !spin_is_vain()) return cpu_pause();
  fabric_.look(deadline_.left_ms());
  spin_until_ = {};
  turns_ = 0;
}

bool Fabric::Wait::spin_is_vain() const {
  return std::any_of(peers_.begin(), peers_.end(), [](Peer* peer) { return peer->lacks() && peer->link().shares_core(); });
}

void Fabric::look(int timeout_ms) {
  for (size_t r = 0; r < peers_.size(); ++r) {
    polled_[r] = {-1, 0, 0};
    if (peers_[r] && !peers_[r]->arm(polled_[r])) timeout_ms = 0;
  }
  polled_.back() = {alarm_read_.get(), POLLIN, 0};
  const int n = ::poll(polled_.data(), static_cast<nfds_t>(polled_.size()), timeout_ms);
  if (n < 0 && errno != EINTR) throw Error({Code::internal, Lost::instance, "poll failed: " + errno_text(errno), {}, {}});
  if (n <= 0)
    for (pollfd& p : polled_) p.revents = 0;
  for (size_t r = 0; r < peers_.size(); ++r)
    if (peers_[r]) peers_[r]->disarm(polled_[r]);
  // A rank that had something to say at its end ends everyone's wait; one that merely finished first does not.
  for (auto& peer : peers_)
    if (peer && peer->closed())
      if (const auto words = peer->last_words()) throw *words;
}

Error Fabric::why_gone(int rank) {
  try {
    look(0);
  } catch (const Error& told) { return told; }
  // When one rank is killed, others may close their links over it before this rank looks: then all of them are named.
  std::vector<int> gone;
  for (auto& peer : peers_)
    if (peer && peer->closed() && (peer->rank() == rank || peer->busy())) gone.push_back(peer->rank());
  const bool one = gone.size() == 1;
  return Error({Code::unavailable,
                Lost::instance,
                fmt::format("{} {} gone: {} {} link{} closed", name_ranks(gone), one ? "is" : "are", one ? "its" : "their",
                            peer(rank).link().transport(), one ? " was" : "s were"),
                {},
                fmt::format("see the log of {}", name_ranks(gone))});
}

uint64_t Fabric::Wait::moved() const {
  uint64_t moved = 0;
  for (const Peer* peer : peers_) moved += peer->moved();
  return moved;
}

void Fabric::Wait::throw_deadline() const {
  // In a gather of sums a rank may only be passing on that it waits itself: who has not even sent its terms comes first.
  int phase = 255;
  for (Peer* peer : peers_)
    if (peer->lacks()) phase = std::min(phase, peer->phase());
  std::vector<int> late;
  for (Peer* peer : peers_)
    if (peer->lacks() && peer->phase() == phase) late.push_back(peer->rank());
  if (late.empty())
    for (Peer* peer : peers_) late.push_back(peer->rank());
  throw Error(
      {Code::deadline_exceeded,
       Lost::instance,
       fmt::format("{} on rank {} waited {:.2f} s for {}", describe(operation_), fabric_.rank_, deadline_.waited_s(), name_ranks(late)),
       {},
       fmt::format("{} may be stopped, overloaded or cut off", name_ranks(late))});
}

}  // namespace verbund::mesh
