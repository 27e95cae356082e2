#include "serve/answer.h"

#include <charconv>

#include "base/unix.h"
#include "serve/choice_reader.h"
#include "serve/off_thread.h"
#include "serve/prepare.h"

namespace verbund::serve {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kTick = 250ms;            // how soon a client that went is noticed
constexpr auto kHeadersAfter = 1s;       // of silence; until then a failure still has its status
constexpr auto kKeepAliveEvery = 5s;     // of silence
constexpr auto kQueueWait = 300s;        // until the first token or at least some progress
constexpr size_t kBacklogMax = 1 << 20;  // bytes that a slow client may leave unread here

struct Job {
  GenerateRequest request;
  std::unique_ptr<ReplyWriter> writer;
  Prepared prepared;
};

// Everything of one request while it runs.
class Answering {
 public:
  Answering(Exchange& exchange, Service& service, Job job) : exchange_(exchange), service_(service), job_(std::move(job)) {
    for (uint32_t i = 0; i < job_.prepared.choices.size(); ++i)
      readers_.emplace_back(service.model(), job_.request, i, job_.prepared.prompts[i / job_.request.n]);
  }

  awaitable<void> run() {
    deadline_ = client_deadline();
    generation_ = service_.generations().start(std::move(job_.prepared.choices), job_.request.n);
    if (job_.request.stream)
      co_await stream();
    else
      co_await whole();
  }

 private:
  awaitable<void> whole() {
    while (open_ > 0) {
      const std::vector<ChoiceEvent> events = co_await next();
      for (const ChoiceEvent& e : events) read(e);
    }
    co_await exchange_.send(with_headers(json_response(job_.writer->whole(job_.prepared.start, results(), usage()))));
  }

  awaitable<void> stream() {
    ApiError failure(Fault::internal, {});
    bool failed = false;
    try {
      co_await stream_events();
    } catch (const ApiError& e) {
      if (!exchange_.begun()) throw;
      failure = e;
      failed = true;
    }
    if (failed) co_await exchange_.write(job_.writer->failure(failure));
    co_await exchange_.end_stream();
  }

  awaitable<void> stream_events() {
    Clock::time_point spoke = begun_;
    while (open_ > 0) {
      const std::vector<ChoiceEvent> events = co_await next();
      const auto now = Clock::now();
      std::string frames;
      if (!exchange_.begun()) {
        if (events.empty() && now - begun_ < kHeadersAfter) continue;
        for (const ChoiceEvent& e : events)
          if (e.engine.error) throw fault_of(*e.engine.error);  // still with its own status
        Headers headers = ignored_header();
        co_await exchange_.begin_stream(job_.writer->content_type(), std::move(headers));
        frames = job_.writer->begin(job_.prepared.start);
      }
      for (const ChoiceEvent& e : events) frames += read(e);
      if (frames.empty() && now - spoke >= kKeepAliveEvery) frames = job_.writer->keep_alive();
      if (frames.empty()) continue;
      spoke = now;
      co_await exchange_.write(std::move(frames));
    }
    co_await exchange_.write(job_.writer->end(usage()));
  }

  // The next events, or none after a tick. Throws what ends the request.
  awaitable<std::vector<ChoiceEvent>> next() {
    co_await generation_->wait(kTick);
    if (exchange_.client_gone()) throw ClientGone();
    if (generation_->pending_bytes() > kBacklogMax) throw ClientGone();
    std::vector<ChoiceEvent> events = generation_->take();
    const auto now = Clock::now();
    if (!events.empty()) heard_ = true;
    if (events.empty() && generation_->failed()) throw *generation_->failed();
    if (now >= deadline_) throw ApiError(Fault::deadline, "the time that x-request-timeout allows is over");
    if (!heard_ && now - begun_ > kQueueWait) {
      ApiError error(Fault::overloaded, "the request has waited in the queue for too long");
      error.retry_after_s = 10;
      throw error;
    }
    co_return events;
  }

  std::string read(const ChoiceEvent& event) {
    ChoiceReader& reader = readers_[event.choice];
    if (reader.finished()) return {};
    if (event.engine.error) throw fault_of(*event.engine.error);
    std::string frames;
    const std::vector<Delta> deltas = reader.push(event.engine);
    if (job_.request.stream)
      for (const Delta& delta : deltas) frames += job_.writer->delta(delta);
    if (reader.finished()) {
      if (event.engine.finish == "cancelled" || event.engine.finish == "error")
        throw ApiError(Fault::internal, "the engine has ended the request");
      if (job_.request.stream) frames += job_.writer->finish(reader.result());
      if (reader.ended_early()) generation_->cancel(event.choice);
      --open_;
    }
    return frames;
  }

  ApiError fault_of(const Error& error) const {
    ApiError fault = api_error(error);
    if (fault.fault == Fault::invalid && job_.request.grammar) {
      fault.param = job_.request.grammar_field;
      fault.message = fault.param + ": " + fault.message;
    }
    return fault;
  }

  std::vector<ChoiceResult> results() const {
    std::vector<ChoiceResult> all;
    for (const ChoiceReader& reader : readers_) all.push_back(reader.result());
    return all;
  }

  // The prompt counts once however many choices share it.
  ReplyUsage usage() const {
    ReplyUsage u;
    u.prompt_tokens = job_.prepared.start.prompt_tokens;
    for (size_t i = 0; i < readers_.size(); ++i) {
      const nlohmann::json& figures = readers_[i].figures();
      u.output_tokens += readers_[i].result().output_tokens;
      u.reasoning_tokens += readers_[i].result().reasoning_tokens;
      u.decode_s = std::max(u.decode_s, figures.value("decode_s", 0.0));
      if (i % job_.request.n != 0) continue;
      u.cached_tokens += figures.value("cached_tokens", uint64_t(0));
      u.prefill_s = std::max(u.prefill_s, figures.value("prefill_s", 0.0));
    }
    return u;
  }

  Headers ignored_header() const {
    Headers headers;
    std::string names;
    for (const std::string& name : job_.request.ignored) {
      bool plain = !name.empty() && name.size() <= 64;
      for (const char c : name) plain &= c > 0x20 && c < 0x7f && c != ',';
      if (plain && names.size() < 1024) names += (names.empty() ? "" : ", ") + name;
    }
    if (!names.empty()) headers.emplace_back("x-verbund-ignored", names);
    return headers;
  }

  Response with_headers(Response response) const {
    for (auto& header : ignored_header()) response.headers.push_back(std::move(header));
    return response;
  }

  Clock::time_point client_deadline() const {
    const std::string_view text = exchange_.request().header("x-request-timeout");
    double seconds = 0;
    const auto [rest, problem] = std::from_chars(text.data(), text.data() + text.size(), seconds);
    if (text.empty()) return Clock::time_point::max();
    if (problem != std::errc() || rest != text.data() + text.size() || !(seconds > 0 && seconds < 1e6))
      throw ApiError(Fault::invalid, "the header x-request-timeout must be a number of seconds above 0", "x-request-timeout");
    return Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  }

  Exchange& exchange_;
  Service& service_;
  Job job_;
  std::vector<ChoiceReader> readers_;
  size_t open_ = job_.prepared.choices.size();  // choices that have not ended
  std::shared_ptr<Generation> generation_;
  Clock::time_point begun_ = Clock::now(), deadline_ = Clock::time_point::max();
  bool heard_ = false;
};

}  // namespace

awaitable<void> answer(Exchange& exchange, Service& service, Translate translate) {
  if (auto error = not_ready(service.host())) throw *error;
  const HttpRequest& request = exchange.request();
  std::function<Job()> work = [&service, &request, translate] {
    Job job;
    Translated translated = translate(service.model(), request);
    job.request = std::move(translated.request);
    job.writer = std::move(translated.writer);
    job.prepared = prepare(service.model(), job.request);
    return job;
  };
  Job job = co_await off_thread<Job>(service.work(), exchange.executor(), std::move(work));
  Answering answering(exchange, service, std::move(job));
  co_await answering.run();
}

}  // namespace verbund::serve
