#include "mesh/fabric.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

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

SpinPolicy SpinPolicy::for_ranks(int ranks_on_host) {
  using std::chrono::microseconds;
  // Ranks between two collectives of a decode step differ by tens of microseconds; a sleep and wake-up across cores costs about 50.
  if (static_cast<unsigned>(ranks_on_host) <= available_cores()) return {microseconds(50), microseconds(200)};
  return {microseconds(0), microseconds(2)};
}

Fabric::Fabric(int rank, std::vector<std::unique_ptr<Link>> links, SpinPolicy spin) : rank_(rank), spin_(spin), polled_(links.size() + 1) {
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
  while (::write(alarm_write_.get(), &byte, 1) < 0 && errno == EINTR) {
  }
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
  if (fabric_.spin_.pause.count() > 0 && turns_++ % 16 != 0) return cpu_pause();  // a look at the clock costs as much as a look at the links

  const auto now = Deadline::Clock::now();
  if (const uint64_t moved = this->moved(); moved != moved_ || pause_until_ == Deadline::Clock::time_point{}) {
    moved_ = moved;
    pause_until_ = now + fabric_.spin_.pause;
    yield_until_ = pause_until_ + fabric_.spin_.yield;
  }
  if (now >= deadline_.at()) throw_deadline();
  if (now < pause_until_) return cpu_pause();
  if (now < yield_until_) return static_cast<void>(::sched_yield());
  sleep();
  pause_until_ = {};
}

void Fabric::Wait::sleep() {
  auto& polled = fabric_.polled_;
  bool idle = true;
  for (size_t r = 0; r < fabric_.peers_.size(); ++r) {
    polled[r] = {-1, 0, 0};
    if (fabric_.peers_[r]) idle = fabric_.peers_[r]->arm(polled[r]) && idle;
  }
  polled.back() = {fabric_.alarm_read_.get(), POLLIN, 0};
  const int n = ::poll(polled.data(), static_cast<nfds_t>(polled.size()), idle ? deadline_.left_ms() : 0);
  if (n < 0 && errno != EINTR) throw Error({Code::internal, Lost::instance, "poll failed: " + errno_text(errno), {}, {}});
  if (n <= 0)
    for (pollfd& p : polled) p.revents = 0;
  for (size_t r = 0; r < fabric_.peers_.size(); ++r)
    if (fabric_.peers_[r]) fabric_.peers_[r]->disarm(polled[r]);
}

uint64_t Fabric::Wait::moved() const {
  uint64_t moved = 0;
  for (const Peer* peer : peers_) moved += peer->moved();
  return moved;
}

void Fabric::Wait::throw_deadline() const {
  std::vector<int> late;
  for (Peer* peer : peers_)
    if (peer->wants_arrived() || peer->wants_room()) late.push_back(peer->rank());
  if (late.empty())
    for (Peer* peer : peers_) late.push_back(peer->rank());
  throw Error({Code::deadline_exceeded, Lost::instance,
               fmt::format("{} on rank {} waited {:.2f} s for {}", describe(operation_), fabric_.rank_, deadline_.waited_s(), name_ranks(late)), {},
               fmt::format("{} may be stopped, overloaded or cut off", name_ranks(late))});
}

}  // namespace verbund::mesh
