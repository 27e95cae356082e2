// One peer as the collectives see it: frames over a Link, one outgoing and one incoming frame at a time.
//
// push() and arrived() move what can be moved now and never block. Owned by a Fabric; used by the thread that uses the mesh.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "mesh/frame.h"
#include "mesh/link.h"

namespace verbund::mesh {

// Thrown where a frame cannot go on because the link is closed. Fabric finds out why and makes the Error.
struct PeerGone {
  int rank;
};
// Thrown where a peer says that it gives up, and why.
struct PeerWords {
  int rank;
  Error error;
};

class Peer {
 public:
  Peer(int self, int rank, std::unique_ptr<Link> link) : self_(self), rank_(rank), link_(std::move(link)) {}

  int rank() const { return rank_; }

  // Outgoing. The previous frame must be sent().
  void begin_send(const FrameHeader& header);
  // `payload` is the whole payload of the frame, of which the first `ready` bytes may go. Returns how many have gone so far.
  size_t push(std::span<const std::byte> payload, size_t ready);
  bool sent() const { return !out_ || (out_header_gone_ && out_pos_ == out_->payload_bytes); }

  // Incoming. The previous frame must be received().
  void begin_recv(const FrameHeader& expected);
  // Payload bytes lying in the channel, at most what the frame still lacks. Throws when the frame is not the expected one.
  std::span<const std::byte> arrived();
  void consume(size_t bytes);
  size_t received_bytes() const { return in_pos_; }
  bool received() const { return !in_ || (in_header_seen_ && in_pos_ == in_->payload_bytes); }

  bool flush();  // true: nothing is left on this side of the channel
  bool wants_arrived() const { return !received() && in_pos_ + in_window_ < in_->payload_bytes + (in_header_seen_ ? 0 : 1); }
  bool wants_room() const { return !sent() && (!out_header_gone_ || out_pos_ < out_ready_); }
  bool lacks() const { return wants_arrived() || wants_room(); }  // the operation waits for this peer
  bool busy() const { return !sent() || !received(); }
  int phase() const { return in_ ? in_->phase : 0; }  // of the incoming frame

  // Around a sleep; false: do not sleep. A closed link that nothing is wanted from is left out of the poll.
  bool arm(pollfd& p);
  void disarm(const pollfd& p);
  bool closed() const { return link_->closed(); }
  // Why the peer closed the link, if it could say and all it sent before has been taken.
  std::optional<Error> last_words();

  // Tells the peer why this rank ends, once and as far as the stream allows: half a frame cannot be interrupted.
  void tell(const Error& error);
  // The same, and closes the link.
  void give_up(const Error& error);

  uint64_t bytes_sent() const { return bytes_sent_; }
  uint64_t bytes_received() const { return bytes_received_; }
  uint64_t moved() const { return out_stream_ + in_stream_; }
  const Link& link() const { return *link_; }

 private:
  size_t padding_at(uint64_t stream) const { return static_cast<size_t>(-stream & (align_ - 1)); }
  bool take_header();
  void consume_stream(size_t bytes);
  std::optional<Error> give_up_frame();

  const int self_, rank_;
  std::unique_ptr<Link> link_;
  const uint64_t align_ = link_->frame_align();

  std::optional<FrameHeader> out_;
  bool out_header_gone_ = false;
  size_t out_pos_ = 0, out_ready_ = 0;
  uint64_t out_stream_ = 0;  // bytes of the stream so far, padding and headers included
  bool dirty_ = false, told_ = false;

  std::optional<FrameHeader> in_;
  bool in_header_seen_ = false;
  size_t in_pos_ = 0, in_window_ = 0;
  size_t in_lead_ = 0;  // padding and header of this frame, seen and not yet consumed
  uint64_t in_stream_ = 0;

  uint64_t bytes_sent_ = 0, bytes_received_ = 0;  // payload
};

}  // namespace verbund::mesh
