// A verbs library for tests, loaded as the real one is: one device, whose queue pairs reach each other within this process.
//
// It keeps the rules of a device (a message needs a posted receive, RC fails without one and UC loses it, an event once per request) and
// fails on demand: FAKE_VERBS holds any of the words below, with a number where one is read. Everything under one lock.
#include <infiniband/verbs.h>
#undef ibv_query_port
#undef ibv_reg_mr

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>

namespace {

std::mutex everything;

bool told(const char* word, int* number = nullptr) {
  const char* words = std::getenv("FAKE_VERBS");
  const char* found = words ? std::strstr(words, word) : nullptr;
  if (found && number) *number = std::atoi(found + std::strlen(word));
  return found != nullptr;
}

template <class T>
T* refuse(int error) {
  errno = error;
  return nullptr;
}

struct Channel : ibv_comp_channel {
  int wake = -1;
  struct Cq* cq = nullptr;
};

struct Cq : ibv_cq {
  std::deque<ibv_wc> done;
  bool armed = false;

  void push(uint64_t id, ibv_wc_status status, ibv_wc_opcode opcode, uint32_t bytes) {
    ibv_wc wc{};
    wc.wr_id = id;
    wc.status = status;
    wc.opcode = opcode;
    wc.byte_len = bytes;
    done.push_back(wc);
    if (!armed) return;
    armed = false;
    if (::write(static_cast<Channel*>(channel)->wake, "!", 1) < 0) std::abort();
  }
};

struct Qp : ibv_qp {
  std::deque<std::pair<uint64_t, ibv_sge>> receives;
  uint32_t peer = 0;
  int sent = 0;
};

std::map<uint32_t, Qp*> queue_pairs;
uint32_t next_number = 100;
int objects = 0;  // devices, domains, regions, channels, queues that are not released

int post_receive(ibv_qp* qp, ibv_recv_wr* work, ibv_recv_wr**) {
  std::lock_guard lock(everything);
  static_cast<Qp*>(qp)->receives.emplace_back(work->wr_id, *work->sg_list);
  return 0;
}

int post_send(ibv_qp* qp, ibv_send_wr* work, ibv_send_wr**) {
  std::lock_guard lock(everything);
  Qp& mine = *static_cast<Qp*>(qp);
  Cq& my_queue = *static_cast<Cq*>(mine.send_cq);
  const ibv_sge& piece = *work->sg_list;
  const auto peer = queue_pairs.find(mine.peer);
  int nth = 0;
  const bool reliable = mine.qp_type == IBV_QPT_RC;
  const bool reached = peer != queue_pairs.end() && peer->second->state >= IBV_QPS_RTR && !peer->second->receives.empty();
  const bool dropped = told("drop=", &nth) && ++mine.sent == nth;
  if ((!reached || dropped) && reliable) {
    my_queue.push(work->wr_id, IBV_WC_RETRY_EXC_ERR, IBV_WC_SEND, 0);
    return 0;
  }
  if (reached && !dropped) {
    auto& [id, into] = peer->second->receives.front();
    Cq& their_queue = *static_cast<Cq*>(peer->second->recv_cq);
    if (piece.length > into.length) {
      their_queue.push(id, IBV_WC_LOC_LEN_ERR, IBV_WC_RECV, 0);
    } else {
      std::memcpy(reinterpret_cast<void*>(into.addr), reinterpret_cast<const void*>(piece.addr), piece.length);
      their_queue.push(id, IBV_WC_SUCCESS, IBV_WC_RECV, piece.length);
    }
    peer->second->receives.pop_front();
  }
  my_queue.push(work->wr_id, IBV_WC_SUCCESS, IBV_WC_SEND, piece.length);
  return 0;
}

int poll_queue(ibv_cq* cq, int max, ibv_wc* into) {
  std::lock_guard lock(everything);
  auto& done = static_cast<Cq*>(cq)->done;
  int n = 0;
  for (; n < max && !done.empty(); ++n, done.pop_front()) into[n] = done.front();
  return n;
}

int request_event(ibv_cq* cq, int) {
  std::lock_guard lock(everything);
  static_cast<Cq*>(cq)->armed = true;
  return 0;
}

ibv_device device{};
ibv_device* list[] = {&device, nullptr};

}  // namespace

extern "C" {

int fake_verbs_objects() {
  std::lock_guard lock(everything);
  return objects;
}

ibv_device** ibv_get_device_list(int* count) {
  *count = told("no_device") ? 0 : 1;
  return list;
}
void ibv_free_device_list(ibv_device**) {}
const char* ibv_get_device_name(ibv_device*) { return told("thunderbolt") ? "rdma_en3" : "fake0"; }

ibv_context* ibv_open_device(ibv_device*) {
  std::lock_guard lock(everything);
  auto* context = new ibv_context{};
  context->ops.post_send = post_send;
  context->ops.post_recv = post_receive;
  context->ops.poll_cq = poll_queue;
  context->ops.req_notify_cq = request_event;
  ++objects;
  return context;
}
int ibv_close_device(ibv_context* context) {
  std::lock_guard lock(everything);
  --objects;
  delete context;
  return 0;
}

int ibv_query_device(ibv_context*, ibv_device_attr* attr) {
  *attr = {};
  attr->phys_port_cnt = 1;
  attr->max_qp_wr = attr->max_cqe = 4095;
  attr->max_mr_size = uint64_t(1) << 30;
  told("max_qp_wr=", &attr->max_qp_wr);
  return 0;
}
int ibv_query_port(ibv_context*, uint8_t, _compat_ibv_port_attr* compatible) {
  auto* attr = reinterpret_cast<ibv_port_attr*>(compatible);
  attr->state = told("port_down") ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
  attr->active_mtu = IBV_MTU_1024;
  attr->gid_tbl_len = 2;
  attr->link_layer = IBV_LINK_LAYER_ETHERNET;
  return 0;
}
int ibv_query_gid(ibv_context*, uint8_t, int index, ibv_gid* gid) {
  const uint8_t link_local[16] = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  const uint8_t ipv4[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
  if (index > 1 || (index == 1 && told("no_address"))) return -1;
  std::memcpy(gid->raw, index == 0 ? link_local : ipv4, sizeof gid->raw);
  return 0;
}

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  std::lock_guard lock(everything);
  ++objects;
  auto* domain = new ibv_pd{};
  domain->context = context;
  return domain;
}
int ibv_dealloc_pd(ibv_pd* domain) {
  std::lock_guard lock(everything);
  --objects;
  delete domain;
  return 0;
}
ibv_mr* ibv_reg_mr(ibv_pd*, void*, size_t, int) {
  if (told("no_memory")) return refuse<ibv_mr>(ENOMEM);
  std::lock_guard lock(everything);
  ++objects;
  return new ibv_mr{};
}
int ibv_dereg_mr(ibv_mr* region) {
  std::lock_guard lock(everything);
  --objects;
  delete region;
  return 0;
}

ibv_comp_channel* ibv_create_comp_channel(ibv_context*) {
  int ends[2];
  if (::pipe(ends) != 0) return nullptr;
  std::lock_guard lock(everything);
  ++objects;
  auto* channel = new Channel{};
  channel->fd = ends[0];
  channel->wake = ends[1];
  return channel;
}
int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  std::lock_guard lock(everything);
  --objects;
  ::close(channel->fd);
  ::close(static_cast<Channel*>(channel)->wake);
  delete static_cast<Channel*>(channel);
  return 0;
}
ibv_cq* ibv_create_cq(ibv_context* context, int, void*, ibv_comp_channel* channel, int) {
  std::lock_guard lock(everything);
  ++objects;
  auto* cq = new Cq{};
  cq->context = context;
  cq->channel = channel;
  static_cast<Channel*>(channel)->cq = cq;
  return cq;
}
int ibv_destroy_cq(ibv_cq* cq) {
  std::lock_guard lock(everything);
  --objects;
  delete static_cast<Cq*>(cq);
  return 0;
}
int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void**) {
  char byte;
  *cq = static_cast<Channel*>(channel)->cq;
  return ::read(channel->fd, &byte, 1) == 1 ? 0 : -1;
}
void ibv_ack_cq_events(ibv_cq*, unsigned) {}

ibv_qp* ibv_create_qp(ibv_pd* domain, ibv_qp_init_attr* init) {
  if (told("qp_busy")) return refuse<ibv_qp>(EBUSY);
  std::lock_guard lock(everything);
  ++objects;
  auto* qp = new Qp{};
  qp->context = domain->context;
  qp->send_cq = init->send_cq;
  qp->recv_cq = init->recv_cq;
  qp->qp_type = init->qp_type;
  qp->qp_num = next_number++;
  if (int granted = 0; told("granted=", &granted)) init->cap.max_recv_wr = static_cast<uint32_t>(granted);
  queue_pairs[qp->qp_num] = qp;
  return qp;
}
int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
  if (attr->qp_state == IBV_QPS_RTR && told("unreachable")) return ETIMEDOUT;
  std::lock_guard lock(everything);
  if (mask & IBV_QP_STATE) qp->state = attr->qp_state;
  if (mask & IBV_QP_DEST_QPN) static_cast<Qp*>(qp)->peer = attr->dest_qp_num;
  return 0;
}
int ibv_destroy_qp(ibv_qp* qp) {
  std::lock_guard lock(everything);
  --objects;
  queue_pairs.erase(qp->qp_num);
  delete static_cast<Qp*>(qp);
  return 0;
}

}  // extern "C"
