#include "serve/server.h"

#include <sys/resource.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>

#include "base/unix.h"
#include "serve/connection.h"

namespace verbund::serve {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::chrono::milliseconds kAcceptPause{100};  // out of descriptors: others close some
constexpr std::chrono::milliseconds kDrainTick{50};
constexpr std::chrono::seconds kCutOffWait{1};  // for the last frames to leave
constexpr unsigned kWorkThreads = 2;            // the cores belong to the engine

tcp::endpoint endpoint_of(asio::io_context& io, const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos)
    throw Error(Code::invalid_argument, "'" + text + "' is not HOST:PORT", "--listen", "write for example 127.0.0.1:8372 or [::1]:8372");
  std::string host = text.substr(0, colon);
  if (host.size() > 1 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  error_code problem;
  const auto found = tcp::resolver(io).resolve(host.empty() ? "0.0.0.0" : host, text.substr(colon + 1), problem);
  if (problem || found.empty())
    throw Error(Code::invalid_argument, "'" + text + "' is no address of this machine: " + problem.message(), "--listen");
  return found.begin()->endpoint();
}

// Every connection is a descriptor; the usual soft limit is 1024.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

bool is_loopback(const std::string& listen) {
  asio::io_context io;
  return endpoint_of(io, listen).address().is_loopback();
}

struct Server::Impl {
  Impl(ServerConfig c, Router& router, Gatekeeper gatekeeper, RequestLog log)
      : config(std::move(c)),
        context(std::make_shared<ConnectionContext>(
            ConnectionContext{.limits = config.limits, .router = router, .gatekeeper = std::move(gatekeeper), .log = std::move(log)})) {}

  void bind() {
    raise_descriptor_limit();
    const tcp::endpoint at = endpoint_of(io, config.listen);
    error_code problem;
    acceptor.open(at.protocol(), problem);
    if (!problem) acceptor.set_option(tcp::acceptor::reuse_address(true), problem);
    if (!problem) acceptor.set_option(tcp::no_delay(true), problem);
    if (!problem) acceptor.bind(at, problem);
    if (!problem) acceptor.listen(asio::socket_base::max_listen_connections, problem);
    if (problem)
      throw Error(Code::unavailable, "cannot listen on " + config.listen + ": " + problem.message(), {},
                  "another server may hold the port; choose one with --listen HOST:PORT");
    set_cloexec(acceptor.native_handle());
  }

  awaitable<void> accept_all() {
    for (;;) {
      error_code problem;
      tcp::socket socket = co_await acceptor.async_accept(asio::redirect_error(asio::use_awaitable, problem));
      if (!acceptor.is_open()) co_return;
      if (problem) {
        asio::steady_timer pause(io, kAcceptPause);
        co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, problem));
        continue;
      }
      set_cloexec(socket.native_handle());
      if (context->open.size() >= config.limits.connections) continue;  // closes it
      socket.set_option(tcp::no_delay(true), problem);
      asio::co_spawn(io, serve_connection(std::move(socket), context), asio::detached);
    }
  }

  awaitable<void> wait_for_end(DrainHooks hooks) {
    error_code problem;
    co_await signals.async_wait(asio::redirect_error(asio::use_awaitable, problem));
    context->draining = true;
    acceptor.close(problem);
    hooks.begin();
    close_idle(*context);
    bool again = false;
    signals.async_wait([&again](error_code e, int) { again = !e; });
    asio::steady_timer tick(io);
    const auto pause = [&]() -> awaitable<void> {
      tick.expires_after(kDrainTick);
      co_await tick.async_wait(asio::use_awaitable);
    };
    const auto late = std::chrono::steady_clock::now() + config.drain_wait;
    while (!again && !hooks.idle() && std::chrono::steady_clock::now() < late) co_await pause();
    hooks.cut_off();
    const auto very_late = std::chrono::steady_clock::now() + kCutOffWait;
    while (!context->open.empty() && std::chrono::steady_clock::now() < very_late) {
      close_idle(*context);
      co_await pause();
    }
    close_all(*context);
    signals.cancel(problem);
    io.stop();
  }

  ServerConfig config;
  asio::io_context io{1};
  asio::thread_pool pool{kWorkThreads};
  tcp::acceptor acceptor{io};
  asio::signal_set signals{io, SIGINT, SIGTERM};
  std::shared_ptr<ConnectionContext> context;
};

Server::Server(ServerConfig config, Router& router, Gatekeeper gatekeeper, RequestLog log)
    : impl_(std::make_unique<Impl>(std::move(config), router, std::move(gatekeeper), std::move(log))) {
  impl_->bind();
}

Server::~Server() { impl_->pool.join(); }

asio::io_context& Server::io() { return impl_->io; }
asio::thread_pool& Server::work() { return impl_->pool; }

std::string Server::address() const {
  const tcp::endpoint at = impl_->acceptor.local_endpoint();
  const std::string host = at.address().to_string();
  return (at.address().is_v6() ? "[" + host + "]" : host) + ":" + std::to_string(at.port());
}

void Server::run(DrainHooks hooks) {
  asio::co_spawn(impl_->io, impl_->accept_all(), asio::detached);
  asio::co_spawn(impl_->io, impl_->wait_for_end(std::move(hooks)), asio::detached);
  impl_->io.run();
}

void Server::stop() {
  asio::post(impl_->io, [this] {
    error_code ignored;
    impl_->signals.cancel(ignored);
  });
}

}  // namespace verbund::serve
