#include "engine/philox.h"

namespace verbund::engine {

std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  // Multipliers and key increments (golden ratio, sqrt(3) - 1) of the published generator.
  constexpr uint64_t kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;
  constexpr uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = kMultiplier0 * counter[0], p1 = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

double uniform(uint64_t seed, uint64_t position, uint32_t choice, Purpose purpose) {
  const auto x =
      philox4x32_10({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), choice, static_cast<uint32_t>(purpose)},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = (uint64_t{x[0] >> 5} << 26) + (x[1] >> 6);  // 27 + 26 = 53 bits
  return static_cast<double>(bits) / 9007199254740992.0;
}

}  // namespace verbund::engine
