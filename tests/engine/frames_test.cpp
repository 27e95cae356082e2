#include "engine/frames.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <random>
#include <thread>

#include "support/code_of.h"

namespace verbund::engine {
namespace {

using namespace std::chrono_literals;

struct Ends {
  Fd raw;
  std::unique_ptr<FrameChannel> channel;
  Ends() {
    int fds[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) std::abort();
    raw = Fd(fds[0]);
    channel = std::make_unique<FrameChannel>(Fd(fds[1]), "the other end");
  }
  void write(std::string_view bytes) { send_exact(raw.get(), std::as_bytes(std::span(bytes)), Deadline::after(5s), "channel"); }
};

std::string framed(const nlohmann::json& message) {
  const std::vector<uint8_t> body = nlohmann::json::to_cbor(message);
  std::string bytes;
  for (int i = 0; i < 4; ++i) bytes += static_cast<char>(body.size() >> (8 * i));
  return bytes.append(body.begin(), body.end());
}

using test::code_of;

TEST(Frames, ArriveWholeHoweverTheyAreCut) {
  Ends e;
  const nlohmann::json message{{"op", "events"}, {"text", "Grüße 🙂"}, {"ids", {1, 2, 3}}};
  const std::string bytes = framed(message) + framed(message);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const bool complete = i == bytes.size() / 2 || i == 0;
    if (i > 0 && complete) { EXPECT_EQ(e.channel->poll(), message); }
    EXPECT_EQ(e.channel->poll(), std::nullopt) << i;
    e.write(bytes.substr(i, 1));
  }
  EXPECT_EQ(e.channel->poll(), message);
}

TEST(Frames, LargeOnesPassBothWays) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  FrameChannel a(Fd{fds[0]}, "b"), b(Fd{fds[1]}, "a");
  const nlohmann::json message{{"prompt", std::vector<int>(500'000, 77)}};
  std::thread writer([&] { a.send(message, Deadline::after(10s)); });
  std::optional<nlohmann::json> got;
  for (const Deadline d = Deadline::after(10s); !got && !d.expired();) got = b.poll();
  writer.join();
  EXPECT_EQ(got, message);
}

TEST(Frames, TheLastOnesAreReadBeforeTheEnd) {
  Ends e;
  e.write(framed({{"op", "error"}}));
  e.raw.reset();
  EXPECT_TRUE(e.channel->poll().has_value());
  EXPECT_EQ(code_of([&] { e.channel->poll(); }), Code::unavailable);
}

TEST(Frames, HostileBytesAreOneError) {
  for (const std::string& bytes : {std::string("\xff\xff\xff\xff", 4), std::string("\x01\x00\x00\x00\x01", 5),
                                   std::string("\x03\x00\x00\x00\xff\xff\xff", 7), framed(nlohmann::json::array({1}))}) {
    Ends e;
    e.write(bytes);
    EXPECT_EQ(code_of([&] { e.channel->poll(); }), Code::data_loss);
  }
}

TEST(Frames, RandomBytesNeverDoMoreThanFail) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    Ends e;
    std::string bytes = framed({{"op", "ready"}, {"links", {{{"peer", 1}}}}, {"n", 1e9}});
    for (int k = 0; k < 3; ++k) bytes[4 + random() % (bytes.size() - 4)] = static_cast<char>(random());
    e.write(bytes);
    try {
      while (e.channel->poll()) {}
    } catch (const Error& error) { EXPECT_EQ(error.code(), Code::data_loss); }
  }
}

TEST(Frames, ErrorsTravel) {
  const Error error({Code::data_loss, Lost::instance, "ranks diverged", "rank 2", "start again"});
  const Error back = error_from_json(nlohmann::json::from_cbor(nlohmann::json::to_cbor(to_json(error))));
  EXPECT_STREQ(back.what(), error.what());
  EXPECT_EQ(back.code(), error.code());
  EXPECT_EQ(back.lost(), error.lost());
  EXPECT_EQ(error_from_json(nlohmann::json::array()).code(), Code::internal);
}

}  // namespace
}  // namespace verbund::engine
