// What this machine can do at best: bytes read a second per working-set size and thread count, and multiply-adds a second
// of each instruction set. The other programs express their figures as shares of these, measured in the same run.
//
// Every function starts its own threads, occupies that many cores for about `seconds`, and reports the best round: a roof is
// what nothing has disturbed. Use from one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace verbund::bench {

// `call(thread)` runs on every thread at once, again and again; returns the largest units a second of all threads together
// over a round, where one call does `units` of work.
double best_rate(unsigned threads, double seconds, double units, const std::function<void(unsigned)>& call);

struct Bandwidth {
  uint64_t bytes = 0;  // working set of all threads together
  unsigned threads = 0;
  double plain = 0, prefetched = 0;  // bytes/s without and with a software prefetch about 4 KiB ahead
  double best() const { return plain > prefetched ? plain : prefetched; }
};
// Each thread reads its own part of one buffer in huge pages (where the system gives them), front to back.
Bandwidth read_bandwidth(uint64_t bytes, unsigned threads, double seconds);

struct Peak {
  std::string name;          // "int8 AMX"
  std::string instructions;  // "tdpbssd, 2x2 tiles"
  std::string isa;           // of Backend::description()'s --isa names that can use it, "" if none does
  bool available = false;    // this processor and system have it
  double per_s = 0;          // multiply-adds a second
};
// Operands in registers, or in the first-level cache where the instruction reads memory (tiles).
std::vector<Peak> peaks(unsigned threads, double seconds);

// Asks the system for AMX tiles for this process; false where processor or system have none.
bool request_tiles();

}  // namespace verbund::bench
