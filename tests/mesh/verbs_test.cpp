// What two ranks say to each other before RDMA, what happens where one of them has none, and faults of a device that is not real.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <sys/socket.h>

#include <cstdlib>
#include <cstring>
#include <thread>

#include "mesh/mesh_ranks.h"
#include "mesh/sockets.h"
#include "mesh/verbs/endpoint.h"
#include "mesh/verbs/offer.h"
#include "mesh/verbs/verbs.h"

namespace verbund::mesh::testing {
namespace {

using namespace verbs;
using ::testing::HasSubstr;

Gid ipv4(uint8_t a, uint8_t b, uint8_t c, uint8_t d) { return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d}; }

Candidate port(std::string device, Gid gid, uint8_t prefix_bits = 24) {
  Candidate c;
  c.device = std::move(device);
  c.port = 1;
  c.mtu = 3;
  c.kinds = kReliable | kUnreliable;
  c.prefix_bits = prefix_bits;
  c.gid_index = 1;
  c.gid = gid;
  return c;
}

Offer offer(std::vector<Candidate> candidates) {
  Offer o;
  o.slot_bytes = 16 * 1024;
  o.depth = 24;
  o.candidates = std::move(candidates);
  return o;
}

std::span<const std::byte> without_length(const std::vector<std::byte>& message) { return std::span(message).subspan(sizeof(uint32_t)); }

TEST(VerbsOffer, WhatIsSaidIsUnderstood) {
  Offer o = offer({port("rxe0", ipv4(10, 77, 0, 1)), port("rdma_en3", ipv4(169, 254, 1, 2), 16)});
  o.required = true;
  o.candidates[1].network = Network::infiniband;
  o.candidates[1].lid = 77;
  EXPECT_EQ(parse_offer(without_length(encode(o))), o);
  Offer none = offer({});
  none.problem = "no RDMA device";
  EXPECT_EQ(parse_offer(without_length(encode(none))), none);
  const Card card{"", 0xabcdef, 0x123456};
  EXPECT_EQ(parse_card(without_length(encode(card))), card);
  const Ready ready{"port down"};
  EXPECT_EQ(parse_ready(without_length(encode(ready))), ready);
  EXPECT_EQ(o.candidates[0].full_name(), "rxe0 port 1, GID 1 (10.77.0.1)");
}

TEST(VerbsOffer, EveryMessageFitsWhatAPeerWillTake) {
  Offer o = offer({});
  o.problem = std::string(5000, 'x');
  o.candidates.assign(100, port(std::string(100, 'd'), ipv4(1, 2, 3, 4)));
  const auto message = encode(o);
  EXPECT_LE(message.size(), kMessageBytesMax);
  EXPECT_EQ(parse_offer(without_length(message)).candidates.size(), kCandidatesMax);
}

TEST(VerbsOffer, ShortLongAndWrongMessagesAreRefused) {
  const auto whole = encode(offer({port("rxe0", ipv4(10, 77, 0, 1))}));
  const auto message = without_length(whole);
  const auto refused = [](std::span<const std::byte> bytes) {
    try {
      parse_offer(bytes);
    } catch (const Error& e) { return e.code() == Code::data_loss; }
    return false;
  };
  for (size_t n = 0; n < message.size(); ++n) EXPECT_TRUE(refused(message.first(n))) << n;
  std::vector<std::byte> longer(message.begin(), message.end());
  longer.push_back(std::byte{0});
  EXPECT_TRUE(refused(longer));
  // magic, kind, required, kinds, slot bytes (not a power of two), number of ports
  for (const size_t at : {0, 1, 4, 5, 6, 14}) {
    std::vector<std::byte> wrong(message.begin(), message.end());
    wrong[at] = std::byte{0x77};
    EXPECT_TRUE(refused(wrong)) << at;
  }
  EXPECT_THROW(parse_card(without_length(encode(Card{"", 1u << 24, 0}))), Error);
  EXPECT_THROW(parse_ready(without_length(encode(Card{}))), Error);
}

const Side kZero{"rank 0", "10.0.0.1"}, kOne{"rank 1", "10.0.0.2"};

TEST(VerbsChoice, TheAddressesThatThePeersAlreadyUseComeFirst) {
  const Offer zero = offer({port("a0", ipv4(10, 9, 0, 1)), port("b0", ipv4(10, 0, 0, 1))});
  const Offer one = offer({port("a1", ipv4(10, 9, 0, 2)), port("b1", ipv4(10, 0, 0, 2))});
  const auto chosen = choose(zero, one, kZero, kOne);
  ASSERT_TRUE(chosen.choice);
  EXPECT_EQ(chosen.choice->first.device, "b0");
  EXPECT_EQ(chosen.choice->second.device, "b1");
  EXPECT_TRUE(chosen.choice->reliable);
}

TEST(VerbsChoice, ACableIsFoundByItsNetwork) {  // the control connection goes elsewhere
  const Offer zero = offer({port("rdma_en2", ipv4(10, 1, 0, 1), 30), port("rdma_en3", ipv4(10, 1, 0, 5), 30)});
  const Offer one = offer({port("rdma_en5", ipv4(10, 1, 0, 9), 30), port("rdma_en4", ipv4(10, 1, 0, 6), 30)});
  const auto chosen = choose(zero, one, kZero, kOne);
  ASSERT_TRUE(chosen.choice);
  EXPECT_EQ(chosen.choice->first.device, "rdma_en3");
  EXPECT_EQ(chosen.choice->second.device, "rdma_en4");
}

TEST(VerbsChoice, SizesAndKindsAreWhatBothCan) {
  Offer zero = offer({port("a", ipv4(10, 0, 0, 1))}), one = offer({port("b", ipv4(10, 0, 0, 2))});
  one.slot_bytes = 4096;
  one.depth = 64;
  zero.candidates[0].mtu = 5;
  one.candidates[0].kinds = kUnreliable;
  const auto chosen = choose(zero, one, kZero, kOne);
  ASSERT_TRUE(chosen.choice);
  EXPECT_FALSE(chosen.choice->reliable);
  EXPECT_EQ(chosen.choice->slot_bytes, 4096u);
  EXPECT_EQ(chosen.choice->depth, 24u);
  EXPECT_EQ(chosen.choice->mtu, 3);
}

TEST(VerbsChoice, WhatIsMissingIsNamed) {
  Offer zero = offer({port("a", ipv4(10, 0, 0, 1))}), one = offer({port("b", ipv4(10, 0, 1, 2))});
  EXPECT_EQ(choose(zero, one, kZero, kOne).problem,
            "no two ports are in one network: a port 1, GID 1 (10.0.0.1) - b port 1, GID 1 (10.0.1.2)");
  one = offer({});
  one.problem = "mlx5_0 port 1: port down";
  EXPECT_EQ(choose(zero, one, kZero, kOne).problem, "rank 1 has no usable port: mlx5_0 port 1: port down");
  one = offer({port("b", ipv4(10, 0, 0, 2))});
  one.candidates[0].kinds = kUnreliable;
  zero.kinds = kReliable;
  EXPECT_EQ(choose(zero, one, kZero, kOne).problem, "no kind of queue pair (RC, UC) is possible at both ends");
  one.kinds = kUnreliable;
  EXPECT_THAT(choose(zero, one, kZero, kOne).problem, HasSubstr("one rank wants reliable queue pairs"));
  one.candidates[0].network = Network::infiniband;
  one.kinds = zero.kinds;
  EXPECT_THAT(choose(zero, one, kZero, kOne).problem, HasSubstr("no two ports are in one network"));
}

// --- without RDMA ----------------------------------------------------------------------------------------------------

// Two ranks with a library that is not there; each one's error, or what its link became.
std::pair<std::string, std::string> join_without(bool required) {
  std::vector<MeshConfig> configs;
  std::vector<std::unique_ptr<Listener>> listeners;
  std::vector<std::string> endpoints;
  for (int r = 0; r < 2; ++r) {
    configs.push_back(config_of({kRc, 2, 0, -1}, r));
    configs.back().verbs.library = "/nowhere/libibverbs.so.1";
    configs.back().verbs.required = required && r == 1;  // one that insists is enough
    listeners.push_back(listen(configs.back()));
    endpoints.push_back(listeners.back()->endpoint());
  }
  std::vector<std::string> ends(2);
  const auto run = [&](size_t r) {
    try {
      const auto mesh = connect_mesh(configs[r], *listeners[r], endpoints, soon());
      std::vector<int64_t> data(10'000, mesh->rank() + 1);
      mesh->all_reduce(std::span(data), soon());
      EXPECT_EQ(data.back(), 3);
      const auto link = mesh->links().front();
      ends[r] = link.transport + ": " + link.note;
    } catch (const Error& e) { ends[r] = e.what(); }
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
  return {ends[0], ends[1]};
}

TEST(VerbsFallBack, WithoutRdmaTheConnectionIsTheLinkAndSaysWhy) {
  const auto [zero, one] = join_without(false);
  EXPECT_THAT(zero, HasSubstr("tcp: no RDMA: rank 0 has no usable port: "));
  EXPECT_EQ(zero, one);
}

TEST(VerbsFallBack, WhereItIsRequiredBothSidesRefuse) {
  const auto [zero, one] = join_without(true);
  EXPECT_THAT(zero, HasSubstr("no RDMA between rank 0 and rank 1: rank 0 has no usable port: "));
  EXPECT_THAT(one, HasSubstr("no RDMA between rank 1 and rank 0: rank 0 has no usable port: "));
  EXPECT_THAT(one, HasSubstr("without --require-rdma this link would use TCP"));
}

// A peer that knows the secret and then says something else.
std::string pairing_ends_with(std::span<const std::byte> said, bool then_close = false) {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  Fd mine(ends[0]), theirs(ends[1]);
  prepare_stream(mine, AF_UNIX);
  const MeshConfig config = config_of({kRc, 2, 0, -1}, 0);
  EXPECT_EQ(::write(theirs.get(), said.data(), said.size()), static_cast<ssize_t>(said.size()));
  if (then_close) ::shutdown(theirs.get(), SHUT_WR);
  try {
    const auto pairing = pair_verbs(std::move(mine), config, 1);
    return pairing->advance() ? "paired" : "waits";
  } catch (const Error& e) { return e.what(); }
}

TEST(VerbsPairing, HostileMessagesEndTheSetUpAndCostNothing) {
  const uint32_t huge = 0xffffffff, small = 2, empty = 0;
  const auto bytes = [](const uint32_t& length) { return std::as_bytes(std::span(&length, 1)); };
  EXPECT_THAT(pairing_ends_with(bytes(huge)), HasSubstr("announced an RDMA message of 4294967295 bytes"));
  EXPECT_THAT(pairing_ends_with(bytes(empty)), HasSubstr("malformed RDMA message: too short"));
  EXPECT_EQ(pairing_ends_with(bytes(small)), "waits");
  EXPECT_THAT(pairing_ends_with(bytes(small), true), HasSubstr("closed before the queue pairs were agreed on"));
  EXPECT_THAT(pairing_ends_with(encode(Ready{})), HasSubstr("malformed RDMA message: not the expected one"));
}

// --- with a device that fails on demand ------------------------------------------------------------------------------

class FakeVerbs : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Found found = find_candidates(kFakeVerbs); found.candidates.empty()) GTEST_SKIP() << found.problem;
    handle_ = ::dlopen(kFakeVerbs.c_str(), RTLD_NOW);
    ASSERT_NE(handle_, nullptr);
    objects_ = reinterpret_cast<int (*)()>(::dlsym(handle_, "fake_verbs_objects"));
    ASSERT_EQ(objects_(), 0);
  }
  void TearDown() override {
    ::unsetenv("FAKE_VERBS");
    if (!handle_) return;
    EXPECT_EQ(objects_(), 0) << "left in the device";
    ::dlclose(handle_);
  }

  // What rank 1 ends with, or "" when all is well.
  std::string run(const char* fault, const std::function<void(Mesh&)>& function, QueuePairKind kind = QueuePairKind::automatic) {
    ::setenv("FAKE_VERBS", fault, 1);
    std::vector<std::unique_ptr<Listener>> listeners;
    std::vector<std::string> endpoints, ends(2);
    std::vector<MeshConfig> configs;
    for (int r = 0; r < 2; ++r) {
      configs.push_back(config_of({{Transport::verbs, kind}, 2, 0, -1}, r));
      configs.back().verbs.library = kFakeVerbs;
      listeners.push_back(listen(configs.back()));
      endpoints.push_back(listeners.back()->endpoint());
    }
    const auto rank = [&](size_t r) {
      try {
        const auto mesh = connect_mesh(configs[r], *listeners[r], endpoints, soon());
        function(*mesh);
      } catch (const Error& e) { ends[r] = std::string(to_string(e.code())) + ": " + e.what(); }
    };
    std::thread other([&] { rank(1); });
    rank(0);
    other.join();
    EXPECT_EQ(ends[0].empty(), ends[1].empty()) << ends[0] << " / " << ends[1];
    return ends[1];
  }
  std::string set_up(const char* fault) {
    return run(fault, [](Mesh& mesh) { mesh.barrier(soon()); });
  }

 private:
  void* handle_ = nullptr;
  int (*objects_)() = nullptr;
};

TEST_F(FakeVerbs, WithoutAFaultItWorks) { EXPECT_EQ(set_up(""), ""); }

TEST_F(FakeVerbs, APortThatCannotBeUsedSaysWhyAndWhatToDo) {
  EXPECT_THAT(set_up("no_device"), HasSubstr("rank 0 has no usable port: no RDMA device"));
  EXPECT_THAT(set_up("port_down"), HasSubstr("fake0 port 1: port down; check the cable"));
  EXPECT_THAT(set_up("no_address"), HasSubstr("fake0 port 1: no IPv4 address on "));
  EXPECT_THAT(set_up("thunderbolt no_address"), HasSubstr("rdma_en3 port 1: no IPv4 address on en3; give that very interface one"));
}

TEST_F(FakeVerbs, LimitsAreReadBack) {
  EXPECT_THAT(set_up("max_qp_wr=8"), HasSubstr("fake0 port 1, GID 1 (127.0.0.1): the device is too small: 8 messages in a queue"));
  EXPECT_THAT(set_up("granted=4"), HasSubstr("sends and 4 receives in a queue, 28 are needed"));
  EXPECT_THAT(set_up("no_memory"), HasSubstr("cannot register 917504 bytes: Cannot allocate memory (errno 12)"));
  EXPECT_THAT(set_up("qp_busy"), HasSubstr("cannot make a queue pair (RC, 28 messages each way): Device or resource busy (errno 16)"));
}

TEST_F(FakeVerbs, APeerThatCannotBeReachedIsNamedWithBothAddresses) {
  const std::string error = set_up("unreachable");
  EXPECT_THAT(error, HasSubstr("cannot connect the queue pair to fake0 port 1, GID 1 (127.0.0.1): Connection timed out"));
  EXPECT_THAT(error, HasSubstr("answers a ping"));
}

// Reduces until something happens.
void reduce(Mesh& mesh) {
  for (int round = 0; round < 1000; ++round) {
    std::vector<int64_t> data(576, mesh.rank() + round);
    mesh.all_reduce(std::span(data), soon(2));
    ASSERT_EQ(data[0], 1 + 2 * round);
  }
}

TEST_F(FakeVerbs, ALostMessageIsNeverWrongData) {
  const std::string uc = run("drop=20", reduce, QueuePairKind::uc);
  EXPECT_THAT(uc, ::testing::AnyOf(HasSubstr("lost on the way, the first was number 19"), HasSubstr("deadline_exceeded"))) << uc;
  const std::string rc = run("drop=20", reduce, QueuePairKind::rc);
  EXPECT_THAT(rc, HasSubstr("on fake0 port 1, GID 1 (127.0.0.1) failed: a send failed: no answer from the peer's device")) << rc;
  EXPECT_THAT(rc, ::testing::AnyOf(HasSubstr("rank 1 to rank 0"), HasSubstr("rank 0 to rank 1"))) << rc;
}

TEST_F(FakeVerbs, ThunderboltGetsUnreliableQueuePairs) { EXPECT_EQ(run("thunderbolt", reduce), ""); }

}  // namespace
}  // namespace verbund::mesh::testing
