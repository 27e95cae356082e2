// The process of one rank: `verbund runner --fd N`, driven over a Unix socket with CBOR frames (frames.h).
//
//   owner -> runner   plan {config}, commit {endpoints}, submit {request, hash_logits}, cancel {id}, ping {n}, abort {reason}, stop
//   runner -> owner   planned {memory, endpoint, backend}, progress {bytes, total}, ready {weight_bytes, kv_bytes, links},
//                     events [...], pong {n}, error {error}, report {peak_rss_bytes, links, trace}
//
// The main thread loads and computes; a control thread answers pings and ends data waits when told to (abort) or when
// the owner is gone. A runner never outlives its owner.
#pragma once

namespace verbund::engine {

// Runs until stopped; returns the exit code.
int run_runner(int fd);

}  // namespace verbund::engine
