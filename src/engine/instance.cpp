#include "engine/instance.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#ifdef __linux__
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

#include "engine/request_json.h"

namespace verbund::engine {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kSendWait = 1s;  // a runner's control thread reads all the time
constexpr auto kPlanWait = 60s;
constexpr auto kStopGrace = 3s;       // reports, then exit
constexpr auto kAbortGrace = 1500ms;  // more than a runner's own grace
constexpr auto kCauseWait = 300ms;    // after a peer's complaint: does a process turn out to be dead?
constexpr int kRunnerFd = 3;

std::string random_secret() {
  std::string secret;
  for (int i = 0; i < 4; ++i) {
    const uint64_t r = random_u64();
    for (int k = 0; k < 8; ++k) secret += "0123456789abcdef"[(r >> (4 * k)) & 15];
  }
  return secret;
}

// After fork, so only async-signal-safe calls: an owner that serves many clients has thousands of descriptors open.
void close_from(int first) {
#if defined(__linux__) && defined(SYS_close_range)
  if (::syscall(SYS_close_range, static_cast<unsigned>(first), ~0u, 0u) == 0) return;
#endif
  const long open_max = std::min<long>(::sysconf(_SC_OPEN_MAX), 65536);
  for (int fd = first; fd < open_max; ++fd) ::close(fd);
}

}  // namespace

struct Instance::Runner {
  RankReport report;
  std::unique_ptr<FrameChannel> channel;
  std::string endpoint;
  Clock::time_point heard;
  uint64_t loaded = 0;
  bool spoken = false, planned = false, ready = false, reported = false, exited = false, closed = false, silent = false;
  int status = 0;
  std::optional<Error> error;
  bool alive() const { return report.pid > 0 && !exited; }
  std::chrono::milliseconds patience() const { return spoken ? kDead : kFirstWord; }
};

Instance::Instance(InstanceConfig config) : config_(std::move(config)) {
  config_.runner.secret = random_secret();
  int pair[2];
  if (::pipe(pair) != 0) throw Error(Code::resource_exhausted, "cannot make a pipe: " + errno_text(errno));
  wake_read_ = Fd(pair[0]), wake_write_ = Fd(pair[1]);
  for (const int fd : pair) set_nonblocking(fd), set_cloexec(fd);
}

Instance::~Instance() { end_all(0ms, "abort"); }

std::string Instance::name(const Runner& r) const {
  return "rank " + std::to_string(r.report.rank) + " (process " + std::to_string(r.report.pid) + ")";
}

void Instance::spawn(size_t rank) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
    throw Error(Code::resource_exhausted, "cannot make a socket pair: " + errno_text(errno));
  Fd mine(pair[0]), theirs(pair[1]);
  set_cloexec(mine.get());

  const std::string fd_text = std::to_string(kRunnerFd);
  std::vector<std::string> words{config_.program, "runner", "--fd", fd_text};
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);

  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw Error(Code::resource_exhausted, "cannot start a process: " + errno_text(errno));
  if (pid == 0) {  // only async-signal-safe calls from here on
#ifdef __linux__
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
#else
    (void)parent;
#endif
    if (theirs.get() == kRunnerFd)
      ::fcntl(kRunnerFd, F_SETFD, 0);
    else
      ::dup2(theirs.get(), kRunnerFd);
    close_from(kRunnerFd + 1);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  auto runner = std::make_unique<Runner>();
  runner->report.rank = rank;
  runner->report.pid = pid;
  runner->heard = Clock::now();
  runner->channel = std::make_unique<FrameChannel>(std::move(mine), "rank " + std::to_string(rank));
  runners_.push_back(std::move(runner));
}

void Instance::plan() {
  ::signal(SIGPIPE, SIG_IGN);
  for (size_t rank = 0; rank < config_.runner.parallel.ranks; ++rank) spawn(rank);
  ask_for_plans();
}

void Instance::replan(const std::function<void(RunnerConfig&)>& change) {
  change(config_.runner);
  ask_for_plans();
}

void Instance::ask_for_plans() {
  for (auto& r : runners_) {
    RunnerConfig c = config_.runner;
    c.rank = r->report.rank;
    r->planned = false;
    r->channel->send({{"op", "plan"}, {"config", to_json(c)}}, Deadline::after(kSendWait));
  }
  const Deadline deadline = Deadline::after(kPlanWait);
  while (!std::all_of(runners_.begin(), runners_.end(), [](const auto& r) { return r->planned; })) {
    if (deadline.expired()) throw Error({Code::deadline_exceeded, Lost::instance, "the runners did not come up in 60 s", {}, {}});
    turn(100ms);
  }
}

void Instance::load(const Progress& progress, const std::function<bool()>& interrupted) {
  nlohmann::json endpoints = nlohmann::json::array();
  for (const auto& r : runners_) endpoints.push_back(r->endpoint);
  send_all({{"op", "commit"}, {"endpoints", endpoints}});

  const Deadline deadline = Deadline::after(config_.runner.load_wait);
  while (!std::all_of(runners_.begin(), runners_.end(), [](const auto& r) { return r->ready; })) {
    if (deadline.expired()) throw Error({Code::deadline_exceeded, Lost::instance, "the model was not loaded in time", {}, {}});
    if (interrupted && interrupted()) throw Error({Code::cancelled, Lost::instance, "interrupted while loading", {}, {}});
    turn(50ms);
    uint64_t done = 0, total = 0;
    for (const auto& r : runners_) done += r->loaded, total += r->report.planned.weights;
    if (progress) progress(done, total);
  }
}

void Instance::submit(const Request& request, bool hash_logits) {
  runners_.front()->channel->send({{"op", "submit"}, {"request", to_json(request)}, {"hash_logits", hash_logits}},
                                  Deadline::after(kSendWait));
}

void Instance::cancel(uint64_t request) {
  runners_.front()->channel->send({{"op", "cancel"}, {"id", request}}, Deadline::after(kSendWait));
}

std::vector<InstanceEvent> Instance::poll(std::chrono::milliseconds wait) {
  const Deadline deadline = Deadline::after(wait);
  do turn(std::min(wait, std::chrono::milliseconds(deadline.left_ms())));
  while (events_.empty() && !std::exchange(woken_, false) && !deadline.expired());
  return std::exchange(events_, {});
}

void Instance::wake() {
  const char byte = 0;
  [[maybe_unused]] const ssize_t n = ::write(wake_write_.get(), &byte, 1);  // a full pipe wakes as well
}

void Instance::turn(std::chrono::milliseconds wait) {
  const auto now = Clock::now();
  // If we ourselves were stopped for a while (Ctrl-Z, a debugger), the runners were not silent: we were deaf.
  if (last_turn_ != Clock::time_point{} && now - last_turn_ > 2 * kHeartbeat)
    for (auto& r : runners_) r->heard += now - last_turn_;
  heartbeat();

  std::vector<pollfd> fds;
  for (const auto& r : runners_) fds.push_back({r->closed ? -1 : r->channel->fd(), POLLIN, 0});
  fds.push_back({wake_read_.get(), POLLIN, 0});
  ::poll(fds.data(), fds.size(), static_cast<int>(std::min<int64_t>(wait.count(), kHeartbeat.count())));
  last_turn_ = Clock::now();
  for (size_t i = 0; i < runners_.size(); ++i)
    if (fds[i].revents != 0) read_from(*runners_[i]);
  if (fds.back().revents != 0) {
    char bytes[256];
    while (::read(wake_read_.get(), bytes, sizeof bytes) > 0) {}
    woken_ = true;
  }
  reap();
  if (failed_ && !stopping_) fail();
}

void Instance::heartbeat() {
  const auto now = Clock::now();
  for (auto& r : runners_)
    if (r->alive() && now - r->heard > r->patience() && !stopping_) r->silent = true, failed_ = true;
  if (now - last_ping_ < kHeartbeat) return;
  last_ping_ = now;
  send_all({{"op", "ping"}, {"n", ++pings_}});
}

void Instance::send_all(const nlohmann::json& message) {
  for (auto& r : runners_) {
    if (!r->alive() || r->closed) continue;
    try {
      // A stopped process does not read: its socket fills only after thousands of pings, so this does not block.
      r->channel->send(message, Deadline::after(kSendWait));
    } catch (const Error&) {
      r->closed = true;
      if (!stopping_) failed_ = true;
    }
  }
}

void Instance::read_from(Runner& r) {
  try {
    while (auto message = r.channel->poll()) {
      r.heard = Clock::now();
      r.spoken = true;
      handle(r, *message);
    }
  } catch (const Error& e) {
    r.closed = true;
    if (!r.error && e.code() != Code::unavailable) r.error = e;
    if (!r.reported) failed_ = true;
  }
}

void Instance::handle(Runner& r, const nlohmann::json& m) {
  const std::string op = m.value("op", std::string());
  if (op == "planned") {
    r.report.planned = memory_plan_from_json(m.at("memory"));
    r.report.backend = m.value("backend", std::string());
    r.endpoint = m.value("endpoint", std::string());
    r.planned = true;
  } else if (op == "progress") {
    r.loaded = m.value("bytes", uint64_t(0));
  } else if (op == "ready") {
    r.report.weight_bytes = m.value("weight_bytes", uint64_t(0));
    r.report.kv_bytes = m.value("kv_bytes", uint64_t(0));
    r.report.links = m.value("links", nlohmann::json::array());
    r.loaded = r.report.planned.weights;
    r.ready = true;
  } else if (op == "events") {
    for (const auto& e : m.at("events")) {
      InstanceEvent event;
      event.request = e.value("id", uint64_t(0));
      if (e.contains("token")) event.token = e.at("token").get<int32_t>();
      event.text = e.value("text", std::string());
      if (e.contains("logprobs")) {
        Logprobs& logprobs = event.logprobs.emplace();
        e.at("logprobs").at(0).get_to(logprobs.chosen);
        for (const auto& t : e.at("logprobs").at(1)) logprobs.top.push_back({t.at(0).get<int32_t>(), t.at(1).get<float>()});
      }
      if (e.contains("finish")) event.finish = e.at("finish").get<std::string>();
      if (e.contains("error")) event.error = error_from_json(e.at("error")), event.finish = "error";
      event.figures = e.value("figures", nlohmann::json::object());
      events_.push_back(std::move(event));
    }
  } else if (op == "stats") {
    const auto number = [&](const char* key) { return m.value(key, uint64_t(0)); };
    stats_ = {number("waiting"), number("running"),  number("steps"),  number("rows"),        number("preemptions"),
              number("drafted"), number("accepted"), number("blocks"), number("blocks_used"), Clock::now()};
  } else if (op == "error") {
    r.error = error_from_json(m.value("error", nlohmann::json::object()));
    failed_ = true;
  } else if (op == "report") {
    r.report.peak_rss_bytes = m.value("peak_rss_bytes", uint64_t(0));
    r.report.links = m.value("links", r.report.links);
    r.report.trace = m.value("trace", nlohmann::json::array());
    r.reported = true;
  }
}

void Instance::reap() {
  for (auto& r : runners_) {
    if (!r->alive()) continue;
    if (::waitpid(r->report.pid, &r->status, WNOHANG) != r->report.pid) continue;
    read_from(*r);  // its last words
    r->exited = true;
    if (!r->reported) failed_ = true;
  }
}

// Survivors complain about the rank that died; the cause is the one that is dead, silent, or complains about itself.
void Instance::fail() {
  stopping_ = true;
  const Deadline deadline = Deadline::after(kCauseWait);
  const auto lost = [](const auto& r) { return r->silent || (r->exited && WIFSIGNALED(r->status)); };
  const auto own_error = [](const auto& r) { return r->error && r->error->lost() != Lost::peer && r->error->code() != Code::cancelled; };
  while (!deadline.expired() && std::none_of(runners_.begin(), runners_.end(), [&](const auto& r) { return lost(r) || own_error(r); }))
    turn(20ms);

  Error cause({Code::internal, Lost::instance, "a runner ended without a word", {}, {}});
  const auto pick = [&](auto&& matches, auto&& make) {
    for (const auto& r : runners_)
      if (matches(r)) return cause = make(*r), true;
    return false;
  };
  pick(lost,
       [&](const Runner& r) {
         const std::string what =
             r.silent ? name(r) + " gave no sign of life for " + std::to_string(r.patience().count() / 1000) + " s"
                      : name(r) + " was ended by signal " + std::to_string(WTERMSIG(r.status)) + " (" + strsignal(WTERMSIG(r.status)) + ")";
         return Error({Code::unavailable, Lost::instance, what, {}, "the instance has been ended; start it again"});
       }) ||
      pick(own_error, [](const Runner& r) { return *r.error; }) ||
      pick([](const auto& r) { return r->error.has_value(); }, [](const Runner& r) { return *r.error; }) ||
      pick([](const auto& r) { return r->exited; },
           [&](const Runner& r) {
             return Error(
                 {Code::internal, Lost::instance, name(r) + " ended with exit code " + std::to_string(WEXITSTATUS(r.status)), {}, {}});
           });
  end_all(kAbortGrace, "abort");
  throw cause;
}

void Instance::stop() {
  stopping_ = true;
  send_all({{"op", "stop"}});
  end_all(kStopGrace, nullptr);
}

// Waits for the runners to end on their own, then kills what is left (a stopped process too), and reaps all.
void Instance::end_all(std::chrono::milliseconds grace, const char* op) {
  stopping_ = true;
  if (op) send_all({{"op", op}, {"reason", "the instance is being ended"}});
  const auto any_alive = [&] {
    return std::any_of(runners_.begin(), runners_.end(), [](const auto& r) { return r->alive() && !r->silent; });
  };
  const Deadline deadline = Deadline::after(grace);
  while (any_alive() && !deadline.expired()) turn(20ms);
  for (auto& r : runners_) {
    if (!r->alive()) continue;
    ::kill(r->report.pid, SIGKILL);
    ::waitpid(r->report.pid, &r->status, 0);
    r->exited = true;
  }
}

std::vector<RankReport> Instance::reports() const {
  std::vector<RankReport> all;
  for (const auto& r : runners_) all.push_back(r->report);
  return all;
}

}  // namespace verbund::engine
