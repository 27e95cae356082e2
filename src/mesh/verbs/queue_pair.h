// Everything of the verbs library that one link owns, released in the one order that works. Used by one thread at a time.
#pragma once

#include <memory>
#include <span>

#include "mesh/verbs/endpoint.h"
#include "mesh/verbs/library.h"

namespace verbund::mesh::verbs {

// In front of the data of each message, so that data begins on a cache line of its slot.
struct MessageHeader {
  uint32_t sequence = 0;  // of the messages of this direction, all kinds
  uint32_t returned = 0;  // data messages of the other direction that have been consumed so far
  uint32_t bytes = 0;     // of data; 0: only says `returned`
  uint32_t reserved = 0;
};
static_assert(sizeof(MessageHeader) == 16);

constexpr size_t kDataOffset = 64;  // in a slot
constexpr size_t kHeaderOffset = kDataOffset - sizeof(MessageHeader);

class QueuePair final : public Endpoint {
 public:
  explicit QueuePair(const Plan& plan);
  ~QueuePair() override;
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  uint32_t number() const override { return qp_->qp_num; }
  void connect(uint32_t first_sequence, const Card& theirs) override;

  const Plan& plan() const { return plan_; }
  uint32_t slots() const { return plan_.depth + kExtraSlots; }  // of each direction
  size_t capacity() const { return plan_.slot_bytes - kDataOffset; }
  std::byte* send_slot(uint32_t i) const { return memory_ + size_t(i) * plan_.slot_bytes; }
  std::byte* receive_slot(uint32_t i) const { return memory_ + (size_t(slots()) + i) * plan_.slot_bytes; }

  void post_send(uint32_t slot, uint32_t bytes);  // of data
  void post_receive(uint32_t slot);
  // Completions of both directions; wr_id is the slot, of a receive with kReceive set.
  static constexpr uint64_t kReceive = uint64_t(1) << 32;
  int poll(std::span<ibv_wc> into);

  int events_fd() const { return channel_->fd; }
  void request_event();
  void take_events();  // all that wait at events_fd()

  std::string name() const;  // "rxe0 port 1, GID 1 (10.77.0.1)"
  uint64_t memory_bytes() const { return memory_bytes_; }

 private:
  void open();
  void release();
  [[noreturn]] void fail(const std::string& what, int error, const std::string& hint = {}) const;

  const Plan plan_;
  const Library& library_;
  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* completions_ = nullptr;
  ibv_qp* qp_ = nullptr;
  ibv_mr* region_ = nullptr;
  std::byte* memory_ = nullptr;
  size_t memory_bytes_ = 0;
  unsigned events_taken_ = 0;
};

}  // namespace verbund::mesh::verbs
