// Groups of MLX: its TCP ring, made from a list of endpoints, and those that a launcher prepares in the environment.
//
// MLX thinks of one ring a process, described by a host file and two environment variables, read once. A ring is an object
// of its own all the same, and MLX's table of them can be cleared, so several rings can live side by side.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "compute/mlx/border.h"
#include "compute/mlx/reserve.h"
#include "compute/mlx/watchdog.h"

namespace verbund::compute::mlx_impl {

// A group and, for a ring, the sockets below it. The last owner must not be inside an operation.
class Channel {
 public:
  Channel(mx::distributed::Group group, const std::vector<int>& sockets, Watchdog& dog);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  const mx::distributed::Group& group() const { return group_; }

 private:
  mx::distributed::Group group_;
  Watchdog& dog_;
  std::vector<int> sockets_;
};

// Ring over nodes ("a.b.c.d:port" in rank order), this process being `rank`. Blocks until all are there.
std::shared_ptr<Channel> open_ring(const std::vector<std::string>& nodes, int rank, Watchdog& dog, const Deadline& deadline);
// A group that MLX finds by name in the environment.
std::shared_ptr<Channel> open_named(const std::string& name, Watchdog& dog, const Deadline& deadline);

struct Endpoint {
  std::string address;
  uint16_t port;
  std::string text() const { return address + ":" + std::to_string(port); }
};
Endpoint parse_endpoint(const std::string& text);  // "a.b.c.d:port", "mlx:a.b.c.d:port"; throws invalid_argument

}  // namespace verbund::compute::mlx_impl
