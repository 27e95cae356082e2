// Transport shm: two processes of one host, one ring in shared memory per direction, and a Unix socket between them.
//
// The producer of a direction creates its ring as nameless memory and passes the descriptor over the socket; nothing has a name
// that could outlive a killed process. The socket stays open: a byte on it wakes a peer that said it sleeps, its end tells that
// the peer died, and a dying rank's last words travel on it. While both ranks are awake no system call is made.
#pragma once

#include <memory>

#include "base/unix.h"
#include "mesh/link.h"

namespace verbund::mesh {

// Room for several one-shot vectors, so that a rank can run ahead of a slower one; L2-sized, so that rings stay in cache.
constexpr size_t kRingBytes = 256 * 1024;

std::unique_ptr<Pairing> pair_shm(Fd connection);

}  // namespace verbund::mesh
