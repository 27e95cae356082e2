// Small Unix helpers: owned descriptors and exact reads. Linux and macOS. Any thread; a descriptor has one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/deadline.h"

namespace verbund {

// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Fd() { reset(); }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset();

 private:
  int fd_ = -1;
};

// "No such file or directory": the text of errno, for error messages.
std::string errno_text(int error_number);

Fd open_read(const std::string& path);  // throws not_found / permission_denied
uint64_t file_size(const Fd& fd, const std::string& path);
void pread_exact(const Fd& fd, std::span<std::byte> into, uint64_t offset, const std::string& path);  // short file -> data_loss
std::string read_text_file(const std::string& path, uint64_t bytes_max);  // throws with path and size beyond the cap

// Non-blocking stream sockets. Both throw deadline_exceeded / unavailable naming `peer`.
void send_exact(int fd, std::span<const std::byte> data, const Deadline& deadline, const std::string& peer);
void recv_exact(int fd, std::span<std::byte> data, const Deadline& deadline, const std::string& peer);
void set_nonblocking(int fd);
void set_cloexec(int fd);

std::string executable_path();  // of this program
uint64_t peak_rss_bytes();      // of this process, since its start
uint64_t random_u64();          // from the system
unsigned available_cores();     // affinity and cgroup quota respected
// The system puts this thread on another core that it may use, if there is one, and is free again afterwards (Linux; else nothing).
void leave_this_core();

}  // namespace verbund
