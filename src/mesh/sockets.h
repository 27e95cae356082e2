// Addresses and non-blocking stream sockets of the transports. Any thread; descriptors belong to the caller.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/unix.h"

namespace verbund::mesh {

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

Address tcp_address(const std::string& host, uint16_t port);  // numeric IPv4 or IPv6, or a name; throws invalid_argument / not_found
std::string tcp_text(const Address& address);                 // "127.0.0.1:40123", "[::1]:40123"
Address parse_tcp_text(const std::string& text);              // the reverse; throws invalid_argument
std::string host_of(const Address& address);
bool is_loopback(const Address& address);

// Linux: a name in the abstract name space, gone with the last descriptor. Elsewhere: the path of a socket file.
Address unix_address(const std::string& name);

// Non-blocking, close-on-exec, without SIGPIPE; TCP: NODELAY.
Fd open_stream(int family);
void prepare_stream(const Fd& fd, int family);  // the same for an accepted one
Fd listen_on(const Address& address, int backlog);
Address local_address(const Fd& fd);

// Bytes moved; 0: not now; nullopt: the peer is gone.
std::optional<size_t> try_write(int fd, std::span<const std::byte> data);
std::optional<size_t> try_read(int fd, std::span<std::byte> into);

}  // namespace verbund::mesh
