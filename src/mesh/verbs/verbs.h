// Transport verbs: RDMA by SEND and RECV over one queue pair (RC or UC) for each pair of ranks. InfiniBand and RoCE through libibverbs,
// Thunderbolt 5 between Macs through librdma; the library is loaded at run time.
//
// The control connection is a TCP socket that agrees on ports and queue pairs (offer.h), and afterwards tells of a peer's end. Where a
// pair of ranks cannot do RDMA it becomes the link itself, and says so as its transport, unless one of them requires RDMA.
#pragma once

#include <memory>
#include <string>

#include "base/unix.h"
#include "mesh/connect.h"
#include "mesh/link.h"

namespace verbund::mesh {

std::unique_ptr<Pairing> pair_verbs(Fd connection, const MeshConfig& config, int peer);
uint64_t verbs_buffer_bytes();  // of one link, at most
std::string describe_rdma();    // the ports that can be used here, or why there is none

}  // namespace verbund::mesh
