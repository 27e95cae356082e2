// One ordered, reliable byte channel to one peer: the contract a transport implements, on one screen.
//
// A Link moves frames. Header and payload arrive whole, in order, exactly once, or the wait ends with an Error that names the peer.
// try_* never block: Mesh interleaves several links and does the waiting (bounded spin, then wait()), so that no
// transport needs a thread and two ranks that send large vectors to each other cannot deadlock.
// A Link is used by one thread at a time; interrupt() may come from any thread and ends wait().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/deadline.h"

namespace verbund::mesh {

class Link {
 public:
  virtual ~Link() = default;

  // Takes up to data.size() bytes into the channel, returns how many (0: full). Throws unavailable when the peer is gone.
  virtual size_t try_send(std::span<const std::byte> data) = 0;
  // Moves up to into.size() received bytes, returns how many (0: none yet).
  virtual size_t try_recv(std::span<std::byte> into) = 0;
  // Makes what try_send took visible to the peer and wakes it if it sleeps (shm: futex; tcp: nothing to do).
  virtual void flush() = 0;
  // Sleeps until the link may make progress in the wanted direction(s), the deadline, or interrupt().
  virtual void wait(bool want_recv, bool want_send, const Deadline& deadline) = 0;
  virtual void interrupt() = 0;

  virtual std::string_view transport() const = 0;    // "shm", "tcp", ...
  virtual uint64_t buffer_bytes() const = 0;
};

}  // namespace verbund::mesh
