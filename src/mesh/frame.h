// What travels on a link: frames of one header and one payload.
//
//   | padding to a multiple of Link::frame_align() bytes of the stream | header, one line of 64 bytes | payload |
//
// The padding keeps a header on one cache line and payloads on the next ones, so that sums read them in place; its bytes mean nothing. It
// belongs to the frame that follows, so nobody waits for it. Integers are little-endian.
// A receiver knows every field beforehand; a frame that differs proves that the ranks diverged. So no length from the wire is ever
// used for anything but this comparison and the text of the error (give_up excepted, which has a cap of its own).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace verbund::mesh {

static_assert(std::endian::native == std::endian::little, "frames are written as they lie in memory");

enum class Op : uint8_t { all_reduce_i64 = 1, all_reduce_f32, all_gather, broadcast, send, barrier, give_up };
std::string_view to_string(Op op);

struct FrameHeader {
  static constexpr uint16_t kMagic = 0x6256;  // "Vb"

  uint16_t magic = kMagic;
  Op op = Op::barrier;
  uint8_t phase = 0;             // two-shot all-reduce: 1 scatter, 2 gather (one-shot: 0); give_up: the error's code
  uint32_t group = 0;            // which mesh or subgroup; see GroupMesh::subgroup()
  uint64_t sequence = 0;         // of the operation within its group (send: of the pair within the group)
  uint64_t operation_bytes = 0;  // size of the whole operation as the caller sees it
  uint64_t payload_bytes = 0;    // what follows this header

  bool operator==(const FrameHeader&) const = default;
};
static_assert(sizeof(FrameHeader) == 32);

constexpr size_t kLineBytes = 64;            // parts of a vector begin on cache lines
constexpr size_t kHeaderBytes = kLineBytes;  // what a header takes in the stream; the rest of its line means nothing
constexpr uint64_t kGiveUpBytesMax = 1024;   // text of a give_up frame

// "all_reduce #41 of 4608 bytes"
std::string describe(const FrameHeader& frame);
// "ranks diverged: rank 0 is at all_reduce #41 of 4608 bytes, rank 1 at broadcast #40 of 64 bytes"
Error diverged(int rank, const FrameHeader& mine, int peer, const FrameHeader& theirs);

}  // namespace verbund::mesh
