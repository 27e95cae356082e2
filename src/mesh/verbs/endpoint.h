// One end of a pair of queue pairs, from the search for a port to a Link. No type of the verbs library shows here, so that a build
// without its headers differs in one file (without.cpp) and still talks to a peer that has them.
#pragma once

#include <memory>
#include <string>

#include "base/unix.h"
#include "mesh/link.h"
#include "mesh/verbs/offer.h"

namespace verbund::mesh::verbs {

// Usable ports of this machine, or why there is none: no library, no device, port down, no address.
struct Found {
  std::vector<Candidate> candidates;
  std::string problem;
};
Found find_candidates(const std::string& library);  // empty: the system's

// A Choice as one side sees it.
struct Plan {
  Candidate mine, theirs;
  bool reliable = false;
  uint8_t mtu = 1;
  uint32_t slot_bytes = 0, depth = 0;
  std::string library;
};

class Endpoint {
 public:
  virtual ~Endpoint() = default;
  virtual uint32_t number() const = 0;
  // To the peer's queue pair; it can receive from here on. `first_sequence` is what this side said in its own card.
  virtual void connect(uint32_t first_sequence, const Card& theirs) = 0;
};

// Device, memory, queues; all receives are posted. Throws naming device, port and address.
std::unique_ptr<Endpoint> open_endpoint(const Plan& plan);

// Of a connected endpoint. The control connection stays open: its end tells that the peer died, and last words travel on it.
std::unique_ptr<Link> make_link(std::unique_ptr<Endpoint> endpoint, Fd control, const std::string& name);

// Beside the messages of data: those that only return slots. Of one direction no more can be under way, see VerbsLink::flush().
constexpr uint32_t kExtraSlots = 4;

constexpr uint64_t buffer_bytes(uint32_t slot_bytes, uint32_t depth) {  // of one link
  return uint64_t(2) * (depth + kExtraSlots) * slot_bytes;
}

}  // namespace verbund::mesh::verbs
