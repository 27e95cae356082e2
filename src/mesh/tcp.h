// Transport tcp: one non-blocking socket with NODELAY per pair, one buffer for each direction.
//
// The buffers join header and payload into one send, and let sums read what arrived in place.
#pragma once

#include <memory>
#include <string>

#include "base/unix.h"
#include "mesh/link.h"

namespace verbund::mesh {

constexpr size_t kTcpBufferBytes = 256 * 1024;  // of each direction

std::unique_ptr<Pairing> pair_tcp(Fd connection, std::string note = {});  // note: of the link

}  // namespace verbund::mesh
