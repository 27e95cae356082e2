#include "mesh/tcp.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "mesh/sockets.h"

namespace verbund::mesh {
namespace {

#ifdef POLLRDHUP
constexpr short kPeerEnd = POLLRDHUP;
#else
constexpr short kPeerEnd = 0;  // noticed when the link is next read
#endif

class TcpLink final : public Link {
 public:
  TcpLink(Fd socket, std::string note) : socket_(std::move(socket)), note_(std::move(note)), out_(kTcpBufferBytes), in_(kTcpBufferBytes) {}

  std::span<std::byte> room(size_t) override {
    write_out();
    return std::span(out_).subspan(out_end_);
  }

  void commit(size_t bytes) override {
    out_end_ += bytes;
    write_out();
  }

  std::span<const std::byte> arrived(size_t want) override {
    want = std::min(want, in_.size());
    if (in_begin_ + want > in_.size()) {
      std::memmove(in_.data(), in_.data() + in_begin_, in_end_ - in_begin_);
      in_end_ -= std::exchange(in_begin_, 0);
    }
    while (in_end_ - in_begin_ < want && !end_of_stream_) {
      const auto n = try_read(socket_.get(), std::span(in_).subspan(in_end_));
      if (n == 0u) break;
      if (!n) end_of_stream_ = true;
      in_end_ += n.value_or(0);
    }
    return std::span(in_).subspan(in_begin_, in_end_ - in_begin_);
  }

  void consume(size_t bytes) override {
    in_begin_ += bytes;
    if (in_begin_ == in_end_) in_begin_ = in_end_ = 0;
  }

  bool flush() override {
    write_out();
    return out_begin_ == out_end_ || closed();
  }

  bool arm(bool want_arrived, bool want_room, pollfd& p) override {
    const bool can_read = in_end_ - in_begin_ < in_.size();
    short events = 0;
    if (want_arrived && can_read) events |= POLLIN;
    if (want_room || out_begin_ != out_end_) events |= POLLOUT;
    if (can_read) events |= kPeerEnd;
    p = {socket_.get(), events, 0};
    return true;
  }

  void disarm(const pollfd& p) override {
    if (p.revents & (kPeerEnd | POLLHUP | POLLERR)) arrived(in_.size());  // up to the end of the stream, if the buffer can hold it
  }

  bool closed() const override { return end_of_stream_ || write_failed_; }
  std::string_view notice() const override { return {}; }  // has only the stream itself
  bool has_notices() const override { return false; }

  void hang_up(std::string_view) override {
    write_out();
    ::shutdown(socket_.get(), SHUT_WR);
  }

  std::string_view transport() const override { return "tcp"; }
  std::string_view note() const override { return note_; }
  uint64_t buffer_bytes() const override { return out_.size() + in_.size(); }

 private:
  void write_out() {
    while (out_begin_ < out_end_ && !write_failed_) {
      const auto n = try_write(socket_.get(), std::span(out_).subspan(out_begin_, out_end_ - out_begin_));
      if (n == 0u) return;
      if (!n) write_failed_ = true;
      out_begin_ += n.value_or(0);
    }
    if (out_begin_ == out_end_) out_begin_ = out_end_ = 0;
  }

  Fd socket_;
  const std::string note_;
  std::vector<std::byte> out_, in_;
  size_t out_begin_ = 0, out_end_ = 0;  // written by the mesh, not yet taken by the system
  size_t in_begin_ = 0, in_end_ = 0;
  bool end_of_stream_ = false, write_failed_ = false;
};

class TcpPairing final : public Pairing {
 public:
  TcpPairing(Fd connection, std::string note) : socket_(std::move(connection)), note_(std::move(note)) {}
  bool advance() override { return true; }
  int fd() const override { return socket_.get(); }
  std::unique_ptr<Link> take() override { return std::make_unique<TcpLink>(std::move(socket_), std::move(note_)); }

 private:
  Fd socket_;
  std::string note_;
};

}  // namespace

std::unique_ptr<Pairing> pair_tcp(Fd connection, std::string note) {
  return std::make_unique<TcpPairing>(std::move(connection), std::move(note));
}

}  // namespace verbund::mesh
