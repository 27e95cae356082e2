// The collectives of an instance's ranks, over one Link per peer.
//
// Every rank of a mesh calls the same operations in the same order. Each frame carries operation, sequence number and
// length; ranks that diverge get an Error ("ranks diverged ...", Code::data_loss) within one operation, never a hang and
// never wrong data. Every wait has a deadline (Error deadline_exceeded naming operation, peer rank and time waited).
// One thread at a time uses a Mesh; cancel() alone may come from any thread and ends every wait on it and its subgroups.
// After an Error the mesh is dead: each further call throws the same kind of error.
//
// Algorithms by size: one-shot (each rank sends its whole vector to all, then sums locally) up to kOneShotBytesMax,
// two-shot (reduce-scatter, all-gather) above. Both give the same bits for int64 (integer addition). f32 sums are added
// in ascending rank order of the mesh, whatever the arrival order.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/deadline.h"

namespace verbund::mesh {

// Crossover of one-shot and two-shot all-reduce. See `verbund bench link`.
constexpr size_t kOneShotBytesMax = 32 * 1024;

class Mesh {
 public:
  virtual ~Mesh() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual void all_reduce(std::span<int64_t> data, const Deadline& deadline) = 0;  // sum, in place
  virtual void all_reduce(std::span<float> data, const Deadline& deadline) = 0;    // sum, in place, ascending rank order
  // `mine` of each rank to all; lengths may differ and are known to all: sizes[r] bytes from rank r, in rank order.
  virtual void all_gather(std::span<const std::byte> mine, std::span<const size_t> sizes, std::span<std::byte> all,
                          const Deadline& deadline) = 0;
  virtual void broadcast(std::span<std::byte> data, int root, const Deadline& deadline) = 0;
  virtual void send(std::span<const std::byte> data, int to, const Deadline& deadline) = 0;
  virtual void recv(std::span<std::byte> data, int from, const Deadline& deadline) = 0;
  virtual void barrier(const Deadline& deadline) = 0;

  // The mesh of these ranks (ascending, containing this one); shares the links. All of them must create it, in the same
  // order as their other subgroups; its frames cannot be taken for the parent's.
  virtual std::unique_ptr<Mesh> subgroup(std::span<const int> ranks) = 0;

  virtual void cancel(const std::string& reason) = 0;

  struct LinkInfo {
    int peer;
    std::string transport;
    uint64_t bytes_sent, bytes_received;
    std::string note = {};  // why this is not the transport that was asked for; empty: it is
  };
  virtual std::vector<LinkInfo> links() const = 0;
  virtual uint64_t buffer_bytes() const = 0;  // memory held by transports, for the accountant
};

// A mesh of one rank: every operation returns at once.
std::unique_ptr<Mesh> make_solo_mesh();

}  // namespace verbund::mesh
