#include "engine/plan_channel.h"

#include <array>
#include <cstring>

#include "base/error.h"

namespace verbund::engine {
namespace {

// A decode step of a dozen sequences fits; longer plans follow in a frame of their own.
constexpr size_t kFrame = 1024;
struct Header {
  uint32_t turn;
  uint32_t bytes;
};
constexpr size_t kInline = kFrame - sizeof(Header);

}  // namespace

void PlanChannel::announce(Turn turn) { send(turn, {}); }
void PlanChannel::announce(const StepPlan& plan) { send(Turn::step, encode(plan)); }

void PlanChannel::send(Turn turn, std::span<const std::byte> body) {
  if (world_.size() == 1) return;
  std::array<std::byte, kFrame> frame{};
  const Header header{static_cast<uint32_t>(turn), static_cast<uint32_t>(body.size())};
  std::memcpy(frame.data(), &header, sizeof header);
  std::memcpy(frame.data() + sizeof header, body.data(), std::min(body.size(), kInline));
  world_.broadcast(frame, 0, Deadline::after(wait_));
  if (body.size() > kInline) {
    std::vector<std::byte> rest(body.begin() + kInline, body.end());
    world_.broadcast(rest, 0, Deadline::after(wait_));
  }
}

PlanChannel::Message PlanChannel::receive() {
  std::array<std::byte, kFrame> frame;
  world_.broadcast(frame, 0, Deadline::after(wait_));
  Header header;
  std::memcpy(&header, frame.data(), sizeof header);
  if (header.turn > static_cast<uint32_t>(Turn::stop) || header.bytes > plan_bytes_max(limits_))
    throw Error(
        {Code::data_loss, Lost::instance, "the announcement of the next step is damaged", "rank " + std::to_string(world_.rank()), {}});
  Message message{static_cast<Turn>(header.turn), {}};
  if (message.turn != Turn::step) return message;

  std::vector<std::byte> body(header.bytes);
  std::memcpy(body.data(), frame.data() + sizeof header, std::min(body.size(), kInline));
  if (body.size() > kInline) world_.broadcast(std::span(body).subspan(kInline), 0, Deadline::after(wait_));
  message.plan = decode_plan(body, limits_);
  if (message.plan.sequence <= last_sequence_)
    throw Error({Code::data_loss,
                 Lost::instance,
                 "ranks diverged: step " + std::to_string(message.plan.sequence) + " after step " + std::to_string(last_sequence_),
                 "rank " + std::to_string(world_.rank()),
                 {}});
  last_sequence_ = message.plan.sequence;
  return message;
}

}  // namespace verbund::engine
