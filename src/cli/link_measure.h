// What `verbund bench link` measures on a mesh: each pair of ranks alone, then all of them in an all-reduce.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mesh/mesh.h"

namespace verbund::cli {

struct LinkRow {
  uint64_t bytes;
  double p50_us, p99_us;  // pair: half of a round trip; all-reduce: one call
  double gb_per_s;        // pair: a stream one way; all-reduce: bytes of the vector over its median
};

struct PairFigures {
  int from, to;
  std::string transport;  // what the link really is
  std::vector<LinkRow> rows;
};

struct MeshFigures {
  std::string transport;  // what was asked for
  int ranks = 0;
  std::vector<PairFigures> pairs;
  std::vector<LinkRow> all_reduce;
};

struct LinkMeasurement {
  std::vector<uint64_t> sizes;  // bytes, multiples of 8
  int repeat = 2000;            // timed calls of the small sizes; large ones need fewer for a steady median
  bool pairs = true;
};

// Every rank calls it; all return the same figures, each taken at the rank that can: a pair's at its lower rank, an all-reduce at
// rank 0. Ranks go in lockstep: a call waits for the others. Throws what the mesh throws.
MeshFigures measure_links(mesh::Mesh& mesh, const LinkMeasurement& what);

}  // namespace verbund::cli
