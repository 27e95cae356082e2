#include "base/unix.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <system_error>
#include <thread>

#ifdef __linux__
#include <sched.h>
#endif
#ifdef __APPLE__
#include <mach-o/dyld.h>
#endif

#include "base/bytes.h"
#include "base/error.h"

namespace verbund {
namespace {

Error system_error(const std::string& what, const std::string& where, int error_number) {
  const Code code = error_number == ENOENT || error_number == ENOTDIR  ? Code::not_found
                    : error_number == EACCES || error_number == EPERM  ? Code::permission_denied
                    : error_number == ENOMEM || error_number == EMFILE ? Code::resource_exhausted
                                                                       : Code::unavailable;
  return Error(code, what + ": " + errno_text(error_number), where);
}

void wait_ready(int fd, short events, const Deadline& deadline, const std::string& peer, const char* what) {
  for (;;) {
    pollfd p{fd, events, 0};
    const int n = ::poll(&p, 1, deadline.left_ms());
    if (n > 0) return;
    if (n < 0 && errno != EINTR) throw system_error(what, peer, errno);
    if (deadline.expired())
      throw Error({Code::deadline_exceeded,
                   Lost::peer,
                   std::string(what) + " timed out after " + std::to_string(deadline.waited_s()) + " s",
                   peer,
                   {}});
  }
}

Error closed(const std::string& peer) { return Error({Code::unavailable, Lost::peer, "the connection was closed", peer, {}}); }

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

}  // namespace

void Fd::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

std::string errno_text(int error_number) { return std::generic_category().message(error_number); }

Fd open_read(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) throw system_error("cannot open", path, errno);
  return fd;
}

uint64_t file_size(const Fd& fd, const std::string& path) {
  struct stat s {};
  if (::fstat(fd.get(), &s) != 0) throw system_error("cannot read the size", path, errno);
  if (!S_ISREG(s.st_mode)) throw Error(Code::invalid_argument, "not a regular file", path);
  return static_cast<uint64_t>(s.st_size);
}

void pread_exact(const Fd& fd, std::span<std::byte> into, uint64_t offset, const std::string& path) {
  while (!into.empty()) {
    const size_t want = std::min<size_t>(into.size(), size_t(1) << 30);  // macOS refuses 2 GiB and more
    const ssize_t n = ::pread(fd.get(), into.data(), want, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw system_error("read failed", path, errno);
    if (n == 0)
      throw Error(Code::data_loss, "the file ends at byte " + std::to_string(offset) + ", " + std::to_string(into.size()) + " bytes early",
                  path, "fetch the file again");
    into = into.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
}

std::string read_text_file(const std::string& path, uint64_t bytes_max) {
  const Fd fd = open_read(path);
  const uint64_t size = file_size(fd, path);
  if (size > bytes_max)
    throw Error(Code::invalid_argument,
                "the file has " + format_bytes(size) + ", more than the " + format_bytes(bytes_max) + " allowed for it", path);
  std::string text(size, '\0');
  pread_exact(fd, std::as_writable_bytes(std::span(text)), 0, path);
  return text;
}

void send_exact(int fd, std::span<const std::byte> data, const Deadline& deadline, const std::string& peer) {
  while (!data.empty()) {
    const ssize_t n = ::send(fd, data.data(), data.size(), MSG_NOSIGNAL);
    if (n > 0) {
      data = data.subspan(static_cast<size_t>(n));
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      wait_ready(fd, POLLOUT, deadline, peer, "send");
      continue;
    }
    if (n < 0 && (errno == EPIPE || errno == ECONNRESET)) throw closed(peer);
    throw system_error("send failed", peer, errno);
  }
}

void recv_exact(int fd, std::span<std::byte> data, const Deadline& deadline, const std::string& peer) {
  while (!data.empty()) {
    const ssize_t n = ::recv(fd, data.data(), data.size(), 0);
    if (n > 0) {
      data = data.subspan(static_cast<size_t>(n));
      continue;
    }
    if (n == 0 || (n < 0 && errno == ECONNRESET)) throw closed(peer);
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      wait_ready(fd, POLLIN, deadline, peer, "receive");
      continue;
    }
    throw system_error("receive failed", peer, errno);
  }
}

void set_nonblocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }
void set_cloexec(int fd) { ::fcntl(fd, F_SETFD, ::fcntl(fd, F_GETFD) | FD_CLOEXEC); }

std::string executable_path() {
#ifdef __APPLE__
  char path[4096];
  uint32_t size = sizeof path;
  if (::_NSGetExecutablePath(path, &size) == 0) return std::filesystem::canonical(path).string();
  throw Error(Code::internal, "the path of this program is longer than 4096 bytes");
#else
  std::error_code problem;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", problem);
  if (problem) throw Error(Code::internal, "cannot find the path of this program: " + problem.message(), "/proc/self/exe");
  return path.string();
#endif
}

uint64_t peak_rss_bytes() {
#ifdef __linux__
  // Not ru_maxrss: that survives exec and would count the parent of a forked runner.
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key;)
    if (uint64_t kib = 0; key == "VmHWM:" && status >> kib) return kib * 1024;
  return 0;
#else
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss);
#endif
}

uint64_t random_u64() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

unsigned available_cores() {
  unsigned cores = std::max(1u, std::thread::hardware_concurrency());
#ifdef __linux__
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) cores = std::min<unsigned>(cores, static_cast<unsigned>(CPU_COUNT(&set)));
  // cgroup v2: "max 100000" or "<quota> <period>"
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (file >> quota >> period && quota != "max" && period > 0)
    cores = std::min(cores, std::max(1u, static_cast<unsigned>(std::stod(quota) / period + 0.5)));
#endif
  return cores;
}

void leave_this_core() {
#ifdef __linux__
  cpu_set_t may;
  if (::sched_getaffinity(0, sizeof may, &may) != 0 || CPU_COUNT(&may) < 2) return;
  const int here = ::sched_getcpu();
  cpu_set_t others = may;
  if (here < 0 || here >= CPU_SETSIZE || !CPU_ISSET(here, &may)) return;
  CPU_CLR(here, &others);
  if (::sched_setaffinity(0, sizeof others, &others) == 0) ::sched_setaffinity(0, sizeof may, &may);
#endif
}

}  // namespace verbund
