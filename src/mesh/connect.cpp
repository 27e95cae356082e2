// One poll loop connects to all lower ranks and accepts all higher ones at the same time, so that no order of start-up and no
// stranger can hold up the rest.
#include "mesh/connect.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <deque>
#include <optional>
#include <utility>

#include "mesh/group_mesh.h"
#include "mesh/handshake.h"
#include "mesh/jitter.h"
#include "mesh/shm.h"
#include "mesh/sockets.h"
#include "mesh/tcp.h"
#include "mesh/verbs/verbs.h"

namespace verbund::mesh {
namespace {

constexpr int kBacklog = 128;
constexpr size_t kPendingMax = 64;                  // handshakes of unknown callers at a time; the oldest gives way
constexpr std::chrono::seconds kCallerPatience{2};  // for a whole handshake of a caller
constexpr std::chrono::milliseconds kRetryPause{20};
constexpr size_t kTurnedAwayMax = 4;  // remembered for the error message
constexpr int kRanksMax = 1024;

struct TransportRow {
  Transport transport;
  std::string_view name;
  std::unique_ptr<Pairing> (*pair)(Fd connection, const MeshConfig& config, int peer);
};
constexpr TransportRow kTransports[] = {
    {Transport::shm, "shm", [](Fd connection, const MeshConfig&, int) { return pair_shm(std::move(connection)); }},
    {Transport::tcp, "tcp", [](Fd connection, const MeshConfig&, int) { return pair_tcp(std::move(connection)); }},
    {Transport::verbs, "verbs", pair_verbs},
};

bool over_tcp(Transport t) { return t != Transport::shm; }  // the control connection, at least

const TransportRow& row(Transport t) {
  for (const auto& row : kTransports)
    if (row.transport == t) return row;
  throw Error(Code::invalid_argument, "unknown transport");
}

Error set_up_error(Code code, std::string what, std::string hint = {}) {
  return Error({code, Lost::instance, std::move(what), {}, std::move(hint)});
}

void check(const MeshConfig& config) {
  if (config.size < 1 || config.size > kRanksMax || config.rank < 0 || config.rank >= config.size)
    throw set_up_error(Code::invalid_argument, fmt::format("rank {} of {} ranks is not possible", config.rank, config.size),
                       fmt::format("a mesh has 1 to {} ranks", kRanksMax));
  if (config.secret.size() < kSecretBytesMin)
    throw set_up_error(Code::invalid_argument,
                       fmt::format("the instance secret has {} bytes, at least {} are needed", config.secret.size(), kSecretBytesMin));
  row(config.transport);
}

class SocketListener final : public Listener {
 public:
  explicit SocketListener(const MeshConfig& config) {
    if (over_tcp(config.transport)) {
      fd_ = listen_on(tcp_address(config.host, 0), kBacklog);
      endpoint_ = fmt::format("{}:{}", to_string(config.transport), tcp_text(local_address(fd_)));
      return;
    }
    std::string name = fmt::format("verbund-{:016x}", random_u64());
#ifndef __linux__
    const char* folder = std::getenv("TMPDIR");
    path_ = name = fmt::format("{}/{}", folder && *folder ? folder : "/tmp", name);
#endif
    fd_ = listen_on(unix_address(name), kBacklog);
    endpoint_ = "shm:" + name;
  }
  ~SocketListener() override {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  std::string endpoint() const override { return endpoint_; }
  int fd() const override { return fd_.get(); }

 private:
  Fd fd_;
  std::string endpoint_, path_;
};

Address parse_endpoint(const MeshConfig& config, int rank, const std::string& endpoint) {
  const std::string prefix = fmt::format("{}:", to_string(config.transport));
  if (endpoint.rfind(prefix, 0) != 0)
    throw set_up_error(Code::invalid_argument,
                       fmt::format("the endpoint of rank {} is \"{}\", not {}<...>", rank, endpoint.substr(0, 256), prefix));
  const std::string rest = endpoint.substr(prefix.size());
  return over_tcp(config.transport) ? parse_tcp_text(rest) : unix_address(rest);
}

int ranks_on_host(const MeshConfig& config, const std::vector<std::string>& endpoints) {
  if (config.transport == Transport::shm) return config.size;
  const auto mine = parse_endpoint(config, config.rank, endpoints[static_cast<size_t>(config.rank)]);
  int count = 0;
  for (int r = 0; r < config.size; ++r) {
    const auto theirs = parse_endpoint(config, r, endpoints[static_cast<size_t>(r)]);
    count += is_loopback(theirs) || host_of(theirs) == host_of(mine);
  }
  return count;
}

class Connector {
 public:
  Connector(const MeshConfig& config, Listener& listener, const std::vector<std::string>& endpoints, const Deadline& deadline)
      : config_(config),
        listener_(listener),
        deadline_(deadline),
        taken_(static_cast<size_t>(config.size)),
        links_(static_cast<size_t>(config.size)) {
    for (int r = 0; r < config.rank; ++r)
      calls_.push_back({r, parse_endpoint(config, r, endpoints[static_cast<size_t>(r)]), {}, {}, {}, Deadline::after({})});
  }

  std::vector<std::unique_ptr<Link>> run() {
    while (!complete()) {
      if (deadline_.expired()) throw_deadline();
      for (Call& call : calls_) advance_call(call);
      for (Visit& visit : visits_) advance_visit(visit);
      std::erase_if(visits_, [](const Visit& visit) { return !visit.connection.valid() && !visit.pairing; });
      if (!complete()) wait();
    }
    return std::move(links_);
  }

 private:
  // To a lower rank: connect, handshake, pairing; from the start again while the peer has not said a word.
  struct Call {
    int rank;
    Address address;
    Fd connection;
    std::unique_ptr<Handshake> handshake;  // from when the connection stands
    std::unique_ptr<Pairing> pairing;
    Deadline retry_at;
  };
  // From somebody.
  struct Visit {
    Fd connection;
    std::unique_ptr<Handshake> handshake;
    std::unique_ptr<Pairing> pairing;  // one of us from here on
    Deadline patience;
  };

  bool complete() const { return std::count(links_.begin(), links_.end(), nullptr) == 1; }

  void advance_call(Call& call) {
    const auto rank = static_cast<size_t>(call.rank);
    if (links_[rank]) return;
    const std::string peer =
        fmt::format("rank {} at {}", call.rank, over_tcp(config_.transport) ? tcp_text(call.address) : "its local endpoint");
    try {
      if (!call.connection.valid() && !call.pairing && !start(call, peer)) return;
      if (call.handshake && !exchange(call.connection, *call.handshake)) {
        if (call.handshake->greeted()) throw set_up_error(Code::unavailable, "the connection was closed during the handshake");
        return again(call);  // e.g. crowded out by strangers
      }
      if (call.handshake && call.handshake->finished()) {
        call.handshake.reset();
        call.pairing = row(config_.transport).pair(std::move(call.connection), config_, call.rank);
      }
      if (call.pairing && call.pairing->advance()) finish(rank, call.pairing);
    } catch (const Error& e) { throw e.within(peer); }
  }

  // True when the connection stands.
  bool start(Call& call, const std::string& peer) {
    if (!call.retry_at.expired()) return false;
    call.connection = open_stream(call.address.family());
    for (;;) {
      if (::connect(call.connection.get(), call.address.get(), call.address.length) == 0) break;
      if (errno == EINTR) continue;
      if (errno == EINPROGRESS) return false;
      if (errno == EAGAIN) {  // Unix socket: its backlog is full
        again(call);
        return false;
      }
      throw_refused(errno);
    }
    call.handshake = std::make_unique<Handshake>(config_, call.rank);
    return true;
  }

  // The outcome of a connect() that took its time.
  void settle(Call& call) {
    int error = 0;
    socklen_t length = sizeof error;
    ::getsockopt(call.connection.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) throw_refused(error);
    call.handshake = std::make_unique<Handshake>(config_, call.rank);
  }

  [[noreturn]] void throw_refused(int error_number) {
    throw set_up_error(Code::unavailable, "cannot connect: " + errno_text(error_number),
                       "that rank has ended, or its endpoint is not reachable from this node");
  }

  void again(Call& call) {
    call.connection.reset();
    call.handshake.reset();
    call.retry_at = Deadline::after(kRetryPause);
  }

  void advance_visit(Visit& visit) {
    if (visit.pairing) {
      const auto rank = static_cast<size_t>(visit.handshake->peer());
      try {
        if (visit.pairing->advance()) finish(rank, visit.pairing);
      } catch (const Error& e) { throw e.within(fmt::format("rank {}", rank)); }
      return;
    }
    try {
      if (!exchange(visit.connection, *visit.handshake))
        throw set_up_error(Code::unavailable, "the connection was closed during the handshake");
      if (!visit.handshake->finished()) {
        if (visit.patience.expired()) throw set_up_error(Code::deadline_exceeded, "no whole handshake in time");
        return;
      }
    } catch (const Error& e) { return turn_away(visit, e); }
    if (const auto& refused = visit.handshake->refused()) {
      if (visit.handshake->fatal()) throw *refused;
      return turn_away(visit, *refused);
    }
    taken_[static_cast<size_t>(visit.handshake->peer())] = true;
    visit.pairing = row(config_.transport).pair(std::move(visit.connection), config_, visit.handshake->peer());
    advance_visit(visit);
  }

  void turn_away(Visit& visit, const Error& why) {
    visit.connection.reset();
    ++turned_away_count_;
    turned_away_.push_back(why.parts().what);
    if (turned_away_.size() > kTurnedAwayMax) turned_away_.pop_front();
  }

  // Moves what can be moved. False: the other side has closed.
  static bool exchange(const Fd& connection, Handshake& handshake) {
    for (bool moved = true; moved;) {
      moved = false;
      if (const auto output = handshake.output(); !output.empty()) {
        const auto n = try_write(connection.get(), output);
        if (!n) return false;
        handshake.wrote(*n);
        moved = *n > 0;
      }
      if (const auto input = handshake.input(); !input.empty()) {
        const auto n = try_read(connection.get(), input);
        if (!n) return false;
        if (*n > 0) handshake.read(*n);
        moved = moved || *n > 0;
      }
    }
    return true;
  }

  void finish(size_t rank, std::unique_ptr<Pairing>& pairing) {
    links_[rank] = pairing->take();
    pairing.reset();
  }

  void wait() {
    std::vector<pollfd> polled{{listener_.fd(), POLLIN, 0}};
    Deadline until = deadline_;
    const auto sooner = [&](const Deadline& d) {
      if (d.at() < until.at()) until = d;
    };
    std::vector<Call*> connecting;
    std::vector<size_t> connecting_at;
    for (Call& call : calls_) {
      if (links_[static_cast<size_t>(call.rank)]) continue;
      if (call.pairing) {
        polled.push_back({call.pairing->fd(), POLLIN, 0});
      } else if (call.handshake) {
        polled.push_back({call.connection.get(), static_cast<short>(call.handshake->output().empty() ? POLLIN : POLLIN | POLLOUT), 0});
      } else if (call.connection.valid()) {
        connecting.push_back(&call);
        connecting_at.push_back(polled.size());
        polled.push_back({call.connection.get(), POLLOUT, 0});
      } else {
        sooner(call.retry_at);
      }
    }
    for (Visit& visit : visits_) {
      if (visit.pairing) {
        polled.push_back({visit.pairing->fd(), POLLIN, 0});
      } else {
        polled.push_back({visit.connection.get(), static_cast<short>(visit.handshake->output().empty() ? POLLIN : POLLIN | POLLOUT), 0});
        sooner(visit.patience);
      }
    }
    const int n = ::poll(polled.data(), static_cast<nfds_t>(polled.size()), until.left_ms());
    if (n < 0 && errno != EINTR) throw set_up_error(Code::internal, "poll failed: " + errno_text(errno));
    if (n <= 0) return;
    for (size_t i = 0; i < connecting.size(); ++i) {
      if (polled[connecting_at[i]].revents == 0) continue;
      try {
        settle(*connecting[i]);
      } catch (const Error& e) { throw e.within(fmt::format("rank {} at {}", connecting[i]->rank, tcp_text(connecting[i]->address))); }
    }
    if (polled[0].revents != 0) accept_all();
  }

  void accept_all() {
    for (size_t i = 0; i < kPendingMax; ++i) {
      Fd connection(::accept(listener_.fd(), nullptr, nullptr));
      if (!connection.valid()) return;  // none left, or the caller has gone already; a lack of descriptors ends with the deadline
      prepare_stream(connection, over_tcp(config_.transport) ? AF_INET : AF_UNIX);
      visits_.push_back(
          {std::move(connection), std::make_unique<Handshake>(config_, -1, &taken_), nullptr, Deadline::after(kCallerPatience)});
      const auto strangers = std::count_if(visits_.begin(), visits_.end(), [](const Visit& visit) { return !visit.pairing; });
      if (static_cast<size_t>(strangers) <= kPendingMax) continue;
      const auto oldest = std::find_if(visits_.begin(), visits_.end(), [](const Visit& visit) { return !visit.pairing; });
      turn_away(*oldest, set_up_error(Code::resource_exhausted, "too many callers at a time"));
      visits_.erase(oldest);
    }
  }

  [[noreturn]] void throw_deadline() const {
    std::vector<int> missing;
    for (int r = 0; r < config_.size; ++r)
      if (r != config_.rank && !links_[static_cast<size_t>(r)]) missing.push_back(r);
    std::string what = fmt::format("rank {} waited {:.2f} s for a link to rank{} {}", config_.rank, deadline_.waited_s(),
                                   missing.size() == 1 ? "" : "s", fmt::join(missing, ", "));
    if (turned_away_count_ > 0)
      what += fmt::format("; {} callers were turned away, the last: {}", turned_away_count_, fmt::join(turned_away_, "; "));
    throw set_up_error(Code::deadline_exceeded, what, "check that those ranks run and can reach this one");
  }

  const MeshConfig& config_;
  Listener& listener_;
  const Deadline& deadline_;
  std::vector<bool> taken_;
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<Call> calls_;
  std::deque<Visit> visits_;
  std::deque<std::string> turned_away_;
  size_t turned_away_count_ = 0;
};

}  // namespace

Transport transport_from_string(const std::string& text) {
  std::string choices;
  for (const auto& row : kTransports) {
    if (row.name == text) return row.transport;
    choices += (choices.empty() ? "" : ", ") + std::string(row.name);
  }
  throw Error(Code::invalid_argument, fmt::format("unknown transport \"{}\"", text.substr(0, 64)), {}, "choose one of: " + choices);
}

std::string_view to_string(Transport t) { return row(t).name; }

QueuePairKind queue_pair_from_string(const std::string& text) {
  if (text == "auto") return QueuePairKind::automatic;
  if (text == "rc") return QueuePairKind::rc;
  if (text == "uc") return QueuePairKind::uc;
  throw Error(Code::invalid_argument, fmt::format("unknown kind of queue pair \"{}\"", text.substr(0, 64)), {},
              "choose one of: auto, rc, uc");
}

uint64_t buffer_bytes_estimate(const MeshConfig& config) {
  // Each side maps both rings of a pair, or holds both buffers of its socket, or the slots of both directions.
  const uint64_t pair = config.transport == Transport::shm   ? 2 * (kRingBytes + 64 * 1024)
                        : config.transport == Transport::tcp ? 2 * kTcpBufferBytes
                                                             : std::max<uint64_t>(verbs_buffer_bytes(), 2 * kTcpBufferBytes);
  return static_cast<uint64_t>(config.size - 1) * pair;
}

std::unique_ptr<Listener> listen(const MeshConfig& config) {
  check(config);
  return std::make_unique<SocketListener>(config);
}

std::unique_ptr<Mesh> connect_mesh(const MeshConfig& config, Listener& listener, const std::vector<std::string>& endpoints,
                                   const Deadline& deadline) {
  check(config);
  if (endpoints.size() != static_cast<size_t>(config.size))
    throw set_up_error(Code::invalid_argument, fmt::format("{} endpoints for {} ranks", endpoints.size(), config.size));
  auto links = Connector(config, listener, endpoints, deadline).run();
  if (config.jitter_seed != 0)
    for (size_t r = 0; r < links.size(); ++r)
      if (links[r])
        links[r] = add_jitter(std::move(links[r]), config.jitter_seed * 1'000'003 + static_cast<uint64_t>(config.rank) * 1009 + r);
  Spin spin = spin_for_threads(ranks_on_host(config, endpoints) * std::max(1, config.threads));
  if (config.spin_us >= 0) spin.window = std::chrono::microseconds(config.spin_us);
  return std::make_unique<GroupMesh>(std::make_shared<Fabric>(config.rank, std::move(links), spin));
}

}  // namespace verbund::mesh
