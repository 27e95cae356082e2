#include "compute/mlx/ring.h"

#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <thread>

namespace verbund::compute::mlx_impl {
namespace {

// The host file of one ring: readable by this user only, gone when the ring is up.
class HostFile {
 public:
  explicit HostFile(const std::vector<std::string>& nodes)
      : path_((std::filesystem::temp_directory_path() / "verbund-mlx-XXXXXX").string()) {
    std::string text = "[";
    for (const auto& node : nodes) text += std::string(text.size() > 1 ? "," : "") + "[\"" + node + "\"]";
    text += "]";
    const Fd fd(mkstemp(path_.data()));  // mode 0600
    if (!fd.valid()) throw Error(Code::unavailable, "cannot write MLX's host file: " + errno_text(errno), path_);
    const bool written = write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
    if (!written) {
      unlink(path_.c_str());
      throw Error(Code::unavailable, "cannot write MLX's host file: " + errno_text(errno), path_);
    }
  }
  ~HostFile() { unlink(path_.c_str()); }
  HostFile(const HostFile&) = delete;
  HostFile& operator=(const HostFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// MLX sends without MSG_NOSIGNAL: a peer that went away would kill this process by signal instead of failing the send.
void ignore_broken_pipes() {
  struct sigaction now {};
  if (sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) signal(SIGPIPE, SIG_IGN);
}

// MLX reads its ring from the environment and keeps it in a table of its own, which would hand out the same ring again.
mx::distributed::Group init_ring(const std::vector<std::string>& nodes, int rank) {
  ignore_broken_pipes();
  const HostFile file(nodes);
  setenv("MLX_HOSTFILE", file.path().c_str(), 1);
  setenv("MLX_RANK", std::to_string(rank).c_str(), 1);
  mx::distributed::clear_backends();
  const auto forget = [] {
    mx::distributed::clear_backends();
    unsetenv("MLX_HOSTFILE");
    unsetenv("MLX_RANK");
  };
  try {
    auto group = mx::distributed::init(true, "ring");
    forget();
    return group;
  } catch (...) {
    forget();
    throw;
  }
}

bool is_at(const sockaddr_in& at, const Endpoint& endpoint) {
  in_addr address{};
  inet_pton(AF_INET, endpoint.address.c_str(), &address);
  return ntohs(at.sin_port) == endpoint.port && at.sin_addr.s_addr == address.s_addr;
}

// The ring's connections among this process's descriptors: accepted on our endpoint, or connected to the right's.
std::vector<int> ring_sockets(const Endpoint& mine, const Endpoint& right) {
  std::vector<int> found;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const int end = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 65536));
  for (int fd = 3; fd < end; ++fd) {
    sockaddr_in own{}, peer{};
    socklen_t own_size = sizeof own, peer_size = sizeof peer;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size) != 0 || own.sin_family != AF_INET) continue;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_size) != 0) continue;
    if (is_at(own, mine) || is_at(peer, right)) found.push_back(fd);
  }
  return found;
}

// Runs `init` on a thread of its own, because nothing can interrupt MLX while it waits for its peers to connect. Past the
// deadline that thread is left behind: it holds only what it was given.
struct Opening {
  std::mutex mutex;
  std::condition_variable done;
  std::optional<mx::distributed::Group> group;
  std::exception_ptr failure;
};

mx::distributed::Group open_with_deadline(std::function<mx::distributed::Group()> init, const std::string& what, const Watchdog& dog,
                                          const Deadline& deadline) {
  auto opening = std::make_shared<Opening>();
  std::thread([opening, init = std::move(init)] {
    std::optional<mx::distributed::Group> group;
    std::exception_ptr failure;
    try {
      group = init();
    } catch (...) { failure = std::current_exception(); }
    std::lock_guard lock(opening->mutex);
    opening->group = std::move(group);
    opening->failure = failure;
    opening->done.notify_all();
  }).detach();

  std::unique_lock lock(opening->mutex);
  while (!opening->group && !opening->failure) {
    opening->done.wait_for(lock, std::chrono::milliseconds(20));
    dog.throw_if_dead();
    if (deadline.expired() && !opening->group && !opening->failure)
      throw Error(Error::Parts{Code::deadline_exceeded, Lost::instance, "not all ranks were there in time", what,
                               "check that every rank was started and that its address can be reached"});
  }
  if (opening->failure) {
    try {
      std::rethrow_exception(opening->failure);
    } catch (const Error&) { throw; } catch (const std::exception& e) {
      throw Error(
          Error::Parts{Code::unavailable, Lost::instance, e.what(), what, "check addresses, ports and that every rank was started"});
    }
  }
  return std::move(*opening->group);
}

}  // namespace

Channel::Channel(mx::distributed::Group group, const std::vector<int>& sockets, Watchdog& dog)
    : group_(std::move(group)), dog_(dog), sockets_(dog.add_sockets(sockets)) {}

Channel::~Channel() { dog_.remove_sockets(sockets_); }

std::shared_ptr<Channel> open_ring(const std::vector<std::string>& nodes, int rank, Watchdog& dog, const Deadline& deadline) {
  const int size = static_cast<int>(nodes.size());
  // The last rank connects first, and MLX waits a whole second before it tries again: let the others listen before.
  const bool connects_first = rank == size - 1;
  auto group = open_with_deadline(
      [nodes, rank, connects_first] {
        if (connects_first) std::this_thread::sleep_for(std::chrono::milliseconds(100));
        return init_ring(nodes, rank);
      },
      "opening an MLX ring of " + std::to_string(size), dog, deadline);
  const Endpoint mine = parse_endpoint(nodes[static_cast<size_t>(rank)]),
                 right = parse_endpoint(nodes[static_cast<size_t>((rank + 1) % size)]);
  const auto sockets = ring_sockets(mine, right);
  return std::make_shared<Channel>(std::move(group), sockets, dog);
}

std::shared_ptr<Channel> open_named(const std::string& name, Watchdog& dog, const Deadline& deadline) {
  if (!mx::distributed::is_available(name))
    throw Error(Code::unavailable, "this build of MLX has no \"" + name + "\" groups here", "MLX " + std::string(mx::version()),
                "use ring, or start under a launcher that provides it");
  auto group = open_with_deadline([name] { return mx::distributed::init(true, name); }, "opening an MLX " + name + " group", dog, deadline);
  return std::make_shared<Channel>(std::move(group), std::vector<int>{}, dog);
}

Endpoint parse_endpoint(const std::string& text) {
  const std::string rest = text.starts_with("mlx:") ? text.substr(4) : text;
  const size_t colon = rest.rfind(':');
  unsigned port = 0;
  in_addr parsed{};
  const bool split = colon != std::string::npos && colon > 0;
  const std::string address = rest.substr(0, split ? colon : 0);
  const char* begin = rest.data() + (split ? colon + 1 : 0);
  const char* end = rest.data() + rest.size();
  const auto [stop, error] = std::from_chars(begin, end, port);
  if (!split || error != std::errc() || stop != end || port == 0 || port > 65535 || inet_pton(AF_INET, address.c_str(), &parsed) != 1)
    throw Error(Code::invalid_argument, "not an endpoint of MLX's ring: \"" + text + "\"", {}, "write it as a.b.c.d:port");
  return {address, static_cast<uint16_t>(port)};
}

}  // namespace verbund::compute::mlx_impl
