// Brings up the links between the ranks of an instance.
//
// Each rank first opens a Listener, reports its endpoint text to whoever starts the instance, gets the endpoints of all
// ranks back, and calls connect_mesh(). The higher rank connects to the lower. Both ends prove that they know the
// instance secret (HMAC-SHA256 over fresh nonces, epoch, ranks and protocol version; mesh/handshake.h) before a frame is
// accepted; a stranger gets nothing and costs one bounded buffer for a bounded time.
// A peer that proves the secret but is of an earlier epoch is turned away and told so; one that speaks another protocol version or was
// given another placement ends the set-up on both sides. When the deadline passes, the error names the ranks that are
// missing and who was turned away meanwhile.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.h"
#include "mesh/mesh.h"

namespace verbund::mesh {

enum class Transport { shm, tcp, verbs };
Transport transport_from_string(const std::string& text);  // throws invalid_argument listing the choices
std::string_view to_string(Transport t);

enum class QueuePairKind { automatic, rc, uc };
QueuePairKind queue_pair_from_string(const std::string& text);  // "auto", "rc", "uc"; throws invalid_argument

struct VerbsConfig {
  bool required = false;  // a pair of ranks without RDMA ends the set-up; otherwise it uses TCP and reports that as its transport
  QueuePairKind queue_pair = QueuePairKind::automatic;  // RC where both ends have it
  std::string library;                                  // path of the verbs library; empty: the system's
};

struct MeshConfig {
  int rank = 0;
  int size = 1;
  uint64_t epoch = 1;
  std::string secret;              // at least 16 bytes
  std::string host = "127.0.0.1";  // tcp, verbs: the own address to listen on; the peers connect to it
  Transport transport = Transport::shm;
  VerbsConfig verbs;
  // Computing threads of each rank. With more of them on this host than it has cores each look of a wait gives the core away.
  int threads = 1;
  int64_t spin_us = -1;  // how long a wait spins; negative: chosen from the above
  // Test hook: delays and reorders frames and arrival by a seeded generator; results must not change. 0 = off.
  uint64_t jitter_seed = 0;
};

// Memory that the links of this rank will hold (at most), for the accountant; known before they exist.
uint64_t buffer_bytes_estimate(const MeshConfig& config);

class Listener {
 public:
  virtual ~Listener() = default;
  virtual std::string endpoint() const = 0;  // "shm:<name>", "tcp:127.0.0.1:40123", "verbs:10.77.0.1:40123"
  virtual int fd() const = 0;                // for connect_mesh()
};

// Both throw invalid_argument for a config that cannot be. The listener may be closed once connect_mesh() has returned.
std::unique_ptr<Listener> listen(const MeshConfig& config);
std::unique_ptr<Mesh> connect_mesh(const MeshConfig& config, Listener& listener, const std::vector<std::string>& endpoints,
                                   const Deadline& deadline);

}  // namespace verbund::mesh
