#include "mesh/handshake.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <bit>
#include <cstring>

namespace verbund::mesh {
namespace {

constexpr std::array<char, 16> kMagic{'v', 'e', 'r', 'b', 'u', 'n', 'd', ' ', 'm', 'e', 's', 'h', '\r', '\n', '\0', '\xff'};
constexpr uint8_t kClient = 1, kServer = 2;

static_assert(std::endian::native == std::endian::little, "hellos are written as they lie in memory");

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

Error not_ours(std::string what) { return Error({Code::permission_denied, Lost::peer, std::move(what), {}, {}}); }

}  // namespace

Handshake::Handshake(const MeshConfig& config, int peer, const std::vector<bool>* taken)
    : config_(config), client_(peer >= 0), taken_(taken), peer_(peer) {
  mine_.magic = kMagic;
  mine_.version = kProtocolVersion;
  mine_.role = client_ ? kClient : kServer;
  mine_.transport = static_cast<uint8_t>(static_cast<int>(config.transport) + 1);
  mine_.rank = static_cast<uint32_t>(config.rank);
  mine_.peer = static_cast<uint32_t>(peer);
  mine_.size = static_cast<uint32_t>(config.size);
  mine_.epoch = config.epoch;
  if (RAND_bytes(mine_.nonce.data(), static_cast<int>(mine_.nonce.size())) != 1)
    throw Error({Code::internal, Lost::instance, "no random numbers for a handshake", {}, {}});
  if (client_) queue(bytes_of(mine_));
  expect(State::magic, 0, kMagic.size());
}

std::span<const std::byte> Handshake::output() const { return std::span(out_).subspan(out_pos_, out_end_ - out_pos_); }
void Handshake::wrote(size_t bytes) { out_pos_ += bytes; }
std::span<std::byte> Handshake::input() { return std::span(in_).subspan(in_pos_, in_end_ - in_pos_); }

void Handshake::queue(std::span<const std::byte> bytes) {
  if (out_pos_ == out_end_) out_pos_ = out_end_ = 0;
  std::memcpy(out_.data() + out_end_, bytes.data(), bytes.size());  // at most a hello or a verdict is ever queued
  out_end_ += bytes.size();
}

void Handshake::expect(State state, size_t begin, size_t end) {
  state_ = state;
  in_pos_ = begin;
  in_end_ = end;
}

void Handshake::read(size_t bytes) {
  in_pos_ += bytes;
  // A stranger's first bytes give it away, be there a whole hello or not.
  if (state_ == State::magic && std::memcmp(in_.data(), kMagic.data(), std::min(in_pos_, kMagic.size())) != 0)
    throw not_ours("the other side does not speak the mesh protocol");
  if (in_pos_ < in_end_) return;
  switch (state_) {
    case State::magic: return expect(State::hello, kMagic.size(), sizeof(Hello));
    case State::hello: return on_hello();
    case State::proof: return on_proof();
    case State::verdict: return on_verdict();
    case State::done: return;
  }
}

void Handshake::on_hello() {
  std::memcpy(&theirs_, in_.data(), sizeof theirs_);
  if (theirs_.role != (client_ ? kServer : kClient)) throw not_ours("the other side plays the wrong role");
  if (client_) {
    const Proof proof = prove("verbund mesh client", {});
    queue(bytes_of(proof));
    expect(State::verdict, 0, sizeof(Verdict));
  } else {
    mine_.peer = theirs_.rank;
    queue(bytes_of(mine_));
    expect(State::proof, 0, sizeof(Proof));
  }
}

void Handshake::on_proof() {
  const Proof expected = prove("verbund mesh client", {});
  Verdict verdict;
  if (CRYPTO_memcmp(expected.data(), in_.data(), expected.size()) == 0) {
    verdict.kind = judge(theirs_);
    verdict.proof = prove("verbund mesh server", bytes_of(verdict.kind));
    if (verdict.kind == Verdict::Kind::welcome) peer_ = static_cast<int>(theirs_.rank);
    fatal_ = verdict.kind == Verdict::Kind::other_version || verdict.kind == Verdict::Kind::other_placement;
  }
  if (verdict.kind != Verdict::Kind::welcome) refused_ = explain(verdict.kind, false);
  queue(bytes_of(verdict));
  expect(State::done, 0, 0);
}

void Handshake::on_verdict() {
  Verdict verdict;
  std::memcpy(&verdict, in_.data(), sizeof verdict);
  expect(State::done, 0, 0);
  if (verdict.kind == Verdict::Kind::unknown_secret) throw explain(verdict.kind, true);
  const Proof expected = prove("verbund mesh server", bytes_of(verdict.kind));
  if (CRYPTO_memcmp(expected.data(), verdict.proof.data(), expected.size()) != 0) throw explain(Verdict::Kind::unknown_secret, false);
  if (verdict.kind != Verdict::Kind::welcome) throw explain(verdict.kind, true);
  if (const Verdict::Kind kind = judge(theirs_); kind != Verdict::Kind::welcome) throw explain(kind, false);
}

Verdict::Kind Handshake::judge(const Hello& theirs) const {
  if (theirs.epoch != mine_.epoch) return Verdict::Kind::other_epoch;
  if (theirs.version != mine_.version) return Verdict::Kind::other_version;
  const bool addressed = theirs.peer == mine_.rank &&
                         (client_ ? theirs.rank == static_cast<uint32_t>(peer_) : theirs.rank > mine_.rank && theirs.rank < mine_.size);
  if (theirs.size != mine_.size || theirs.transport != mine_.transport || !addressed) return Verdict::Kind::other_placement;
  if (taken_ && (*taken_)[theirs.rank]) return Verdict::Kind::already_connected;
  return Verdict::Kind::welcome;
}

Error Handshake::explain(Verdict::Kind kind, bool told_by_peer) const {
  const std::string peer = client_ ? fmt::format("rank {}", peer_) : fmt::format("a peer that calls itself rank {}", theirs_.rank);
  const auto error = [](Code code, std::string what, std::string hint) {
    return Error({code, Lost::instance, std::move(what), {}, std::move(hint)});
  };
  switch (kind) {
    case Verdict::Kind::unknown_secret:
      return error(Code::permission_denied,
                   told_by_peer ? fmt::format("{} refused this rank's proof of the instance secret", peer)
                                : fmt::format("{} does not know the instance secret", peer),
                   "the ranks were started with different secrets");
    case Verdict::Kind::other_version:
      return error(
          Code::invalid_argument,
          fmt::format("{} speaks mesh protocol version {}, this rank ({}) version {}", peer, theirs_.version, mine_.rank, mine_.version),
          "run the same release on all nodes");
    case Verdict::Kind::other_epoch:
      return error(Code::permission_denied,
                   fmt::format("{} is at epoch {}, this rank ({}) at epoch {}", peer, theirs_.epoch, mine_.rank, mine_.epoch),
                   "the older one is a left-over of an earlier placement");
    case Verdict::Kind::other_placement:
      return error(
          Code::invalid_argument,
          fmt::format("{} says that it is rank {} of {} and talks to rank {} by transport {}, but this is rank {} of {} by transport {}",
                      peer, theirs_.rank, theirs_.size, theirs_.peer, theirs_.transport, mine_.rank, mine_.size, mine_.transport),
          "the ranks were given different placements or endpoints");
    case Verdict::Kind::already_connected:
      return error(Code::permission_denied, fmt::format("{}: rank {} is connected already", peer, client_ ? mine_.rank : theirs_.rank),
                   "two processes were started as the same rank");
    case Verdict::Kind::welcome: break;
  }
  return error(Code::data_loss, fmt::format("{} gave an unknown verdict ({})", peer, static_cast<uint32_t>(kind)), {});
}

Proof Handshake::prove(std::string_view label, std::span<const std::byte> more) const {
  const Hello& client = client_ ? mine_ : theirs_;
  const Hello& server = client_ ? theirs_ : mine_;
  std::string transcript(label);
  for (const auto part : {bytes_of(client), bytes_of(server), more})
    transcript.append(reinterpret_cast<const char*>(part.data()), part.size());
  Proof proof{};
  unsigned length = 0;
  const auto* result = HMAC(EVP_sha256(), config_.secret.data(), static_cast<int>(config_.secret.size()),
                            reinterpret_cast<const unsigned char*>(transcript.data()), transcript.size(), proof.data(), &length);
  if (!result || length != proof.size()) throw Error({Code::internal, Lost::instance, "HMAC-SHA256 is not available", {}, {}});
  return proof;
}

}  // namespace verbund::mesh
