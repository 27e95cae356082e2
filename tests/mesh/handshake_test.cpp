// Who may join: wrong secrets, epochs, versions and placements between real ranks, and strangers on raw sockets.
#include "mesh/handshake.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "mesh/mesh_ranks.h"
#include "mesh/sockets.h"

namespace verbund::mesh::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

class Join : public ::testing::TestWithParam<Channel> {
 protected:
  // Rank 0 is as it should be, rank 1 is changed; gives what each ended with ("" for joined).
  std::pair<std::string, std::string> join(const std::function<void(MeshConfig&)>& change, double deadline_s = 0.4) {
    MeshConfig zero = config_of(world_, 0), one = config_of(world_, 1);
    change(one);
    auto listener0 = listen(zero);
    auto listener1 = listen(config_of(world_, 1));
    const std::vector<std::string> endpoints{listener0->endpoint(), listener1->endpoint()};
    std::pair<std::string, std::string> ends;
    const auto run = [&](const MeshConfig& config, Listener& listener, std::string& end) {
      try {
        std::vector<std::string> known = endpoints;
        known.resize(static_cast<size_t>(config.size), endpoints[1]);
        connect_mesh(config, listener, known, soon(deadline_s));
      } catch (const Error& e) { end = std::string(to_string(e.code())) + ": " + e.what(); }
    };
    std::thread other([&] { run(one, *listener1, ends.second); });
    run(zero, *listener0, ends.first);
    other.join();
    return ends;
  }

  const World world_{GetParam(), 2, 0, -1};
};

INSTANTIATE_TEST_SUITE_P(, Join, ::testing::Values(kShm, kTcp), [](const auto& info) { return to_string(info.param); });

TEST_P(Join, RightOneJoins) {
  const auto [zero, one] = join([](MeshConfig&) {}, 10);
  EXPECT_EQ(zero, "");
  EXPECT_EQ(one, "");
}

TEST_P(Join, WrongSecretIsRefused) {
  const auto [zero, one] = join([](MeshConfig& config) { config.secret.back() ^= 1; });
  EXPECT_THAT(one, HasSubstr("permission_denied: rank 0 refused this rank's proof of the instance secret"));
  EXPECT_THAT(zero, ::testing::ContainsRegex("deadline_exceeded: rank 0 waited [0-9.]+ s for a link to rank 1"));
  EXPECT_THAT(zero, HasSubstr("does not know the instance secret"));
}

TEST_P(Join, EarlierEpochIsRefusedAndTold) {
  const auto [zero, one] = join([](MeshConfig& config) { config.epoch = 6; });
  EXPECT_THAT(one, HasSubstr("permission_denied: rank 0 is at epoch 7, this rank (1) at epoch 6"));
  EXPECT_THAT(zero, HasSubstr("deadline_exceeded"));
  EXPECT_THAT(zero, HasSubstr("calls itself rank 1 is at epoch 6, this rank (0) at epoch 7"));
}

TEST_P(Join, OtherSizeEndsTheSetUpOnBothSides) {
  const auto [zero, one] = join([](MeshConfig& config) { config.size = 3; }, 5);
  EXPECT_THAT(zero, HasSubstr("invalid_argument"));
  EXPECT_THAT(zero, HasSubstr("rank 1 of 3"));
  EXPECT_THAT(one, HasSubstr("invalid_argument"));
  EXPECT_THAT(one, HasSubstr("rank 0 of 2"));
}

TEST_P(Join, ImpossibleConfigsAreRefused) {
  const auto refused = [&](const std::function<void(MeshConfig&)>& change) {
    MeshConfig config = config_of(world_, 1);
    change(config);
    try {
      listen(config);
    } catch (const Error& e) { return e.code() == Code::invalid_argument; }
    return false;
  };
  EXPECT_TRUE(refused([](MeshConfig& c) { c.rank = 2; }));
  EXPECT_TRUE(refused([](MeshConfig& c) { c.rank = -1; }));
  EXPECT_TRUE(refused([](MeshConfig& c) { c.size = 0; }));
  EXPECT_TRUE(refused([](MeshConfig& c) { c.size = 1 << 30; }));
  EXPECT_TRUE(refused([](MeshConfig& c) { c.secret = "short"; }));
}

TEST_P(Join, WrongEndpointsAreRefused) {
  const MeshConfig config = config_of(world_, 1);
  auto listener = listen(config);
  for (const std::string& text :
       {std::string(""), std::string("udp:1.2.3.4:5"), std::string("tcp:"), std::string("tcp:127.0.0.1"), std::string("tcp:127.0.0.1:0"),
        std::string("tcp:127.0.0.1:99999"), std::string("tcp:[::1:5"), std::string("shm:"), "shm:" + std::string(300, 'x')}) {
    try {
      connect_mesh(config, *listener, {text, listener->endpoint()}, soon(1));
      ADD_FAILURE() << text;
    } catch (const Error& e) { EXPECT_EQ(e.code(), Code::invalid_argument) << e.what(); }
  }
  EXPECT_THROW(connect_mesh(config, *listener, {listener->endpoint()}, soon(1)), Error);
}

// A raw connection to a listener, as a stranger has it.
class Stranger {
 public:
  explicit Stranger(const std::string& endpoint) {
    const Address address = endpoint.rfind("tcp:", 0) == 0 ? parse_tcp_text(endpoint.substr(4)) : unix_address(endpoint.substr(4));
    fd_ = Fd(::socket(address.family(), SOCK_STREAM, 0));
    connected_ = ::connect(fd_.get(), address.get(), address.length) == 0;
  }
  bool connected() const { return connected_; }
  void write(std::string_view text) {
    while (!text.empty()) {
      const ssize_t n = ::send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL);
      if (n <= 0) return;
      text.remove_prefix(static_cast<size_t>(n));
    }
  }
  // What it is told until the other side closes or the time is up.
  std::string read(double seconds_max, size_t bytes_max = 1 << 20) {
    timeval wait{static_cast<time_t>(seconds_max),
                 static_cast<suseconds_t>((seconds_max - static_cast<double>(static_cast<time_t>(seconds_max))) * 1e6)};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    std::string text;
    char bytes[1024];
    closed_ = false;
    while (text.size() < bytes_max) {
      const ssize_t n = ::recv(fd_.get(), bytes, std::min(sizeof bytes, bytes_max - text.size()), 0);
      if (n <= 0) {
        closed_ = n == 0 || errno == ECONNRESET;
        break;
      }
      text.append(bytes, static_cast<size_t>(n));
    }
    return text;
  }
  bool closed() const { return closed_; }

 private:
  Fd fd_;
  bool connected_ = false, closed_ = false;
};

// A rank 0 of two that waits for its peer while `strangers` do what they do; then the peer comes and must be let in.
void expect_undisturbed(const World& world, const std::function<void(const std::string& endpoint)>& strangers) {
  const MeshConfig zero = config_of(world, 0), one = config_of(world, 1);
  auto listener0 = listen(zero), listener1 = listen(one);
  const std::vector<std::string> endpoints{listener0->endpoint(), listener1->endpoint()};
  std::atomic<int> joined{0};
  const auto rank = [&](const MeshConfig& config, Listener& listener) {
    try {
      auto mesh = connect_mesh(config, listener, endpoints, soon(10));
      mesh->barrier(soon(5));
      ++joined;
    } catch (const Error& e) { ADD_FAILURE() << e.what(); }
  };
  std::thread first([&] { rank(zero, *listener0); });
  strangers(endpoints[0]);
  std::thread second([&] { rank(one, *listener1); });
  first.join();
  second.join();
  EXPECT_EQ(joined, 2);
}

TEST_P(Join, StrangersGetNothingAndDisturbNobody) {
  expect_undisturbed(world_, [](const std::string& endpoint) {
    Stranger silent(endpoint);
    { Stranger leaves(endpoint); }
    Stranger web(endpoint);
    web.write("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_EQ(web.read(2), "");
    EXPECT_TRUE(web.closed());
    Stranger noisy(endpoint);
    std::string noise(1 << 20, '\0');
    std::mt19937 random(5);
    for (char& c : noise) c = static_cast<char>(random());
    noisy.write(noise);
    EXPECT_EQ(noisy.read(2), "");
    EXPECT_TRUE(noisy.closed());
    // The right magic and no more: a hello comes only for a whole hello.
    Stranger half(endpoint);
    half.write(std::string_view("verbund mesh\r\n\0\xff", 16));
    EXPECT_EQ(half.read(0.1), "");
    Stranger slow(endpoint);
    slow.write("v");
    EXPECT_EQ(slow.read(0.05), "");
  });
}

TEST_P(Join, SilentAndSlowStrangersAreDroppedInTime) {
  expect_undisturbed(world_, [](const std::string& endpoint) {
    Stranger silent(endpoint), slow(endpoint);
    const auto begun = std::chrono::steady_clock::now();
    std::thread drip([&] {
      const std::string_view hello("verbund mesh\r\n\0\xff", 16);
      for (size_t i = 0; i < 6; ++i) {
        slow.write(hello.substr(i, 1));
        std::this_thread::sleep_for(std::chrono::milliseconds(350));
      }
    });
    EXPECT_EQ(silent.read(5), "");
    EXPECT_TRUE(silent.closed());
    drip.join();
    EXPECT_EQ(slow.read(2), "");
    EXPECT_TRUE(slow.closed());
    EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(5));
  });
}

TEST_P(Join, HundredsOfHalfOpenStrangersDoNotKeepAPeerOut) {
  std::vector<std::unique_ptr<Stranger>> crowd;
  const int before = open_descriptors();
  expect_undisturbed(world_, [&](const std::string& endpoint) {
    for (int i = 0; i < 300; ++i) {
      crowd.push_back(std::make_unique<Stranger>(endpoint));
      EXPECT_TRUE(crowd.back()->connected());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    // Ours in this process, theirs bounded.
    EXPECT_LE(open_descriptors(), before + 300 + 64 + 8);
  });
}

// A stranger that knows the layout: shows what a client of another protocol version sees and does.
Hello hello_of_client(uint32_t version, uint64_t epoch) {
  Hello hello;
  std::memcpy(hello.magic.data(), "verbund mesh\r\n\0\xff", 16);
  hello.version = version;
  hello.role = 1;
  hello.transport = 1;
  hello.rank = 1;
  hello.size = 2;
  hello.epoch = epoch;
  hello.nonce.fill(9);
  return hello;
}

std::string bytes_of(const auto& value) { return {reinterpret_cast<const char*>(&value), sizeof value}; }

Proof prove(const std::string& secret, const std::string& text) {
  Proof proof{};
  unsigned length = 0;
  HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()), reinterpret_cast<const unsigned char*>(text.data()), text.size(),
       proof.data(), &length);
  return proof;
}

TEST_P(Join, OtherVersionWithTheSecretEndsTheSetUpAndBothVersionsArePrinted) {
  const MeshConfig zero = config_of(world_, 0);
  auto listener = listen(zero);
  std::string end;
  std::thread rank([&] {
    try {
      connect_mesh(zero, *listener, {listener->endpoint(), listener->endpoint()}, soon(10));
    } catch (const Error& e) { end = std::string(to_string(e.code())) + ": " + e.what(); }
  });
  Stranger newer(listener->endpoint());
  Hello mine = hello_of_client(kProtocolVersion + 1, 7);
  mine.transport = GetParam() == kShm ? 1 : 2;
  newer.write(bytes_of(mine));
  const std::string theirs = newer.read(2, sizeof(Hello));
  ASSERT_EQ(theirs.size(), sizeof(Hello));
  Hello server;
  std::memcpy(&server, theirs.data(), sizeof server);
  EXPECT_EQ(server.version, kProtocolVersion);
  newer.write(bytes_of(prove(zero.secret, "verbund mesh client" + bytes_of(mine) + theirs)));
  const std::string answer = newer.read(2, sizeof(Verdict));
  ASSERT_EQ(answer.size(), sizeof(Verdict));
  Verdict verdict;
  std::memcpy(&verdict, answer.data(), sizeof verdict);
  EXPECT_EQ(verdict.kind, Verdict::Kind::other_version);
  rank.join();
  EXPECT_THAT(end, HasSubstr("speaks mesh protocol version 2, this rank (0) version 1"));
}

TEST_P(Join, RecordedHandshakeIsWorthless) {
  const MeshConfig zero = config_of(world_, 0);
  Hello mine = hello_of_client(kProtocolVersion, 7);
  mine.transport = GetParam() == kShm ? 1 : 2;
  std::string recorded_server, recorded_proof;
  expect_undisturbed(world_, [&](const std::string& endpoint) {
    Stranger replay(endpoint);
    replay.write(bytes_of(mine));
    recorded_server = replay.read(2, sizeof(Hello));
    recorded_proof = bytes_of(prove(zero.secret, "verbund mesh client" + bytes_of(mine) + recorded_server));
  });
  expect_undisturbed(world_, [&](const std::string& endpoint) {
    Stranger replay(endpoint);
    replay.write(bytes_of(mine) + recorded_proof);  // right for the nonce of another day
    const std::string answer = replay.read(2);
    ASSERT_EQ(answer.size(), sizeof(Hello) + sizeof(Verdict));
    EXPECT_NE(answer.substr(0, sizeof(Hello)), recorded_server);
    EXPECT_EQ(answer.substr(sizeof(Hello), 4), std::string("\2\0\0\0", 4));
    EXPECT_EQ(answer.substr(sizeof(Hello) + 8), std::string(32, '\0'));  // no proof for those who have none
  });
}

// Any bytes at all, to both roles: an Error or more waiting, never more than the fixed buffer.
TEST(HandshakeBytes, RandomOnesNeverJoin) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 20'000; ++round) {
    const MeshConfig config = config_of({kTcp, 2, 0, -1}, round % 2);
    std::vector<bool> taken(2);
    Handshake handshake(config, round % 2 == 0 ? -1 : 0, &taken);
    Hello hello = hello_of_client(static_cast<uint32_t>(random() % 3), 7 + random() % 2);
    hello.role = static_cast<uint8_t>(random() % 4);
    std::string bytes = bytes_of(hello);
    for (size_t i = 0; i < 200; ++i) bytes += static_cast<char>(random());
    if (random() % 2) bytes[random() % 80] = static_cast<char>(random());
    try {
      for (size_t at = 0; at < bytes.size();) {
        const auto into = handshake.input();
        if (into.empty()) break;
        ASSERT_LE(into.size(), 80u);
        const size_t n = std::min({into.size(), bytes.size() - at, size_t(1 + random() % 90)});
        std::memcpy(into.data(), bytes.data() + at, n);
        at += n;
        handshake.read(n);
        handshake.wrote(handshake.output().size());
      }
      ASSERT_TRUE(handshake.refused().has_value() || !handshake.finished());
    } catch (const Error&) {}
  }
}

TEST(Sockets, AddressesAreWrittenAndRead) {
  for (const char* text : {"127.0.0.1:40123", "[::1]:65535"}) EXPECT_EQ(tcp_text(parse_tcp_text(text)), text);
  EXPECT_TRUE(is_loopback(parse_tcp_text("127.9.9.9:1")));
  EXPECT_TRUE(is_loopback(parse_tcp_text("[::1]:1")));
  EXPECT_FALSE(is_loopback(parse_tcp_text("10.0.0.1:1")));
}

TEST(Tcp, MeshOverIpv6) {
  MeshConfig zero = config_of({kTcp, 2, 0, -1}, 0), one = config_of({kTcp, 2, 0, -1}, 1);
  zero.host = one.host = "::1";
  std::unique_ptr<Listener> listener0, listener1;
  try {
    listener0 = listen(zero);
    listener1 = listen(one);
  } catch (const Error& e) { GTEST_SKIP() << "no IPv6 here: " << e.what(); }
  const std::vector<std::string> endpoints{listener0->endpoint(), listener1->endpoint()};
  EXPECT_THAT(endpoints[0], HasSubstr("tcp:[::1]:"));
  std::thread other([&] { connect_mesh(one, *listener1, endpoints, soon())->barrier(soon()); });
  connect_mesh(zero, *listener0, endpoints, soon())->barrier(soon());
  other.join();
}

// An address that swallows connection attempts: a listener whose queue is full.
TEST(Tcp, PeerThatNeverAnswersEndsAtTheDeadline) {
  const Fd deaf = listen_on(tcp_address("127.0.0.1", 0), 0);
  const Address address = local_address(deaf);
  std::vector<Fd> fill;
  for (int i = 0; i < 4; ++i) {
    fill.push_back(open_stream(AF_INET));
    (void)!::connect(fill.back().get(), address.get(), address.length);
  }
  const MeshConfig one = config_of({kTcp, 2, 0, -1}, 1);
  auto listener = listen(one);
  try {
    connect_mesh(one, *listener, {"tcp:" + tcp_text(address), listener->endpoint()}, soon(0.3));
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::deadline_exceeded);
    EXPECT_THAT(e.what(), ::testing::ContainsRegex("rank 1 waited [0-9.]+ s for a link to rank 0"));
  }
}

TEST(TransportNames, RoundTripAndChoices) {
  EXPECT_EQ(transport_from_string("shm"), Transport::shm);
  EXPECT_EQ(transport_from_string("tcp"), Transport::tcp);
  EXPECT_EQ(transport_from_string("verbs"), Transport::verbs);
  try {
    transport_from_string("pigeon");
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::invalid_argument);
    EXPECT_THAT(e.what(), HasSubstr("shm, tcp"));
  }
}

}  // namespace
}  // namespace verbund::mesh::testing
