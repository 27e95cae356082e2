#include "mesh/sockets.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/un.h>

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>

#include "base/error.h"

namespace verbund::mesh {
namespace {

#ifdef MSG_NOSIGNAL
constexpr int kSendFlags = MSG_NOSIGNAL;
#else
constexpr int kSendFlags = 0;  // SO_NOSIGPIPE is set instead
#endif

Error socket_error(const std::string& what, int error_number) {
  const Code code = error_number == EMFILE || error_number == ENFILE || error_number == ENOMEM ? Code::resource_exhausted
                    : error_number == EACCES || error_number == EPERM                          ? Code::permission_denied
                                                                                               : Code::unavailable;
  return Error({code, Lost::instance, what + ": " + errno_text(error_number), {}, {}});
}

void set_option(int fd, int level, int name) {
  const int on = 1;
  ::setsockopt(fd, level, name, &on, sizeof on);
}

bool is_gone(int error_number) {
  return error_number == EPIPE || error_number == ECONNRESET || error_number == ETIMEDOUT || error_number == EHOSTUNREACH ||
         error_number == ENETUNREACH || error_number == ENOTCONN || error_number == ENETDOWN || error_number == ECONNABORTED;
}

}  // namespace

Address tcp_address(const std::string& host, uint16_t port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  const int rc = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (rc != 0)
    throw Error({Code::not_found, Lost::instance, fmt::format("no address for host \"{}\": {}", host, ::gai_strerror(rc)), {}, {}});
  Address address;
  address.length = found->ai_addrlen;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  return address;
}

std::string host_of(const Address& address) {
  char host[NI_MAXHOST] = "?";
  ::getnameinfo(address.get(), address.length, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  return host;
}

std::string tcp_text(const Address& address) {
  char port[NI_MAXSERV] = "?";
  ::getnameinfo(address.get(), address.length, nullptr, 0, port, sizeof port, NI_NUMERICSERV);
  const std::string host = host_of(address);
  return address.family() == AF_INET6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

Address parse_tcp_text(const std::string& text) {
  const auto wrong = [&] {
    return Error({Code::invalid_argument, Lost::instance, fmt::format("\"{}\" is not host:port", text.substr(0, 256)), {}, {}});
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || text.size() > 256) throw wrong();
  uint16_t port = 0;
  const char *begin = text.data() + colon + 1, *end = text.data() + text.size();
  if (const auto parsed = std::from_chars(begin, end, port); parsed.ec != std::errc() || parsed.ptr != end || port == 0) throw wrong();
  std::string host = text.substr(0, colon);
  if (host.front() == '[') {
    if (host.back() != ']') throw wrong();
    host = host.substr(1, host.size() - 2);
  }
  return tcp_address(host, port);
}

bool is_loopback(const Address& address) {
  if (address.family() == AF_INET) return (ntohl(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_addr.s_addr) >> 24) == 127;
  return address.family() == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr);
}

Address unix_address(const std::string& name) {
  sockaddr_un un{};
  un.sun_family = AF_UNIX;
#ifdef __linux__
  constexpr size_t kSkip = 1;
#else
  constexpr size_t kSkip = 0;
#endif
  if (name.empty() || name.size() + kSkip >= sizeof un.sun_path)
    throw Error(
        {Code::invalid_argument, Lost::instance, fmt::format("\"{}\" is not the name of a local endpoint", name.substr(0, 256)), {}, {}});
  std::memcpy(un.sun_path + kSkip, name.data(), name.size());
  Address address;
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + kSkip + name.size());
  std::memcpy(&address.storage, &un, sizeof un);
  return address;
}

Fd open_stream(int family) {
  Fd fd(::socket(family, SOCK_STREAM, 0));
  if (!fd.valid()) throw socket_error("cannot open a socket", errno);
  prepare_stream(fd, family);
  return fd;
}

void prepare_stream(const Fd& fd, int family) {
  set_cloexec(fd.get());
  set_nonblocking(fd.get());
#ifdef SO_NOSIGPIPE
  set_option(fd.get(), SOL_SOCKET, SO_NOSIGPIPE);
#endif
  if (family != AF_UNIX) set_option(fd.get(), IPPROTO_TCP, TCP_NODELAY);
}

Fd listen_on(const Address& address, int backlog) {
  Fd fd = open_stream(address.family());
  if (address.family() != AF_UNIX) set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR);
  const std::string where = address.family() == AF_UNIX ? "a local endpoint" : tcp_text(address);
  if (::bind(fd.get(), address.get(), address.length) != 0) throw socket_error("cannot bind " + where, errno);
  if (::listen(fd.get(), backlog) != 0) throw socket_error("cannot listen on " + where, errno);
  return fd;
}

Address local_address(const Fd& fd) {
  Address address;
  address.length = sizeof address.storage;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0)
    throw socket_error("cannot read a socket's address", errno);
  return address;
}

std::optional<size_t> try_write(int fd, std::span<const std::byte> data) {
  for (;;) {
    const ssize_t n = ::send(fd, data.data(), data.size(), kSendFlags);
    if (n >= 0) return static_cast<size_t>(n);
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) return 0;
    if (is_gone(errno)) return std::nullopt;
    throw socket_error("send failed", errno);
  }
}

std::optional<size_t> try_read(int fd, std::span<std::byte> into) {
  for (;;) {
    const ssize_t n = ::recv(fd, into.data(), into.size(), 0);
    if (n > 0) return static_cast<size_t>(n);
    if (n == 0) return std::nullopt;
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    if (is_gone(errno)) return std::nullopt;
    throw socket_error("receive failed", errno);
  }
}

}  // namespace verbund::mesh
