// A deadline for whatever a socket waits for: when it passes, the waiting operations end as cancelled and expired() says why;
// the socket stays open, so that the peer can still be told (Beast's own stream timer closes it).
// I/O thread only. Moving the deadline is cheap: the timer is armed again only when it must ring earlier.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>

namespace verbund::serve {

class SocketDeadline {
 public:
  using Clock = std::chrono::steady_clock;

  explicit SocketDeadline(boost::asio::ip::tcp::socket& socket) : state_(std::make_shared<State>(socket)) {}
  ~SocketDeadline() {
    state_->socket = nullptr;
    state_->timer.cancel();
  }
  SocketDeadline(const SocketDeadline&) = delete;

  void set(Clock::time_point deadline) {
    state_->deadline = deadline;
    state_->expired = false;
    if (!state_->armed || deadline < state_->rings_at) arm(state_);
  }
  void set_after(Clock::duration wait) { set(Clock::now() + wait); }
  void clear() { state_->deadline = Clock::time_point::max(); }
  bool expired() const { return state_->expired; }

 private:
  struct State {
    explicit State(boost::asio::ip::tcp::socket& socket) : socket(&socket), timer(socket.get_executor()) {}
    boost::asio::ip::tcp::socket* socket;
    boost::asio::steady_timer timer;
    Clock::time_point deadline = Clock::time_point::max(), rings_at{};
    bool armed = false, expired = false;
  };

  static void arm(const std::shared_ptr<State>& state) {
    state->rings_at = state->deadline;
    state->armed = true;
    state->timer.expires_at(state->deadline);
    state->timer.async_wait([state](boost::system::error_code problem) {
      if (problem || !state->socket) return;  // moved, or over
      state->armed = false;
      if (state->deadline == Clock::time_point::max()) return;
      if (state->deadline > Clock::now()) return arm(state);
      state->expired = true;
      state->deadline = Clock::time_point::max();
      boost::system::error_code ignored;
      state->socket->cancel(ignored);
    });
  }

  std::shared_ptr<State> state_;
};

}  // namespace verbund::serve
