// Mutual proof of the instance secret on a fresh connection, without sockets: bytes in, bytes out.
//
//   client                                      server
//   Hello: version, epoch, ranks, nonce  -->
//                                        <--    Hello: its own
//   HMAC(secret, "client", both hellos)  -->
//                                        <--    verdict, HMAC(secret, "server", both hellos, verdict)
//
// The server proves nothing before the client has, so a stranger learns only what a hello holds. Fresh nonces on both sides
// make a recording worthless; epoch, ranks, size and version are covered by the proofs. Hello and proofs keep their layout in every
// version of the protocol, so that two versions can tell each other so.
// Needs one fixed buffer. After success not a byte more than the handshake has been read. Used by one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/error.h"
#include "mesh/connect.h"

namespace verbund::mesh {

constexpr uint32_t kProtocolVersion = 1;
constexpr size_t kSecretBytesMin = 16;

struct Hello {
  std::array<char, 16> magic{};
  uint32_t version = 0;
  uint8_t role = 0;       // 1 client, 2 server
  uint8_t transport = 0;  // 1 shm, 2 tcp, 3 verbs
  uint16_t reserved = 0;
  uint32_t rank = 0;  // of the sender
  uint32_t peer = 0;  // whom the sender believes to talk to
  uint32_t size = 0;  // ranks of the mesh
  uint32_t reserved2 = 0;
  uint64_t epoch = 0;
  std::array<uint8_t, 32> nonce{};
};
static_assert(sizeof(Hello) == 80);

using Proof = std::array<uint8_t, 32>;

struct Verdict {
  enum class Kind : uint32_t { welcome = 1, unknown_secret, other_version, other_epoch, other_placement, already_connected };
  Kind kind = Kind::unknown_secret;
  uint32_t reserved = 0;
  Proof proof{};  // zero when the client proved nothing
};
static_assert(sizeof(Verdict) == 40);

class Handshake {
 public:
  // Client of rank `peer`, or server for whoever comes (peer < 0). `taken` tells whether a rank is connected already.
  Handshake(const MeshConfig& config, int peer, const std::vector<bool>* taken = nullptr);

  std::span<const std::byte> output() const;  // to be written; empty: nothing now
  void wrote(size_t bytes);
  std::span<std::byte> input();  // where the next bytes go; empty: none wanted now
  void read(size_t bytes);       // throws when the other side may not join

  bool finished() const { return state_ == State::done && output().empty(); }
  // Server: set when the client was turned away, after the verdict is written; fatal: the peer is one of us, but cannot ever join.
  const std::optional<Error>& refused() const { return refused_; }
  bool fatal() const { return fatal_; }
  bool greeted() const { return state_ > State::hello; }  // the other side has said a whole hello
  int peer() const { return peer_; }

 private:
  enum class State { magic, hello, proof, verdict, done };

  void on_hello();
  void on_proof();
  void on_verdict();
  Verdict::Kind judge(const Hello& theirs) const;
  Error explain(Verdict::Kind kind, bool told_by_peer) const;
  Proof prove(std::string_view label, std::span<const std::byte> more) const;
  void queue(std::span<const std::byte> bytes);
  void expect(State state, size_t begin, size_t end);

  const MeshConfig& config_;
  const bool client_;
  const std::vector<bool>* taken_;
  int peer_;
  Hello mine_, theirs_;
  State state_ = State::magic;
  std::array<std::byte, 128> in_{}, out_{};
  size_t in_pos_ = 0, in_end_ = 0;
  size_t out_pos_ = 0, out_end_ = 0;
  std::optional<Error> refused_;
  bool fatal_ = false;
};

}  // namespace verbund::mesh
