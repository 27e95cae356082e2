#include "mesh/peer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace verbund::mesh {
namespace {

static_assert(kHeaderBytes + kGiveUpBytesMax <= kWindowBytesMin);

// Notice of a dying rank: one byte of code, then text.
std::string encode_notice(const Error& error) {
  const Code code = error.code() == Code::cancelled ? Code::unavailable : error.code();
  std::string text(1, static_cast<char>(code));
  return (text + error.parts().what).substr(0, kGiveUpBytesMax);
}

Error decode_notice(int peer, Code code, std::string_view text) {
  std::string clean(text);
  for (char& c : clean)
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
  // Both ends of a divergence say the same; other causes are told as the peer's.
  const std::string what =
      code == Code::data_loss ? fmt::format("{} (found by rank {})", clean, peer) : fmt::format("rank {} gave up: {}", peer, clean);
  return Error({code, Lost::instance, what, {}, {}});
}

Code code_of(uint8_t raw) { return raw <= static_cast<uint8_t>(Code::internal) ? static_cast<Code>(raw) : Code::unavailable; }

}  // namespace

void Peer::begin_send(const FrameHeader& header) {
  out_ = header;
  out_header_gone_ = false;
  out_pos_ = out_ready_ = 0;
}

size_t Peer::push(std::span<const std::byte> payload, size_t ready) {
  out_ready_ = ready;
  while (!sent() && (!out_header_gone_ || out_pos_ < ready)) {
    const size_t padding = out_header_gone_ ? 0 : padding_at(out_stream_);
    std::span<std::byte> room = link_->room(padding);
    size_t used = 0;
    if (!out_header_gone_) {
      if (room.size() < padding + kHeaderBytes) {
        if (link_->closed()) throw PeerGone{rank_};
        break;
      }
      std::memcpy(room.data() + padding, &*out_, sizeof(FrameHeader));
      used = padding + kHeaderBytes;
      out_header_gone_ = true;
    }
    const size_t n = std::min(room.size() - used, ready - out_pos_);
    if (n > 0) std::memcpy(room.data() + used, payload.data() + out_pos_, n);
    if (used + n == 0) {
      if (link_->closed()) throw PeerGone{rank_};
      break;
    }
    out_pos_ += n;
    bytes_sent_ += n;
    out_stream_ += used + n;
    link_->commit(used + n);
    dirty_ = true;
    if (sent()) link_->expect(kHeaderBytes + out_->payload_bytes);
  }
  return out_pos_;
}

void Peer::begin_recv(const FrameHeader& expected) {
  in_ = expected;
  in_header_seen_ = false;
  in_pos_ = in_window_ = in_lead_ = 0;
}

std::span<const std::byte> Peer::arrived() {
  if (received() || (!in_header_seen_ && !take_header())) return {};
  const size_t want = in_->payload_bytes - in_pos_;
  if (want == 0) return {};
  std::span<const std::byte> window = link_->arrived(in_lead_ + want);
  if (window.size() < in_lead_ + want && link_->closed()) {
    window = link_->arrived(in_lead_ + want);  // what came between the look and the hang-up
    if (window.size() < in_lead_ + want) throw PeerGone{rank_};
  }
  window = window.subspan(in_lead_, std::min(window.size() - in_lead_, want));
  in_window_ = window.size();
  return window;
}

bool Peer::take_header() {
  const size_t padding = padding_at(in_stream_), need = padding + kHeaderBytes;
  std::span<const std::byte> window = link_->arrived(need + in_->payload_bytes);
  if (window.size() < need && link_->closed()) {
    window = link_->arrived(need);
    if (window.size() < need) throw PeerGone{rank_};
  }
  if (window.size() < need) return false;
  FrameHeader header;
  std::memcpy(&header, window.data() + padding, sizeof header);
  if (header != *in_) {
    if (const auto words = give_up_frame()) throw PeerWords{rank_, *words};
    if (header.magic == FrameHeader::kMagic && header.op == Op::give_up && !link_->closed()) return false;  // its text is still to come
    throw diverged(self_, *in_, rank_, header);
  }
  in_lead_ = need;
  in_stream_ += need;
  in_header_seen_ = true;
  if (in_->payload_bytes == 0) consume_stream(0);
  return true;
}

std::optional<Error> Peer::give_up_frame() {
  const size_t need = padding_at(in_stream_) + kHeaderBytes;
  auto window = link_->arrived(need + kGiveUpBytesMax);
  if (window.size() < need) return {};
  FrameHeader header;
  std::memcpy(&header, window.data() + need - kHeaderBytes, sizeof header);
  if (header.magic != FrameHeader::kMagic || header.op != Op::give_up || header.payload_bytes > kGiveUpBytesMax) return {};
  if (window.size() < need + header.payload_bytes) return {};
  const auto text = window.subspan(need, header.payload_bytes);
  return decode_notice(rank_, code_of(header.phase), {reinterpret_cast<const char*>(text.data()), text.size()});
}

std::optional<Error> Peer::last_words() {
  if (const std::string_view notice = link_->notice(); !notice.empty())
    return decode_notice(rank_, code_of(static_cast<uint8_t>(notice[0])), notice.substr(1));
  if (received() || !in_header_seen_) return give_up_frame();
  return {};
}

void Peer::consume(size_t bytes) {
  if (bytes == 0) return;
  consume_stream(bytes);
  in_pos_ += bytes;
  in_window_ -= bytes;
  in_stream_ += bytes;
  bytes_received_ += bytes;
}

// `bytes` and the header before them, if it still lies there.
void Peer::consume_stream(size_t bytes) {
  link_->consume(std::exchange(in_lead_, 0) + bytes);
  dirty_ = true;
}

bool Peer::flush() {
  if (dirty_) dirty_ = !link_->flush();
  return !dirty_;
}

bool Peer::arm(pollfd& p) {
  const bool arrived = wants_arrived(), room = wants_room();
  if (link_->closed() && !arrived && !room) {
    p = {-1, 0, 0};
    return true;
  }
  return link_->arm(arrived, room, p);
}

void Peer::disarm(const pollfd& p) {
  if (p.fd >= 0) link_->disarm(p);
}

void Peer::tell(const Error& error) {
  if (told_ || !(sent() || !out_header_gone_) || link_->closed()) return;
  told_ = true;
  const std::string notice = encode_notice(error);
  const auto text = std::as_bytes(std::span(notice)).subspan(1);
  FrameHeader header{
      .op = Op::give_up, .phase = static_cast<uint8_t>(notice[0]), .operation_bytes = text.size(), .payload_bytes = text.size()};
  begin_send(header);
  push(text, text.size());
  link_->flush();
}

void Peer::give_up(const Error& error) {
  tell(error);
  link_->hang_up(encode_notice(error));
}

}  // namespace verbund::mesh
