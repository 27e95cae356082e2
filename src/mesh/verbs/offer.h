// What two ranks tell each other over their control connection before a queue pair stands. Bytes in, bytes out; no device needed.
//
//   each side:  Offer  (its ports and addresses, sizes it would like)       -> both compute the same choice
//               Card   (number and first sequence number of its queue pair) -> both bring theirs up
//               Ready  (it can receive)                                     -> traffic may begin
//
// Each of them can carry a text instead: why this side cannot. Then both know, and both fall back to the connection itself or end.
// On the wire: u32 bytes that follow (at most kMessageBytesMax), then the message. Parsers trust nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace verbund::mesh::verbs {

constexpr size_t kMessageBytesMax = 4096;
constexpr size_t kCandidatesMax = 16;
constexpr size_t kTextBytesMax = 1024;
constexpr uint32_t kSlotBytesMin = 4096, kSlotBytesMax = 1 << 20;  // of an Offer; a power of two
constexpr uint32_t kDepthMin = 4, kDepthMax = 4096;

using Gid = std::array<uint8_t, 16>;

enum Kinds : uint8_t { kUnreliable = 1, kReliable = 2 };  // of queue pairs: UC, RC
enum class Network : uint8_t { infiniband = 1, ethernet = 2 };

// One address of one port.
struct Candidate {
  std::string device;  // at most 32 printable characters
  uint8_t port = 0;
  Network network = Network::ethernet;
  uint8_t mtu = 0;          // as verbs count it: 1 is 256 bytes, 5 is 4096
  uint8_t kinds = 0;        // Kinds that it can do
  uint8_t prefix_bits = 0;  // of the network that the address is in; IPv4-mapped addresses only
  uint16_t lid = 0;
  uint16_t gid_index = 0;
  Gid gid{};

  bool ipv4() const;
  std::string address() const;                                                   // "10.77.0.1", "fe80:..."
  std::string name() const { return device + " port " + std::to_string(port); }  // "rxe0 port 1"
  std::string full_name() const;                                                 // "rxe0 port 1, GID 1 (10.77.0.1)"
  bool operator==(const Candidate&) const = default;
};

struct Offer {
  std::string problem;                      // no candidate at all: why
  bool required = false;                    // without RDMA this side will not go on
  uint8_t kinds = kUnreliable | kReliable;  // that this side was asked for
  uint32_t slot_bytes = 0, depth = 0;
  std::vector<Candidate> candidates;
  bool operator==(const Offer&) const = default;
};

struct Card {
  std::string problem;
  uint32_t number = 0, first_sequence = 0;  // 24 bits each
  bool operator==(const Card&) const = default;
};

struct Ready {
  std::string problem;
  bool operator==(const Ready&) const = default;
};

std::vector<std::byte> encode(const Offer& offer);  // with the length in front
std::vector<std::byte> encode(const Card& card);
std::vector<std::byte> encode(const Ready& ready);

// Of a whole message without its length. Throw data_loss for anything that encode() would not have made.
Offer parse_offer(std::span<const std::byte> message);
Card parse_card(std::span<const std::byte> message);
Ready parse_ready(std::span<const std::byte> message);

// What both sides come to from the two offers. `first` is of the lower rank; mine and theirs are told apart by the caller.
struct Choice {
  Candidate first, second;
  bool reliable = false;
  uint8_t mtu = 0;
  uint32_t slot_bytes = 0, depth = 0;
};
// Of the ports that can reach each other, those on the ends of the control connection come first. If there are none, why.
struct Chosen {
  std::optional<Choice> choice;
  std::string problem;
};
struct Side {
  std::string name;     // "rank 0"
  std::string address;  // its end of the control connection
};
Chosen choose(const Offer& first, const Offer& second, const Side& first_side, const Side& second_side);

}  // namespace verbund::mesh::verbs
