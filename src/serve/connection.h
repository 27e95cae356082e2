// One client connection: reads requests with limits and deadlines, answers them one after the other, in a coroutine of its own.
// Private to the server.
#pragma once

#include "serve/server.h"

#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <unordered_set>

namespace verbund::serve {

class Connection;

// What all connections of a server share. I/O thread only.
struct ConnectionContext {
  const Limits& limits;
  const Router& router;
  Gatekeeper gatekeeper;
  RequestLog log;
  std::unordered_set<Connection*> open{};
  uint64_t body_bytes = 0;  // of all requests that are being read or answered
  bool draining = false;
};

// Serves the socket until it closes; the coroutine owns the connection.
awaitable<void> serve_connection(boost::asio::ip::tcp::socket socket, std::shared_ptr<ConnectionContext> context);
// Closes connections that wait for a request; the others close after their answer, because context.draining is set.
void close_idle(ConnectionContext& context);
// Closes everything: what could be said has been said.
void close_all(ConnectionContext& context);

}  // namespace verbund::serve
