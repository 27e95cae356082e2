// Messages between an instance's owner (command line now, node daemon later) and its runner processes: one CBOR map a
// frame, a u32 little-endian length before it, over a Unix stream socket. Either side may die at any byte.
// A FrameChannel is used by one reading thread; send() may be called from several.
#pragma once

#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "base/unix.h"

namespace verbund::engine {

constexpr uint32_t kFrameBytesMax = 64u << 20;

class FrameChannel {
 public:
  FrameChannel(Fd socket, std::string peer);

  int fd() const { return socket_.get(); }
  // Throws unavailable / deadline_exceeded with the peer's name.
  void send(const nlohmann::json& message, const Deadline& deadline);
  // Takes what has arrived and returns the next whole message, if there is one. Never blocks.
  // Throws unavailable when the peer has closed, data_loss on a malformed frame.
  std::optional<nlohmann::json> poll();

 private:
  Fd socket_;
  std::string peer_;
  std::mutex send_mutex_;
  std::vector<std::byte> buffer_;
  size_t begin_ = 0;
  bool closed_ = false;
};

nlohmann::json to_json(const Error& error);
Error error_from_json(const nlohmann::json& json);

}  // namespace verbund::engine
