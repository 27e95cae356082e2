// Messages in registered slots. The sender fills slots in order, the receiver lends them to the mesh in place and posts each again
// when it is consumed; how many came back travels in front of the messages of the other direction.
//
// Every message has a number: UC loses silently what a wire loses, and the gap is the only sign. Nothing is sent again here (RC does
// so itself, in the device): the link ends with an error.
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#ifdef __linux__
#include <sys/epoll.h>
#else
#include <sys/event.h>
#endif

#include "base/deadline.h"
#include "base/error.h"
#include "mesh/frame.h"
#include "mesh/sockets.h"
#include "mesh/verbs/queue_pair.h"

namespace verbund::mesh::verbs {
namespace {

constexpr size_t kAlign = 64;
constexpr size_t kJoinedMax = kWindowBytesMin + kAlign;  // what must be contiguous although it came in pieces
constexpr std::chrono::milliseconds kFarewell{500};      // for the last messages to leave, when a link ends
constexpr std::byte kGoodbye{2};                         // on the control connection; then a u32 and the last words
constexpr size_t kGoodbyeBytes = 1 + sizeof(uint32_t);

// One descriptor that is readable when one of two is.
class Either {
 public:
  Either(int a, int b) {
#ifdef __linux__
    fd_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
#else
    fd_ = Fd(::kqueue());
#endif
    if (!fd_.valid()) throw Error({Code::resource_exhausted, Lost::instance, "cannot watch a link: " + errno_text(errno), {}, {}});
    for (int fd : {a, b}) {
#ifdef __linux__
      epoll_event event{};
      event.events = EPOLLIN;
      ::epoll_ctl(fd_.get(), EPOLL_CTL_ADD, fd, &event);
#else
      struct kevent event;
      EV_SET(&event, fd, EVFILT_READ, EV_ADD, 0, 0, nullptr);
      ::kevent(fd_.get(), &event, 1, nullptr, 0, nullptr);
#endif
    }
  }
  void forget(int fd) {
#ifdef __linux__
    ::epoll_ctl(fd_.get(), EPOLL_CTL_DEL, fd, nullptr);
#else
    struct kevent event;
    EV_SET(&event, fd, EVFILT_READ, EV_DELETE, 0, 0, nullptr);
    ::kevent(fd_.get(), &event, 1, nullptr, 0, nullptr);
#endif
  }
  int get() const { return fd_.get(); }

 private:
  Fd fd_;
};

class VerbsLink final : public Link {
 public:
  VerbsLink(std::unique_ptr<QueuePair> pair, Fd control, std::string name)
      : pair_(std::move(pair)),
        control_(std::move(control)),
        name_(std::move(name)),
        depth_(pair_->plan().depth),
        queue_(pair_->slots()),
        either_(pair_->events_fd(), control_.get()) {
    joined_.reserve(2 * kJoinedMax);
  }

  // What was sent last must have left the machine before the queue pair goes, and the peer must know how much that was.
  ~VerbsLink() override {
    try {
      const Deadline patience = Deadline::after(kFarewell);
      while (!hung_up_ && !closed() && sent_ != completed_ && !patience.expired()) {
        poll();
        std::this_thread::yield();
      }
    } catch (const Error&) {  // the link has failed; so be it
    }
    if (!hung_up_) say_goodbye({});
  }

  std::span<std::byte> room(size_t) override {
    if (!can_send_data()) poll();
    room_unseen_ = false;
    if (!can_send_data() || closed()) return {};
    return {pair_->send_slot(next_slot()) + kDataOffset, pair_->capacity()};
  }

  void commit(size_t bytes) override {
    ++data_sent_;
    post(static_cast<uint32_t>(bytes));
  }

  std::span<const std::byte> arrived(size_t want) override {
    want = std::min(want, kJoinedMax);
    if (window().size() < want) poll();
    unseen_ = false;
    while (window().size() < want && has_more()) join(want);
    return window();
  }

  void consume(size_t bytes) override {
    if (!joined_.empty()) {
      joined_begin_ += bytes;
      if (joined_begin_ == joined_.size()) joined_.clear(), joined_begin_ = 0;
    } else if (bytes > 0) {
      take_from_front(bytes);
    }
  }

  // Half of the slots returned and nothing to send that could say so: it takes a message of its own. The peer can use the other half
  // before it needs to have heard, so at most two of these are under way.
  bool flush() override {
    if (returned_ - announced_ < depth_ / 2 || closed()) return true;
    if (sent_ - completed_ == pair_->slots()) return false;
    post(0);
    return true;
  }

  bool arm(bool want_arrived, bool want_room, pollfd& p) override {
    p = {either_.get(), POLLIN, 0};
    const bool want_flush = returned_ - announced_ >= depth_ / 2;
    if (!want_arrived && !want_room && !want_flush) return true;
    pair_->request_event();
    poll();  // what came before the request
    return !(want_arrived && unseen_) && !((want_room || want_flush) && room_unseen_) && !failed_;
  }

  void disarm(const pollfd& p) override {
    if (p.revents == 0) return;
    pair_->take_events();
    read_control();
    poll();
  }

  // Not while there is more than one window shows: what the peer sent before it went still counts.
  bool closed() const override { return failed_ || (control_ended_ && (!notice_.empty() || (!missing() && !has_more()))); }
  std::string_view notice() const override { return notice_; }
  bool has_notices() const override { return true; }

  void hang_up(std::string_view notice) override {
    if (!hung_up_) say_goodbye(notice);
    control_ended_ = hung_up_ = true;
  }

  std::string_view transport() const override { return "verbs"; }
  uint64_t buffer_bytes() const override { return pair_->memory_bytes(); }

 private:
  struct Message {
    uint32_t slot, begin, end;  // of data not yet consumed
  };

  uint32_t next_slot() const { return static_cast<uint32_t>(sent_ % pair_->slots()); }
  bool can_send_data() const { return data_sent_ - their_returned_ < depth_ && sent_ - completed_ < depth_; }
  // The peer said how much it had sent at its end, and not all of it is here.
  bool missing() const { return goodbye_ && goodbye_sent_ != static_cast<uint32_t>(received_); }

  void post(uint32_t bytes) {
    const MessageHeader header{static_cast<uint32_t>(sent_), static_cast<uint32_t>(returned_), bytes, 0};
    std::memcpy(pair_->send_slot(next_slot()) + kHeaderOffset, &header, sizeof header);
    announced_ = returned_;
    pair_->post_send(next_slot(), bytes);
    ++sent_;
  }

  bool has_more() const { return queued_ > (joined_.empty() ? 1u : 0u); }  // than window()

  std::span<const std::byte> window() const {
    if (!joined_.empty()) return std::span(joined_).subspan(joined_begin_);
    if (queued_ == 0) return {};
    const Message& m = queue_[first_];
    return {pair_->receive_slot(m.slot) + kDataOffset + m.begin, m.end - m.begin};
  }

  // Moves received bytes until `want` lie in one piece, or all there are.
  void join(size_t want) {
    if (joined_begin_ > 0) {
      joined_.erase(joined_.begin(), joined_.begin() + static_cast<ptrdiff_t>(joined_begin_));
      joined_begin_ = 0;
    }
    while (queued_ > 0 && joined_.size() < want) {
      const Message& m = queue_[first_];
      const size_t n = std::min<size_t>(m.end - m.begin, want - joined_.size());
      const std::byte* from = pair_->receive_slot(m.slot) + kDataOffset + m.begin;
      joined_.insert(joined_.end(), from, from + n);
      take_from_front(n);
    }
  }

  void take_from_front(size_t bytes) {
    Message& m = queue_[first_];
    m.begin += static_cast<uint32_t>(bytes);
    if (m.begin < m.end) return;
    const uint32_t slot = m.slot;
    first_ = (first_ + 1) % queue_.size();
    --queued_;
    if (failed_) return;
    pair_->post_receive(slot);
    ++returned_;
  }

  void poll() {
    std::array<ibv_wc, 16> done;
    for (int n = static_cast<int>(done.size()); n == static_cast<int>(done.size()) && !failed_;) {
      n = pair_->poll(done);
      for (int i = 0; i < n && !failed_; ++i) on_completion(done[static_cast<size_t>(i)]);
    }
  }

  void on_completion(const ibv_wc& wc) {
    if (wc.status != IBV_WC_SUCCESS)
      return fail(Code::unavailable,
                  fmt::format("{} failed: {}", wc.wr_id & QueuePair::kReceive ? "a receive" : "a send", status_text(wc.status)));
    if ((wc.wr_id & QueuePair::kReceive) == 0) {
      ++completed_;
      room_unseen_ = true;
      return;
    }
    const auto slot = static_cast<uint32_t>(wc.wr_id & ~QueuePair::kReceive);
    MessageHeader header;
    std::memcpy(&header, pair_->receive_slot(slot) + kHeaderOffset, sizeof header);
    if (wc.byte_len < sizeof header || wc.byte_len - sizeof header != header.bytes || header.bytes > pair_->capacity())
      return fail(Code::data_loss, fmt::format("a message of {} bytes says that it has {}", wc.byte_len, header.bytes));
    if (const uint32_t lost = header.sequence - static_cast<uint32_t>(received_); lost != 0)
      return fail(Code::data_loss,
                  fmt::format("{} message{} lost on the way, the first was number {}", lost, lost == 1 ? " was" : "s were", received_));
    const uint32_t returned = header.returned - static_cast<uint32_t>(their_returned_);
    if (returned > data_sent_ - their_returned_) return fail(Code::data_loss, "the peer returned more messages than it was sent");
    ++received_;
    room_unseen_ = room_unseen_ || returned > 0;
    their_returned_ += returned;
    if (header.bytes == 0) return pair_->post_receive(slot);
    if (queued_ == queue_.size()) return fail(Code::data_loss, "the peer sent more messages than it may");
    queue_[(first_ + queued_++) % queue_.size()] = {slot, 0, header.bytes};
    unseen_ = true;
  }

  // A link fails by itself, or because the peer has gone: then its end tells, not the error.
  void fail(Code code, const std::string& what) {
    failed_ = true;
    read_control();
    if (control_ended_) return;
    throw Error({code,
                 Lost::instance,
                 fmt::format("the verbs link of {} on {} failed: {}", name_, pair_->name(), what),
                 {},
                 code == Code::data_loss ? "the network loses packets; check cable, switch and the interface's error counters"
                                         : "check cable, switch and the peer's node"});
  }

  void read_control() {
    std::array<std::byte, 256> bytes;
    while (!control_ended_) {
      const auto n = try_read(control_.get(), bytes);
      if (n == 0u) return;
      for (size_t i = 0; i < n.value_or(0) && farewell_.size() < kGoodbyeBytes + kGiveUpBytesMax; ++i)
        farewell_ += static_cast<char>(bytes[i]);
      if (n) continue;
      control_ended_ = true;
      either_.forget(control_.get());
      if (farewell_.size() < kGoodbyeBytes || farewell_[0] != static_cast<char>(kGoodbye)) return;
      goodbye_ = true;
      std::memcpy(&goodbye_sent_, farewell_.data() + 1, sizeof goodbye_sent_);
      notice_ = farewell_.substr(kGoodbyeBytes);
    }
  }

  void say_goodbye(std::string_view notice) noexcept {
    try {
      std::string words(1, static_cast<char>(kGoodbye));
      const auto count = static_cast<uint32_t>(sent_);
      words.append(reinterpret_cast<const char*>(&count), sizeof count);
      words += notice;
      try_write(control_.get(), std::as_bytes(std::span(words)));
    } catch (const Error&) {  // then the peer sees the end without words
    }
    ::shutdown(control_.get(), SHUT_RDWR);
  }

  std::unique_ptr<QueuePair> pair_;
  Fd control_;
  const std::string name_;
  const uint32_t depth_;

  // On the wire their low 32 bits.
  uint64_t sent_ = 0, completed_ = 0;            // messages of all kinds, in the order of their slots
  uint64_t data_sent_ = 0, their_returned_ = 0;  // messages of data
  uint64_t received_ = 0;                        // messages of all kinds
  uint64_t returned_ = 0, announced_ = 0;        // messages of data consumed; the peer was told

  std::vector<Message> queue_;  // a ring
  size_t first_ = 0, queued_ = 0;
  std::vector<std::byte> joined_;
  size_t joined_begin_ = 0;
  bool unseen_ = false, room_unseen_ = false;  // since the last arrived(), room()

  Either either_;
  bool failed_ = false, control_ended_ = false, hung_up_ = false, goodbye_ = false;
  uint32_t goodbye_sent_ = 0;
  std::string farewell_, notice_;
};

}  // namespace

std::unique_ptr<Link> make_link(std::unique_ptr<Endpoint> endpoint, Fd control, const std::string& name) {
  return std::make_unique<VerbsLink>(std::unique_ptr<QueuePair>(static_cast<QueuePair*>(endpoint.release())), std::move(control), name);
}

}  // namespace verbund::mesh::verbs
