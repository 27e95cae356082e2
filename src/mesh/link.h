// The contract a transport implements, on one screen: one ordered, reliable byte channel to one peer.
//
// A Link lends two windows of the channel's own memory (ring, registered slot, socket buffer), so that a small message costs one
// copy in and none out. Nothing here blocks: the mesh interleaves all links of a rank and does the waiting itself, by a bounded
// spin and then one poll(2) over the descriptors of all links. Hence transports need no threads, two ranks that send large
// vectors to each other cannot deadlock, and one mesh can mix transports.
// Descriptors and not futexes, because a descriptor also reports that the peer died, works between all transports and on macOS.
//
// Used by one thread at a time. A peer that is gone is a state (closed()), not an exception: what it sent before still counts.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace verbund::mesh {

class Link {
 public:
  virtual ~Link() = default;

  // Every frame begins at a multiple of this in the stream (a power of two, at most kFrameAlignMax).
  virtual size_t frame_align() const { return 64; }
  // Free space of the channel, contiguous; may be less than there is, empty: full. A transport that hands over piece by piece gives
  // `lead` bytes and one piece. Valid until commit().
  virtual std::span<std::byte> room(size_t lead) = 0;
  // A frame is out; the next one will be of about this many bytes. Time to prepare for it, because now this rank waits for its peers.
  virtual void expect(size_t bytes) {}
  virtual void commit(size_t bytes) = 0;  // the first `bytes` of room() are written: they go out now, in order
  // Received bytes not yet consumed, contiguous. Looks for more when there are fewer than `want` (up to kWindowBytesMin at least).
  virtual std::span<const std::byte> arrived(size_t want) = 0;
  virtual void consume(size_t bytes) = 0;
  // Ends a pass: hands over what commit() could not, wakes a sleeping peer. False: bytes are left, call again.
  virtual bool flush() = 0;

  // Before a sleep: fills `p` with what reports progress, death always included. False: there is progress already, do not sleep.
  virtual bool arm(bool want_arrived, bool want_room, pollfd& p) = 0;
  virtual void disarm(const pollfd& p) = 0;  // after it

  virtual bool closed() const = 0;                    // the peer is gone; arrived() still yields what it left
  virtual std::string_view notice() const = 0;        // its last words, where the transport carries them out of band
  virtual bool has_notices() const = 0;               // it does: a peer that closed without any had no time for them
  virtual void hang_up(std::string_view notice) = 0;  // the peer sees closed() at once; best effort for the notice

  virtual std::string_view transport() const = 0;       // "shm", "tcp", ...
  virtual std::string_view note() const { return {}; }  // why it is not the transport that was asked for; empty: it is
  virtual uint64_t buffer_bytes() const = 0;            // memory this side brought in
};

// A window may be asked for this much and must be able to hold it, whatever the transport, beside the padding before a frame.
constexpr size_t kWindowBytesMin = 4096;
constexpr size_t kFrameAlignMax = 4096;

// Turns an authenticated control connection (mesh/handshake.h) into a Link: passes memory, queue-pair numbers, nothing.
// Owns the connection until take().
class Pairing {
 public:
  virtual ~Pairing() = default;
  virtual bool advance() = 0;  // never blocks; true: take() may be called. Throws when the peer breaks the rules
  virtual int fd() const = 0;  // advance() again when this is readable
  virtual std::unique_ptr<Link> take() = 0;
};

}  // namespace verbund::mesh
