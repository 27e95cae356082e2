#include "base/unix.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "base/sha256.h"
#include "support/code_of.h"

namespace verbund {
namespace {

using namespace std::chrono_literals;

struct Pair {
  Fd a, b;
  Pair() {
    int fds[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) std::abort();
    a = Fd(fds[0]), b = Fd(fds[1]);
    set_nonblocking(a.get());
    set_nonblocking(b.get());
  }
};

using test::code_of;

std::string temporary(const std::string& content) {
  char path[] = "/tmp/verbund-unix-test-XXXXXX";
  const Fd fd(::mkstemp(path));
  EXPECT_EQ(::write(fd.get(), content.data(), content.size()), static_cast<ssize_t>(content.size()));
  return path;
}

TEST(Sockets, LargeMessagesArriveWhole) {
  Pair p;
  std::vector<std::byte> out(3 << 20), in(out.size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(i * 7);
  std::thread writer([&] { send_exact(p.a.get(), out, Deadline::after(10s), "b"); });
  recv_exact(p.b.get(), in, Deadline::after(10s), "a");
  writer.join();
  EXPECT_EQ(in, out);
}

TEST(Sockets, WaitsEndAtTheDeadlineAndWhenThePeerCloses) {
  Pair p;
  std::byte one[1];
  EXPECT_EQ(code_of([&] { recv_exact(p.a.get(), one, Deadline::after(20ms), "b"); }), Code::deadline_exceeded);
  std::vector<std::byte> much(16 << 20);
  EXPECT_EQ(code_of([&] { send_exact(p.a.get(), much, Deadline::after(20ms), "b"); }), Code::deadline_exceeded);
  p.b.reset();
  EXPECT_EQ(code_of([&] { recv_exact(p.a.get(), one, Deadline::after(1s), "b"); }), Code::unavailable);
}

TEST(Files, ShortReadsAndMissingFilesAreNamed) {
  const std::string path = temporary("hello");
  const Fd fd = open_read(path);
  EXPECT_EQ(file_size(fd, path), 5u);
  std::byte six[6];
  EXPECT_EQ(code_of([&] { pread_exact(fd, six, 0, path); }), Code::data_loss);
  EXPECT_EQ(code_of([&] { read_text_file(path, 4); }), Code::invalid_argument);
  EXPECT_EQ(read_text_file(path, 5), "hello");
  ::unlink(path.c_str());
  EXPECT_EQ(code_of([&] { open_read(path); }), Code::not_found);
  EXPECT_EQ(code_of([&] { file_size(open_read("/dev/null"), "/dev/null"); }), Code::invalid_argument);
}

TEST(Process, FiguresArePlausible) {
  EXPECT_GE(available_cores(), 1u);
  EXPECT_NE(executable_path().find("test_base"), std::string::npos);
  const uint64_t before = peak_rss_bytes();
  EXPECT_GT(before, 1u << 20);
  std::vector<char> touched(64 << 20, 1);
  EXPECT_GE(peak_rss_bytes(), before + (48u << 20));
  EXPECT_EQ(touched.back(), 1);
}

TEST(Deadlines, CountDown) {
  const Deadline d = Deadline::after(30ms);
  EXPECT_FALSE(d.expired());
  EXPECT_LE(d.left(), 30ms);
  std::this_thread::sleep_for(40ms);
  EXPECT_TRUE(d.expired());
  EXPECT_EQ(d.left_ms(), 0);
  EXPECT_GE(d.waited_s(), 0.03);
}

// FIPS 180-4 test vector.
TEST(Sha256, KnownAnswer) {
  Sha256 hash;
  const std::string abc = "abc";
  hash.update(std::as_bytes(std::span(abc).first(1)));
  hash.update(std::as_bytes(std::span(abc).subspan(1)));
  EXPECT_EQ(hash.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace verbund
