#include "mesh/jitter.h"

#include <algorithm>
#include <random>
#include <thread>
#include <utility>

namespace verbund::mesh {
namespace {

class JitterLink final : public Link {
 public:
  JitterLink(std::unique_ptr<Link> link, uint64_t seed) : link_(std::move(link)), random_(seed) {}

  size_t frame_align() const override { return link_->frame_align(); }
  std::span<std::byte> room(size_t lead) override { return cut(link_->room(lead), room_held_back_); }
  std::span<const std::byte> arrived(size_t want) override {
    const auto window = link_->arrived(want);
    if (link_->closed()) return window;  // what a closed link does not show now is lost
    const auto shown = cut(window, arrived_held_back_);
    // Never less than shown before: the mesh holds on to a window until it consumes.
    shown_ = std::max(shown.size(), std::min(shown_, window.size()));
    return window.first(shown_);
  }
  void expect(size_t bytes) override { link_->expect(bytes); }
  void commit(size_t bytes) override { link_->commit(bytes); }
  void consume(size_t bytes) override {
    shown_ -= std::min(shown_, bytes);
    link_->consume(bytes);
  }
  bool flush() override { return link_->flush(); }

  // There may always be more than was shown, so nobody sleeps for long.
  bool arm(bool want_arrived, bool want_room, pollfd& p) override {
    return link_->arm(want_arrived, want_room, p) && !arrived_held_back_ && !room_held_back_;
  }
  void disarm(const pollfd& p) override { link_->disarm(p); }
  bool closed() const override { return link_->closed(); }
  std::string_view notice() const override { return link_->notice(); }
  bool has_notices() const override { return link_->has_notices(); }
  void hang_up(std::string_view notice) override { link_->hang_up(notice); }
  std::string_view transport() const override { return link_->transport(); }
  std::string_view note() const override { return link_->note(); }
  uint64_t buffer_bytes() const override { return link_->buffer_bytes(); }

 private:
  template <class T>
  std::span<T> cut(std::span<T> window, bool& held_back) {
    const unsigned dice = static_cast<unsigned>(random_() % 64);
    if (dice == 0) std::this_thread::sleep_for(std::chrono::microseconds(random_() % 200));
    size_t size = window.size();
    if (dice < 24)
      size = 0;  // another link goes first
    else if (dice < 48)
      size = std::min<size_t>(size, random_() % 997);  // a part, often of an element or a header
    held_back = size < window.size();
    return window.first(size);
  }

  std::unique_ptr<Link> link_;
  std::mt19937_64 random_;
  size_t shown_ = 0;
  bool arrived_held_back_ = false, room_held_back_ = false;
};

}  // namespace

std::unique_ptr<Link> add_jitter(std::unique_ptr<Link> link, uint64_t seed) { return std::make_unique<JitterLink>(std::move(link), seed); }

}  // namespace verbund::mesh
