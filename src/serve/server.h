// The HTTP server: one I/O thread with a coroutine a connection, and a small pool for work that would hold it up.
//
// run() serves until SIGTERM or SIGINT, then drains: no new connections and requests, running ones may finish until the
// drain deadline, then they are cut off in their dialect's error form. A second signal cuts them off at once.
#pragma once

#include "serve/router.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace verbund::serve {

struct Limits {
  size_t header_bytes = 64 << 10;
  uint64_t body_bytes = 64 << 20;
  uint64_t bodies_bytes = 512 << 20;  // of all requests together, while they are read and parsed
  size_t connections = 4096;
  std::chrono::seconds header_wait{10}, body_idle{30}, body_wait{600}, keep_alive{75}, write_stall{30};
};

struct ServerConfig {
  std::string listen = "127.0.0.1:8372";  // HOST:PORT, [IPv6]:PORT
  Limits limits;
  std::chrono::milliseconds drain_wait{5000};
};

// Whether only this machine can reach HOST:PORT. Throws invalid_argument as Server does.
bool is_loopback(const std::string& listen);

// What a server does with a request before its body is read: refuse it by throwing ApiError, or return headers for its answer.
using Gatekeeper = std::function<Headers(HttpRequest&)>;
// Called after each request: route pattern or "", status, seconds.
using RequestLog = std::function<void(const HttpRequest&, int status, double seconds)>;

class Server {
 public:
  // Binds; throws unavailable naming the address.
  Server(ServerConfig config, Router& router, Gatekeeper gatekeeper, RequestLog log);
  ~Server();

  boost::asio::io_context& io();
  boost::asio::thread_pool& work();  // parsing, templates, tokenisation, grammars
  std::string address() const;       // as bound, with the port

  // on_drain: called once when draining begins; idle(): true when nothing runs any more; cut_off: end what still runs.
  struct DrainHooks {
    std::function<void()> begin;
    std::function<bool()> idle;
    std::function<void()> cut_off;
  };
  void run(DrainHooks hooks);
  // From any thread: ends run() as a signal would (a fatal error of the instance).
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace verbund::serve
