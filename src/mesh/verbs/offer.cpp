#include "mesh/verbs/offer.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "base/error.h"

namespace verbund::mesh::verbs {
namespace {

static_assert(std::endian::native == std::endian::little, "messages are written as they lie in memory");

enum class Kind : uint8_t { offer = 1, card, ready };
constexpr uint8_t kMagic = 0xb7;
constexpr size_t kDeviceBytesMax = 32;
constexpr std::array<uint8_t, 12> kIpv4Mapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

Error malformed(std::string_view what) {
  return Error({Code::data_loss, Lost::instance, fmt::format("the peer sent a malformed RDMA message: {}", what), {}, {}});
}

class Writer {
 public:
  explicit Writer(Kind kind) : bytes_(sizeof(uint32_t)) {
    put(kMagic);
    put(kind);
  }
  template <class T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto raw = std::as_bytes(std::span(&value, 1));
    bytes_.insert(bytes_.end(), raw.begin(), raw.end());
  }
  void put_text(std::string_view text, size_t max) {
    text = text.substr(0, max);
    put(static_cast<uint16_t>(text.size()));
    for (const char c : text) put(c < 0x20 || c > 0x7e ? '?' : c);
  }
  std::vector<std::byte> take() {
    const auto length = static_cast<uint32_t>(bytes_.size() - sizeof(uint32_t));
    std::memcpy(bytes_.data(), &length, sizeof length);
    return std::move(bytes_);
  }

 private:
  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, Kind kind) : bytes_(bytes) {
    if (get<uint8_t>() != kMagic || get<Kind>() != kind) throw malformed("not the expected one");
  }
  template <class T>
  T get() {
    T value;
    const auto raw = take(sizeof value);
    std::memcpy(&value, raw.data(), sizeof value);
    return value;
  }
  bool get_flag() {
    const auto raw = get<uint8_t>();
    if (raw > 1) throw malformed("a flag that is neither 0 nor 1");
    return raw == 1;
  }
  template <class T>
  T get_within(T low, T high, std::string_view what) {
    const T value = get<T>();
    if (value < low || value > high) throw malformed(what);
    return value;
  }
  std::string get_text(size_t max) {
    const auto raw = take(get_within<uint16_t>(0, static_cast<uint16_t>(max), "a text too long"));
    std::string text(reinterpret_cast<const char*>(raw.data()), raw.size());
    if (std::any_of(text.begin(), text.end(), [](char c) { return c < 0x20 || c > 0x7e; })) throw malformed("unprintable text");
    return text;
  }
  void end() const {
    if (!bytes_.empty()) throw malformed("bytes behind its end");
  }

 private:
  std::span<const std::byte> take(size_t n) {
    if (n > bytes_.size()) throw malformed("too short");
    const auto taken = bytes_.first(n);
    bytes_ = bytes_.subspan(n);
    return taken;
  }
  std::span<const std::byte> bytes_;
};

uint32_t net(const Candidate& c, unsigned bits) {
  uint32_t address;
  std::memcpy(&address, c.gid.data() + 12, sizeof address);
  return bits == 0 ? 0 : ntohl(address) & (~uint32_t(0) << (32 - bits));
}

bool can_reach(const Candidate& a, const Candidate& b) {
  if (a.network != b.network) return false;
  if (a.network == Network::infiniband) return std::equal(a.gid.begin(), a.gid.begin() + 8, b.gid.begin());
  if (!a.ipv4() || !b.ipv4()) return false;
  if (a.gid == b.gid) return true;
  const unsigned bits = std::min(a.prefix_bits, b.prefix_bits);
  return bits > 0 && net(a, bits) == net(b, bits);
}

}  // namespace

bool Candidate::ipv4() const { return std::equal(kIpv4Mapped.begin(), kIpv4Mapped.end(), gid.begin()); }

std::string Candidate::address() const {
  char text[INET6_ADDRSTRLEN] = "?";
  if (ipv4())
    ::inet_ntop(AF_INET, gid.data() + 12, text, sizeof text);
  else
    ::inet_ntop(AF_INET6, gid.data(), text, sizeof text);
  return text;
}

std::string Candidate::full_name() const { return fmt::format("{}, GID {} ({})", name(), gid_index, address()); }

std::vector<std::byte> encode(const Offer& offer) {
  Writer w(Kind::offer);
  w.put_text(offer.problem, kTextBytesMax);
  w.put(static_cast<uint8_t>(offer.required));
  w.put(offer.kinds);
  w.put(offer.slot_bytes);
  w.put(offer.depth);
  const size_t count = std::min(offer.candidates.size(), kCandidatesMax);
  w.put(static_cast<uint8_t>(count));
  for (size_t i = 0; i < count; ++i) {
    const Candidate& c = offer.candidates[i];
    w.put_text(c.device, kDeviceBytesMax);
    w.put(c.port);
    w.put(c.network);
    w.put(c.mtu);
    w.put(c.kinds);
    w.put(c.prefix_bits);
    w.put(c.lid);
    w.put(c.gid_index);
    w.put(c.gid);
  }
  return w.take();
}

std::vector<std::byte> encode(const Card& card) {
  Writer w(Kind::card);
  w.put_text(card.problem, kTextBytesMax);
  w.put(card.number);
  w.put(card.first_sequence);
  return w.take();
}

std::vector<std::byte> encode(const Ready& ready) {
  Writer w(Kind::ready);
  w.put_text(ready.problem, kTextBytesMax);
  return w.take();
}

Offer parse_offer(std::span<const std::byte> message) {
  Reader r(message, Kind::offer);
  Offer offer;
  offer.problem = r.get_text(kTextBytesMax);
  offer.required = r.get_flag();
  offer.kinds = r.get_within<uint8_t>(1, kUnreliable | kReliable, "unknown kinds of queue pairs");
  offer.slot_bytes = r.get_within(kSlotBytesMin, kSlotBytesMax, "slots of an impossible size");
  if (!std::has_single_bit(offer.slot_bytes)) throw malformed("slots of an impossible size");
  offer.depth = r.get_within(kDepthMin, kDepthMax, "an impossible number of slots");
  const auto count = r.get_within<uint8_t>(0, kCandidatesMax, "too many ports");
  for (int i = 0; i < count; ++i) {
    Candidate c;
    c.device = r.get_text(kDeviceBytesMax);
    c.port = r.get_within<uint8_t>(1, 255, "port 0");
    c.network = static_cast<Network>(r.get_within<uint8_t>(1, 2, "an unknown kind of network"));
    c.mtu = r.get_within<uint8_t>(1, 5, "an impossible MTU");
    c.kinds = r.get_within<uint8_t>(1, kUnreliable | kReliable, "unknown kinds of queue pairs");
    c.prefix_bits = r.get_within<uint8_t>(0, 32, "an impossible prefix");
    c.lid = r.get<uint16_t>();
    c.gid_index = r.get<uint16_t>();
    c.gid = r.get<Gid>();
    offer.candidates.push_back(std::move(c));
  }
  r.end();
  return offer;
}

Card parse_card(std::span<const std::byte> message) {
  Reader r(message, Kind::card);
  Card card;
  card.problem = r.get_text(kTextBytesMax);
  card.number = r.get_within<uint32_t>(0, 0xffffff, "an impossible queue pair");
  card.first_sequence = r.get_within<uint32_t>(0, 0xffffff, "an impossible sequence number");
  r.end();
  return card;
}

Ready parse_ready(std::span<const std::byte> message) {
  Reader r(message, Kind::ready);
  Ready ready{r.get_text(kTextBytesMax)};
  r.end();
  return ready;
}

Chosen choose(const Offer& first, const Offer& second, const Side& first_side, const Side& second_side) {
  if (first.candidates.empty()) return {{}, fmt::format("{} has no usable port: {}", first_side.name, first.problem)};
  if (second.candidates.empty()) return {{}, fmt::format("{} has no usable port: {}", second_side.name, second.problem)};

  const uint8_t asked = first.kinds & second.kinds;
  if (asked == 0) return {{}, "one rank wants reliable queue pairs (RC), the other unreliable ones (UC)"};
  const Candidate *best_first = nullptr, *best_second = nullptr;
  int best = -1;
  bool reachable = false;
  for (const Candidate& a : first.candidates)
    for (const Candidate& b : second.candidates) {
      if (!can_reach(a, b)) continue;
      reachable = true;
      if ((a.kinds & b.kinds & asked) == 0) continue;
      const int score = 2 * (a.address() == first_side.address && b.address() == second_side.address) + (a.ipv4() && b.ipv4());
      if (score > best) best = score, best_first = &a, best_second = &b;
    }
  if (!best_first) {
    if (reachable) return {{}, "no kind of queue pair (RC, UC) is possible at both ends"};
    const auto list = [](const Offer& offer) {
      std::string names;
      for (const Candidate& c : offer.candidates) names += (names.empty() ? "" : "; ") + c.full_name();
      return names;
    };
    return {{}, fmt::format("no two ports are in one network: {} - {}", list(first), list(second))};
  }
  const uint8_t kinds = best_first->kinds & best_second->kinds & asked;
  return {Choice{*best_first, *best_second, (kinds & kReliable) != 0, std::min(best_first->mtu, best_second->mtu),
                 std::min(first.slot_bytes, second.slot_bytes), std::min(first.depth, second.depth)},
          {}};
}

}  // namespace verbund::mesh::verbs
