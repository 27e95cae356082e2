#include "mesh/verbs/queue_pair.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace verbund::mesh::verbs {
namespace {

// An answer is late after 4.096 us * 2^16 = 0.27 s; seven tries make about 2 s until a link counts as down.
constexpr uint8_t kAnswerTimeout = 16, kTries = 7;
constexpr uint8_t kNotReadyPause = 12;  // 0.64 ms; receives are always posted, so it is only for devices that are slow at it
constexpr uint8_t kHopLimit = 64;

std::string reason(int error) { return error == 0 ? "no reason given" : fmt::format("{} (errno {})", errno_text(error), error); }

}  // namespace

QueuePair::QueuePair(const Plan& plan) : plan_(plan), library_(load_library(plan.library)) {
  try {
    open();
  } catch (...) {
    release();
    throw;
  }
}

QueuePair::~QueuePair() { release(); }

std::string QueuePair::name() const { return plan_.mine.full_name(); }

void QueuePair::fail(const std::string& what, int error, const std::string& hint) const {
  const bool full = error == ENOMEM || error == EBUSY || error == EMFILE || error == ENOSPC;
  throw Error({full ? Code::resource_exhausted : Code::unavailable,
               Lost::instance,
               fmt::format("{}: {}: {}", name(), what, reason(error)),
               {},
               hint});
}

void QueuePair::open() {
  int count = 0;
  ibv_device** devices = library_.get_device_list(&count);
  for (int i = 0; devices && i < count; ++i)
    if (plan_.mine.device == library_.get_device_name(devices[i])) context_ = library_.open_device(devices[i]);
  const int error = errno;
  if (devices) library_.free_device_list(devices);
  if (!context_) fail("cannot open the device", error, "it was there a moment ago; see the system's log");

  ibv_device_attr limits{};
  if (const int rc = library_.query_device(context_, &limits)) fail("cannot read the device's limits", rc);
  const auto wanted = static_cast<int>(slots());
  if (limits.max_qp_wr < wanted || limits.max_cqe < 2 * wanted || limits.max_mr_size < buffer_bytes(plan_.slot_bytes, plan_.depth))
    fail(fmt::format("the device is too small: {} messages in a queue, {} completions, {} bytes in a region; needed are {}, {}, {}",
                     limits.max_qp_wr, limits.max_cqe, limits.max_mr_size, wanted, 2 * wanted, buffer_bytes(plan_.slot_bytes, plan_.depth)),
         0);

  if (!(domain_ = library_.alloc_pd(context_))) fail("cannot make a protection domain", errno);
  memory_bytes_ = buffer_bytes(plan_.slot_bytes, plan_.depth);
  void* memory = ::mmap(nullptr, memory_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("cannot get memory for messages", errno);
  memory_ = static_cast<std::byte*>(memory);
  if (!(region_ = library_.reg_mr(domain_, memory_, memory_bytes_, IBV_ACCESS_LOCAL_WRITE)))
    fail(fmt::format("cannot register {} bytes", memory_bytes_), errno,
         "raise the limit of locked memory (ulimit -l), or end other programs that use the device");
  if (!(channel_ = library_.create_comp_channel(context_))) fail("cannot make a completion channel", errno);
  set_cloexec(channel_->fd);
  set_nonblocking(channel_->fd);
  if (!(completions_ = library_.create_cq(context_, 2 * wanted, nullptr, channel_, 0))) fail("cannot make a completion queue", errno);

  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = completions_;
  init.qp_type = plan_.reliable ? IBV_QPT_RC : IBV_QPT_UC;
  init.sq_sig_all = 1;
  init.cap.max_send_wr = init.cap.max_recv_wr = slots();
  init.cap.max_send_sge = init.cap.max_recv_sge = 1;
  if (!(qp_ = library_.create_qp(domain_, &init)))
    fail(fmt::format("cannot make a queue pair ({}, {} messages each way)", plan_.reliable ? "RC" : "UC", slots()), errno,
         "the device's queue pairs may be used up: end other programs that use it; on a Mac ones that died can hold them until a restart");
  if (init.cap.max_send_wr < slots() || init.cap.max_recv_wr < slots())
    fail(fmt::format("the device granted {} sends and {} receives in a queue, {} are needed", init.cap.max_send_wr, init.cap.max_recv_wr,
                     slots()),
         0);

  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = plan_.mine.port;
  if (const int rc = library_.modify_qp(qp_, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
    fail("cannot prepare the queue pair", rc);
  for (uint32_t i = 0; i < slots(); ++i) post_receive(i);
}

void QueuePair::connect(uint32_t first_sequence, const Card& theirs) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = static_cast<ibv_mtu>(plan_.mtu);
  attr.dest_qp_num = theirs.number;
  attr.rq_psn = theirs.first_sequence;
  attr.ah_attr.port_num = plan_.mine.port;
  attr.ah_attr.dlid = plan_.theirs.lid;
  attr.ah_attr.is_global = 1;
  std::memcpy(attr.ah_attr.grh.dgid.raw, plan_.theirs.gid.data(), plan_.theirs.gid.size());
  attr.ah_attr.grh.sgid_index = static_cast<uint8_t>(plan_.mine.gid_index);
  attr.ah_attr.grh.hop_limit = kHopLimit;
  int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (plan_.reliable) {
    attr.min_rnr_timer = kNotReadyPause;
    mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  }
  if (const int rc = library_.modify_qp(qp_, &attr, mask))
    fail(fmt::format("cannot connect the queue pair to {}", plan_.theirs.full_name()), rc,
         fmt::format("check that both ports are up and that {} answers a ping from {}", plan_.theirs.address(), plan_.mine.address()));

  attr = {};
  attr.qp_state = IBV_QPS_RTS;
  attr.sq_psn = first_sequence;
  mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (plan_.reliable) {
    attr.timeout = kAnswerTimeout;
    attr.retry_cnt = attr.rnr_retry = kTries;
    mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  }
  if (const int rc = library_.modify_qp(qp_, &attr, mask)) fail("cannot start sending", rc);
}

void QueuePair::post_send(uint32_t slot, uint32_t bytes) {
  ibv_sge piece{reinterpret_cast<uint64_t>(send_slot(slot) + kHeaderOffset), static_cast<uint32_t>(sizeof(MessageHeader)) + bytes,
                region_->lkey};
  ibv_send_wr work{}, *bad = nullptr;
  work.wr_id = slot;
  work.sg_list = &piece;
  work.num_sge = 1;
  work.opcode = IBV_WR_SEND;
  if (const int rc = ::ibv_post_send(qp_, &work, &bad)) fail("cannot send", rc);
}

void QueuePair::post_receive(uint32_t slot) {
  ibv_sge piece{reinterpret_cast<uint64_t>(receive_slot(slot) + kHeaderOffset), static_cast<uint32_t>(sizeof(MessageHeader) + capacity()),
                region_->lkey};
  ibv_recv_wr work{}, *bad = nullptr;
  work.wr_id = kReceive | slot;
  work.sg_list = &piece;
  work.num_sge = 1;
  if (const int rc = ::ibv_post_recv(qp_, &work, &bad)) fail("cannot post a receive", rc);
}

int QueuePair::poll(std::span<ibv_wc> into) {
  const int n = ::ibv_poll_cq(completions_, static_cast<int>(into.size()), into.data());
  if (n < 0) fail("cannot read completions", errno);
  return n;
}

void QueuePair::request_event() {
  if (const int rc = ::ibv_req_notify_cq(completions_, 0)) fail("cannot ask for a wake-up", rc);
}

void QueuePair::take_events() {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  while (library_.get_cq_event(channel_, &queue, &context) == 0) ++events_taken_;
}

// A queue pair that is not destroyed may stay in the device until the machine restarts, so nothing here stops at a failure.
void QueuePair::release() {
  if (qp_) library_.destroy_qp(qp_);
  if (completions_) {
    if (events_taken_ > 0) library_.ack_cq_events(completions_, events_taken_);  // destroying waits for each of them
    library_.destroy_cq(completions_);
  }
  if (channel_) library_.destroy_comp_channel(channel_);
  if (region_) library_.dereg_mr(region_);
  if (memory_) ::munmap(memory_, memory_bytes_);
  if (domain_) library_.dealloc_pd(domain_);
  if (context_) library_.close_device(context_);
}

std::unique_ptr<Endpoint> open_endpoint(const Plan& plan) { return std::make_unique<QueuePair>(plan); }

}  // namespace verbund::mesh::verbs
