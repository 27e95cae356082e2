#include "mesh/fabric.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

namespace verbund::mesh {
namespace {

// "rank 1", "ranks 1, 2"
std::string name_ranks(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

}  // namespace

// How long a rank that ends listens for what others have to say about it.
constexpr auto kGrace = std::chrono::milliseconds(200), kGraceStep = std::chrono::milliseconds(2);

Spin spin_for_threads(int threads_on_host) {
  // Ranks between two collectives of a decode step differ by tens of microseconds, and a sleep and wake-up across cores of a virtual
  // machine costs about 50.
  return {std::chrono::microseconds(200), static_cast<unsigned>(threads_on_host) > available_cores()};
}

Fabric::Fabric(int rank, std::vector<std::unique_ptr<Link>> links, Spin spin)
    : rank_(rank), spin_(spin), spinner_(spin.crowded), polled_(links.size() + 1) {
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
  const bool spins = fabric_.spin_.window.count() > 0 && fabric_.spinner_.worthwhile();
  // A look at the clock costs as much as a look at the links.
  if (turns_++ % 16 != 0 && spins && !fabric_.spinner_.crowded()) return cpu_pause();

  const auto now = Deadline::Clock::now();
  if (const uint64_t moved = this->moved(); moved != moved_ || spin_until_ == Deadline::Clock::time_point{}) {
    moved_ = moved;
    spin_until_ = now + (spins ? fabric_.spin_.window : std::chrono::nanoseconds(0));
  }
  if (now >= deadline_.at()) {
    // One last look: a rank that was stopped itself should not blame those who gave it up meanwhile.
    if (std::exchange(last_look_, true)) throw_deadline();
    return fabric_.look(0);
  }
  if (now < spin_until_) {
    if (!fabric_.spinner_.give_core_away(now)) spin_until_ = now;
    return;
  }
  fabric_.spinner_.slept();
  fabric_.look(deadline_.left_ms());
  spin_until_ = {};
  turns_ = 0;
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
      if (const auto words = peer->last_words()) throw PeerWords{peer->rank(), *words};
}

Error Fabric::why_gone(int rank) {
  // When one rank is killed, others close their links over it, and this rank may see that first. Their words, or the end of the other
  // link, are on their way then: all that are closed are named, even one that had sent all that this operation wanted.
  const bool could_be_told = size() > 2 && !peer(rank).link().has_notices();
  const auto until = Deadline::Clock::now() + (could_be_told ? kGrace : std::chrono::milliseconds(0));
  std::vector<int> gone;
  for (;;) {
    try {
      look(0);
    } catch (const PeerWords& words) { return words.error; }
    gone.clear();
    for (auto& peer : peers_)
      if (peer && peer->closed() && (peer->rank() == rank || peer->busy() || could_be_told)) gone.push_back(peer->rank());
    if (gone.size() > 1 || Deadline::Clock::now() >= until) break;
    std::this_thread::sleep_for(kGraceStep);
  }
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

std::vector<int> Fabric::late_ranks(std::span<Peer* const> peers) const {
  // In a gather of sums a rank may only be passing on that it waits itself: who has not even sent its terms comes first.
  int phase = 255;
  for (Peer* peer : peers)
    if (peer->lacks()) phase = std::min(phase, peer->phase());
  std::vector<int> late;
  for (Peer* peer : peers)
    if (peer->lacks() && peer->phase() == phase) late.push_back(peer->rank());
  return late;
}

Error Fabric::with_own_wait(const PeerWords& words, std::span<Peer* const> peers) const {
  Error::Parts parts = words.error.parts();
  std::vector<int> late = late_ranks(peers);
  std::erase(late, words.rank);
  if (parts.code == Code::deadline_exceeded && !late.empty())
    parts.what += fmt::format("; rank {} itself waits for {}", rank_, name_ranks(late));
  return Error(parts);
}

std::optional<Error> Fabric::words_of(std::span<const int> ranks) {
  try {
    look(0);
  } catch (const PeerWords&) {}  // perhaps another's, who waited for this rank
  for (const int rank : ranks)
    if (auto words = peer(rank).last_words()) return words;
  return {};
}

// Who is late may only be waiting for somebody else. All whose deadline passes say so before they close their links, and listen a
// moment: then the error tells the chain to its end, and nobody takes another's closed link for the cause.
void Fabric::Wait::throw_deadline() {
  std::vector<int> late = fabric_.late_ranks(peers_);
  if (late.empty())
    for (Peer* peer : peers_) late.push_back(peer->rank());
  Error::Parts parts{
      Code::deadline_exceeded,
      Lost::instance,
      fmt::format("{} on rank {} waited {:.2f} s for {}", describe(operation_), fabric_.rank_, deadline_.waited_s(), name_ranks(late)),
      {},
      fmt::format("{} may be stopped, overloaded or cut off", name_ranks(late))};
  for (auto& peer : fabric_.peers_)
    if (peer) peer->tell(Error(parts));
  for (const auto until = Deadline::Clock::now() + kGrace; fabric_.size() > 2 && Deadline::Clock::now() < until;) {
    if (const auto words = fabric_.words_of(late)) {
      parts.what += fmt::format(" ({})", words->parts().what);
      parts.hint.clear();
      break;
    }
    std::this_thread::sleep_for(kGraceStep);
  }
  throw Error(parts);
}

}  // namespace verbund::mesh
