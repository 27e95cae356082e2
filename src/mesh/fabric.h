// All links of a rank and the one place where a mesh waits: bounded spin that yields the core, then one poll(2) over all of them.
//
// Shared by a mesh and its subgroups. Dies as a whole: the first error of any operation is kept, told to the peers, and thrown
// again by every later call. cancel() may come from any thread, everything else from the thread that uses the mesh.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/spin.h"
#include "base/unix.h"
#include "mesh/peer.h"

namespace verbund::mesh {

// How a wait spins before it sleeps.
struct Spin {
  std::chrono::nanoseconds window{0};  // without progress
  bool crowded = false;                // there are fewer cores than computing threads: every look gives the core away
};
Spin spin_for_threads(int threads_on_host);

class Fabric {
 public:
  // links[r] leads to rank r; links[rank] is null.
  Fabric(int rank, std::vector<std::unique_ptr<Link>> links, Spin spin);
  ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }
  Peer& peer(int rank) { return *peers_[static_cast<size_t>(rank)]; }

  // Calls step() until it says that the operation is done and all of `peers` are flushed, waiting in between.
  template <class Step>
  void run(const FrameHeader& operation, std::span<Peer* const> peers, const Deadline& deadline, Step&& step);

  void cancel(const std::string& reason);
  uint64_t buffer_bytes() const;

 private:
  class Wait;

  void check();                                                     // throws when dead or cancelled
  void fail(Error error);                                           // keeps it, tells the peers, throws it
  void look(int timeout_ms);                                        // the poll: one look at all links, or a sleep
  Error why_gone(int rank);                                         // the link to `rank` is closed: by whom?
  std::vector<int> late_ranks(std::span<Peer* const> peers) const;  // whom the operation waits for
  // Another rank gave up because somebody is late: perhaps because this one waits itself.
  Error with_own_wait(const PeerWords& words, std::span<Peer* const> peers) const;
  std::optional<Error> words_of(std::span<const int> ranks);  // what one of them has said meanwhile
  static bool flush_all(std::span<Peer* const> peers);

  const int rank_;
  const Spin spin_;
  Spinner spinner_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<pollfd> polled_;  // one a peer, then the alarm; here so that a wait allocates nothing
  std::optional<Error> dead_;

  Fd alarm_read_, alarm_write_;  // a pipe that cancel() makes readable for good
  std::atomic<bool> cancelled_{false};
  std::mutex reason_mutex_;
  std::string reason_;
};

// One operation's waiting: deadline, spin window, sleep.
class Fabric::Wait {
 public:
  Wait(Fabric& fabric, const FrameHeader& operation, std::span<Peer* const> peers, const Deadline& deadline);
  void once();  // spins a little or sleeps; throws on cancel, deadline, a peer's end

 private:
  [[noreturn]] void throw_deadline();
  uint64_t moved() const;

  Fabric& fabric_;
  const FrameHeader& operation_;
  std::span<Peer* const> peers_;
  const Deadline& deadline_;
  Deadline::Clock::time_point spin_until_{};
  uint64_t moved_ = 0;
  unsigned turns_ = 0;
  bool last_look_ = false;
};

template <class Step>
void Fabric::run(const FrameHeader& operation, std::span<Peer* const> peers, const Deadline& deadline, Step&& step) {
  constexpr int kQuickLooks = 16;  // 64 bytes: 0.43 us, with one look 0.57
  try {
    check();
    // Mostly the peers are as far as this rank and what they sent is nanoseconds away: a few looks before anything else.
    bool done = step();
    for (int looks = 1; looks < kQuickLooks && !done; ++looks) done = step();
    if (flush_all(peers) && done) return;
    for (Wait wait(*this, operation, peers, deadline);;) {
      wait.once();
      done = done || step();
      if (flush_all(peers) && done) return;
    }
  } catch (const PeerGone& gone) { fail(why_gone(gone.rank)); } catch (const PeerWords& words) {
    fail(with_own_wait(words, peers));
  } catch (...) { fail(current_error()); }
}

}  // namespace verbund::mesh
