// The input is a message of a peer that wants RDMA (mesh/verbs/offer.h). What is accepted must be just what encode() makes of it.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "mesh/verbs/offer.h"
#include "read_everything.h"

namespace {

using namespace verbund;
using namespace verbund::mesh::verbs;

template <class Message>
void try_one(Message (*parse)(std::span<const std::byte>), std::span<const std::byte> input) {
  try {
    const Message message = parse(input);
    const auto again = encode(message);
    if (again.size() != input.size() + sizeof(uint32_t) || std::memcmp(again.data() + sizeof(uint32_t), input.data(), input.size()) != 0)
      std::abort();
    if constexpr (std::is_same_v<Message, Offer>) {
      const Chosen chosen = choose(message, message, {"rank 0", "10.0.0.1"}, {"rank 1", "10.0.0.2"});
      if (chosen.choice.has_value() == !chosen.problem.empty()) std::abort();
    }
  } catch (const Error& e) { formats::check_refusal(e); }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span input(reinterpret_cast<const std::byte*>(data), size);
  try_one(parse_offer, input);
  try_one(parse_card, input);
  try_one(parse_ready, input);
  return 0;
}
