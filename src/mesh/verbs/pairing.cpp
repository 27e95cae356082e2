#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "mesh/sockets.h"
#include "mesh/tcp.h"
#include "mesh/verbs/endpoint.h"
#include "mesh/verbs/verbs.h"

namespace verbund::mesh {
namespace {

using namespace verbs;

// A slot holds a decode step's vector in one message; the depth lets a rank run ahead by several of them. Thunderbolt counts queues in
// frames of 4 KiB and stalls on messages of many, so there one slot is one frame.
#ifdef __APPLE__
constexpr uint32_t kSlotBytes = 4 * 1024, kDepth = 64;
#else
constexpr uint32_t kSlotBytes = 16 * 1024, kDepth = 24;
#endif

std::string peer_address(const Fd& fd) {
  Address address;
  address.length = sizeof address.storage;
  return ::getpeername(fd.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.length) == 0 ? host_of(address) : "";
}

// A datagram that nobody waits for, so that the system knows the neighbour by the time the queue pair needs it.
void greet_neighbour(const Candidate& theirs) {
  if (!theirs.ipv4()) return;
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(9);  // discard
  std::memcpy(&to.sin_addr, theirs.gid.data() + 12, sizeof to.sin_addr);
  const Fd socket(::socket(AF_INET, SOCK_DGRAM, 0));
  if (!socket.valid()) return;
  set_nonblocking(socket.get());
  (void)!::sendto(socket.get(), "", 0, 0, reinterpret_cast<const sockaddr*>(&to), sizeof to);
}

class VerbsPairing final : public Pairing {
 public:
  VerbsPairing(Fd connection, const MeshConfig& config, int peer) : socket_(std::move(connection)), config_(config), peer_(peer) {
    auto found = find_candidates(config.verbs.library);
    mine_.required = config.verbs.required;
    mine_.kinds = config.verbs.queue_pair == QueuePairKind::rc   ? kReliable
                  : config.verbs.queue_pair == QueuePairKind::uc ? kUnreliable
                                                                 : kReliable | kUnreliable;
    mine_.slot_bytes = kSlotBytes;
    mine_.depth = kDepth;
    if (found.candidates.empty()) mine_.problem = std::move(found.problem);
    mine_.candidates = std::move(found.candidates);
    send(encode(mine_));
  }

  bool advance() override {
    while (state_ != State::done) {
      flush();
      const auto message = receive();
      if (!message) return false;
      switch (state_) {
        case State::offer: on_offer(parse_offer(*message)); break;
        case State::card: on_card(parse_card(*message)); break;
        case State::ready: on_ready(parse_ready(*message)); break;
        case State::done: break;
      }
    }
    flush();
    return out_.empty();
  }
  int fd() const override { return socket_.get(); }

  std::unique_ptr<Link> take() override {
    if (!endpoint_) return pair_tcp(std::move(socket_), std::move(note_))->take();
    return make_link(std::move(endpoint_), std::move(socket_), fmt::format("rank {} to rank {}", config_.rank, peer_));
  }

 private:
  enum class State { offer, card, ready, done };

  void on_offer(const Offer& theirs) {
    required_ = mine_.required || theirs.required;
    const bool lower = config_.rank < peer_;
    const Side here{fmt::format("rank {}", config_.rank), host_of(local_address(socket_))};
    const Side there{fmt::format("rank {}", peer_), peer_address(socket_)};
    const Chosen chosen = lower ? choose(mine_, theirs, here, there) : choose(theirs, mine_, there, here);
    if (!chosen.choice) return do_without(chosen.problem);
    const Choice& c = *chosen.choice;
    plan_ = {lower ? c.first : c.second, lower ? c.second : c.first, c.reliable, c.mtu, c.slot_bytes, c.depth, config_.verbs.library};
    greet_neighbour(plan_.theirs);
    Card card;
    attempt(card.problem, [&] {
      endpoint_ = open_endpoint(plan_);
      card.number = endpoint_->number();
      card.first_sequence = static_cast<uint32_t>(random_u64() & 0xffffff);
    });
    my_first_sequence_ = card.first_sequence;
    send(encode(card));
    state_ = State::card;
  }

  void on_card(const Card& theirs) {
    if (!problem_.empty() || !theirs.problem.empty()) return do_without(problem_.empty() ? theirs.problem : problem_);
    Ready ready;
    attempt(ready.problem, [&] { endpoint_->connect(my_first_sequence_, theirs); });
    send(encode(ready));
    state_ = State::ready;
  }

  void on_ready(const Ready& theirs) {
    if (!problem_.empty() || !theirs.problem.empty()) return do_without(problem_.empty() ? theirs.problem : problem_);
    state_ = State::done;
  }

  template <class Function>
  void attempt(std::string& told, Function&& function) {
    try {
      function();
    } catch (const Error& e) { told = problem_ = e.what(); }
  }

  // Both sides come here at the same message, so the stream goes on with a link's frames.
  void do_without(const std::string& why) {
    endpoint_.reset();
    if (required_)
      throw Error({Code::unavailable,
                   Lost::instance,
                   fmt::format("no RDMA between rank {} and rank {}: {}", config_.rank, peer_, why),
                   {},
                   "without --require-rdma this link would use TCP"});
    note_ = "no RDMA: " + why;
    state_ = State::done;
  }

  void send(const std::vector<std::byte>& message) {
    out_.insert(out_.end(), message.begin(), message.end());
    flush();
  }
  void flush() {
    if (out_.empty()) return;
    const auto n = try_write(socket_.get(), out_);
    if (!n) throw gone();
    out_.erase(out_.begin(), out_.begin() + static_cast<ptrdiff_t>(*n));
  }

  // A whole message without its length, and not a byte of what follows it.
  std::optional<std::span<const std::byte>> receive() {
    for (;;) {
      uint32_t length = 0;
      if (have_ >= sizeof length) {
        std::memcpy(&length, in_.data(), sizeof length);
        if (length > kMessageBytesMax)
          throw Error({Code::data_loss, Lost::instance, fmt::format("the peer announced an RDMA message of {} bytes", length), {}, {}});
      }
      const size_t whole = sizeof length + length;
      if (have_ >= sizeof length && have_ == whole) {
        have_ = 0;
        return std::span(in_).subspan(sizeof length, length);
      }
      const auto n = try_read(socket_.get(), std::span(in_).subspan(have_, whole - have_));
      if (!n) throw gone();
      if (*n == 0) return {};
      have_ += *n;
    }
  }
  static Error gone() {
    return Error({Code::unavailable, Lost::instance, "the connection was closed before the queue pairs were agreed on", {}, {}});
  }

  Fd socket_;
  const MeshConfig& config_;
  const int peer_;
  State state_ = State::offer;
  Offer mine_;
  bool required_ = false;
  Plan plan_;
  std::unique_ptr<Endpoint> endpoint_;
  uint32_t my_first_sequence_ = 0;
  std::string problem_;  // of this side
  std::string note_;     // why the pair goes without RDMA
  std::vector<std::byte> out_;
  std::array<std::byte, sizeof(uint32_t) + kMessageBytesMax> in_{};
  size_t have_ = 0;
};

}  // namespace

std::unique_ptr<Pairing> pair_verbs(Fd connection, const MeshConfig& config, int peer) {
  return std::make_unique<VerbsPairing>(std::move(connection), config, peer);
}

std::string describe_rdma() {
  const Found found = find_candidates({});
  std::string text;
  for (const Candidate& c : found.candidates) text += (text.empty() ? "" : "; ") + c.full_name();
  return text.empty() ? found.problem : text;
}

uint64_t verbs_buffer_bytes() { return verbs::buffer_bytes(kSlotBytes, kDepth); }

}  // namespace verbund::mesh
