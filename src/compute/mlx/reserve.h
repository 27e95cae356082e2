// A TCP port reserved for a group of MLX, which binds the port itself later.
//
// The socket is bound and never listens: the system gives the port to nobody else, while MLX's ring (which asks for
// SO_REUSEPORT, as we do here) may still bind it. Header only: program and module both use it and share no symbols.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/unix.h"

namespace verbund::compute {

struct ReservedPort {
  Fd socket;
  uint16_t port = 0;
};

inline ReservedPort reserve_port(const std::string& address) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  if (inet_pton(AF_INET, address.c_str(), &at.sin_addr) != 1)
    throw Error(Code::invalid_argument, "MLX's ring needs an IPv4 address", address);
  Fd fd(::socket(AF_INET, SOCK_STREAM, 0));
  const auto fail = [&](const char* step) {
    throw Error(Code::unavailable, std::string("cannot reserve a port: ") + step + ": " + errno_text(errno), address);
  };
  if (!fd.valid()) fail("socket");
  set_cloexec(fd.get());
  const int yes = 1;
  if (setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0) fail("SO_REUSEADDR");
  if (setsockopt(fd.get(), SOL_SOCKET, SO_REUSEPORT, &yes, sizeof yes) != 0) fail("SO_REUSEPORT");
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0) fail("bind");
  socklen_t size = sizeof at;
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&at), &size) != 0) fail("getsockname");
  return {std::move(fd), ntohs(at.sin_port)};
}

}  // namespace verbund::compute
