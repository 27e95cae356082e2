#include "engine/frames.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "base/bytes.h"

namespace verbund::engine {

FrameChannel::FrameChannel(Fd socket, std::string peer) : socket_(std::move(socket)), peer_(std::move(peer)) {
  set_nonblocking(socket_.get());
  set_cloexec(socket_.get());
}

void FrameChannel::send(const nlohmann::json& message, const Deadline& deadline) {
  std::vector<uint8_t> frame(4);
  nlohmann::json::to_cbor(message, frame);
  const uint64_t length = frame.size() - 4;
  if (length > kFrameBytesMax)
    throw Error(Code::resource_exhausted, "a message of " + format_bytes(length) + " exceeds the limit of " + format_bytes(kFrameBytesMax),
                peer_);
  for (int i = 0; i < 4; ++i) frame[static_cast<size_t>(i)] = static_cast<uint8_t>(length >> (8 * i));
  const std::lock_guard lock(send_mutex_);
  send_exact(socket_.get(), std::as_bytes(std::span(frame)), deadline, peer_);
}

std::optional<nlohmann::json> FrameChannel::poll() {
  for (;;) {
    const size_t have = buffer_.size() - begin_;
    if (have >= 4) {
      uint32_t length = 0;
      for (size_t i = 0; i < 4; ++i) length |= static_cast<uint32_t>(buffer_[begin_ + i]) << (8 * i);
      if (length > kFrameBytesMax)
        throw Error({Code::data_loss,
                     Lost::peer,
                     "a frame of " + format_bytes(length) + " exceeds the limit of " + format_bytes(kFrameBytesMax),
                     peer_,
                     {}});
      if (have >= 4 + size_t(length)) {
        const auto* at = reinterpret_cast<const uint8_t*>(buffer_.data() + begin_ + 4);
        auto message = nlohmann::json::from_cbor(at, at + length, true, false);
        begin_ += 4 + size_t(length);
        if (begin_ == buffer_.size()) buffer_.clear(), begin_ = 0;
        if (!message.is_object()) throw Error({Code::data_loss, Lost::peer, "a frame is not a CBOR map", peer_, {}});
        return message;
      }
    }
    if (closed_) throw Error({Code::unavailable, Lost::peer, "the process has closed its connection", peer_, {}});
    if (begin_ > 0) buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<long>(begin_)), begin_ = 0;

    constexpr size_t kChunk = 64 * 1024;
    const size_t old = buffer_.size();
    buffer_.resize(old + kChunk);
    const ssize_t n = ::recv(socket_.get(), buffer_.data() + old, kChunk, 0);
    const int problem = errno;
    buffer_.resize(old + (n > 0 ? static_cast<size_t>(n) : 0));
    if (n > 0) continue;
    if (n == 0 || problem == ECONNRESET) {
      closed_ = true;
      continue;
    }
    if (problem == EINTR) continue;
    if (problem == EAGAIN || problem == EWOULDBLOCK) return std::nullopt;
    throw Error({Code::unavailable, Lost::peer, "receive failed: " + errno_text(problem), peer_, {}});
  }
}

nlohmann::json to_json(const Error& error) {
  const Error::Parts& p = error.parts();
  return {{"code", to_string(p.code)}, {"lost", to_string(p.lost)}, {"what", p.what}, {"where", p.where}, {"hint", p.hint}};
}

Error error_from_json(const nlohmann::json& json) {
  const auto text = [&](const char* key) { return json.is_object() ? json.value(key, std::string()) : std::string(); };
  return Error({code_from_string(text("code")), lost_from_string(text("lost")), text("what"), text("where"), text("hint")});
}

}  // namespace verbund::engine
