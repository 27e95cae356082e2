#include "mesh/frame.h"

#include <fmt/format.h>

namespace verbund::mesh {

std::string_view to_string(Op op) {
  switch (op) {
    case Op::all_reduce_i64: return "all_reduce";
    case Op::all_reduce_f32: return "all_reduce (f32)";
    case Op::all_gather: return "all_gather";
    case Op::broadcast: return "broadcast";
    case Op::send: return "send/recv";
    case Op::barrier: return "barrier";
    case Op::give_up: return "give_up";
  }
  return "unknown operation";
}

std::string describe(const FrameHeader& frame) {
  if (frame.op == Op::barrier) return fmt::format("{} #{}", to_string(frame.op), frame.sequence);
  return fmt::format("{} #{} of {} bytes", to_string(frame.op), frame.sequence, frame.operation_bytes);
}

Error diverged(int rank, const FrameHeader& mine, int peer, const FrameHeader& theirs) {
  std::string theirs_text = theirs.magic == FrameHeader::kMagic ? describe(theirs) : "no frame boundary";
  if (theirs.magic == FrameHeader::kMagic && theirs.group != mine.group) theirs_text += " of another group";
  if (describe(theirs) == describe(mine) && theirs.payload_bytes != mine.payload_bytes)
    theirs_text += fmt::format(" with a part of {} instead of {} bytes", theirs.payload_bytes, mine.payload_bytes);
  return Error({Code::data_loss,
                Lost::instance,
                fmt::format("ranks diverged: rank {} is at {}, rank {} at {}", rank, describe(mine), peer, theirs_text),
                {},
                "the ranks ran different steps; start the instance again"});
}

}  // namespace verbund::mesh
