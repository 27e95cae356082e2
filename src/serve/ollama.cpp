// Ollama's /api/chat and /api/generate: objects one a line, the last one with figures.
#include "serve/answer.h"
#include "serve/ollama_input.h"
#include "serve/openai_common.h"
#include "serve/routes.h"
#include "serve/times.h"

namespace verbund::serve {
namespace {

using Clock = std::chrono::steady_clock;

int64_t nanoseconds(double seconds) { return static_cast<int64_t>(seconds * 1e9); }

class OllamaWriter : public ReplyWriter {
 public:
  OllamaWriter(const ServedModel& model, const OllamaRequest& request)
      : model_(model.id), chat_(request.chat), show_context_(request.show_context && !request.chat), logprobs_(request.generate.logprobs) {}

  std::string content_type() const override { return "application/x-ndjson"; }
  std::string begin(const ReplyStart& start) override {
    prompt_ = start.first_prompt;
    return {};
  }

  std::string delta(const Delta& d) override {
    switch (d.kind) {
      case Delta::Kind::content: {
        if (d.text.empty()) return {};
        Json body = piece(d.text);
        if (logprobs_) body["logprobs"] = logprobs_json(d.logprobs);
        return line(body);
      }
      case Delta::Kind::reasoning: {
        Json body = piece("");
        (chat_ ? body["message"] : body)["thinking"] = d.text;
        return line(body);
      }
      case Delta::Kind::tool_begin: {
        std::string frames = flush_call();
        call_ = ToolCall{d.tool_id, d.tool_name, {}};
        return frames;
      }
      case Delta::Kind::tool_arguments: call_->arguments += d.text;
    }
    return {};
  }

  std::string finish(const ChoiceResult& r) override {
    result_ = r;
    return flush_call();
  }

  std::string end(const ReplyUsage& usage) override { return line(last(piece(""), usage)); }
  std::string failure(const ApiError& error) override { return line(error_body(error, Dialect::ollama, {})); }
  std::string keep_alive() override { return line(piece("")); }

  Json whole(const ReplyStart& start, const std::vector<ChoiceResult>& results, const ReplyUsage& usage) override {
    prompt_ = start.first_prompt;
    result_ = results.front();
    Json body = piece(result_.content);
    if (!result_.reasoning.empty()) (chat_ ? body["message"] : body)["thinking"] = result_.reasoning;
    for (const ToolCall& call : result_.tool_calls) body["message"]["tool_calls"].push_back(call_json(call));
    if (logprobs_) body["logprobs"] = logprobs_json(result_.logprobs);
    return last(std::move(body), usage);
  }

 private:
  static std::string line(const Json& body) { return json_text(body) + "\n"; }

  Json piece(const std::string& text) const {
    Json body{{"model", model_}, {"created_at", rfc3339_now()}};
    if (chat_)
      body["message"] = {{"role", "assistant"}, {"content", text}};
    else
      body["response"] = text;
    body["done"] = false;
    return body;
  }

  Json call_json(const ToolCall& call) {
    Json arguments = Json::parse(call.arguments, nullptr, false);
    return {{"id", call.id},
            {"function", {{"index", calls_++}, {"name", call.name}, {"arguments", arguments.is_object() ? arguments : Json::object()}}}};
  }

  // A call comes whole, one a line.
  std::string flush_call() {
    if (!call_) return {};
    Json body = piece("");
    body["message"]["tool_calls"] = Json::array({call_json(*call_)});
    call_.reset();
    return line(body);
  }

  Json last(Json body, const ReplyUsage& u) const {
    body["done"] = true;
    body["done_reason"] = result_.finish == Finish::length ? "length" : "stop";
    if (show_context_) {
      body["context"] = prompt_;
      for (const int32_t id : result_.tokens) body["context"].push_back(id);
    }
    const int64_t prompt_ns = nanoseconds(u.prefill_s), eval_ns = nanoseconds(u.decode_s);
    const int64_t all = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begun_).count();
    body["total_duration"] = std::max(all, prompt_ns + eval_ns);
    body["load_duration"] = 0;
    body["prompt_eval_count"] = u.prompt_tokens;
    body["prompt_eval_duration"] = prompt_ns;
    body["eval_count"] = u.output_tokens;
    body["eval_duration"] = eval_ns;
    return body;
  }

  std::string model_;
  bool chat_, show_context_;
  std::optional<uint32_t> logprobs_;
  std::vector<int32_t> prompt_;
  ChoiceResult result_;
  std::optional<ToolCall> call_;
  size_t calls_ = 0;
  Clock::time_point begun_ = Clock::now();
};

// Thrown out of translation: there is nothing to compute.
struct LoadOnly {
  bool chat;
};

Translated translate(const ServedModel& model, const HttpRequest& request, bool chat) {
  OllamaRequest o = read_ollama(model, parse_body(request.body), chat);
  if (o.load_only) throw LoadOnly{chat};
  auto writer = std::make_unique<OllamaWriter>(model, o);
  return {std::move(o.generate), std::move(writer)};
}

awaitable<void> run(Exchange& exchange, Service& service, bool chat) {
  bool loaded = false;
  try {
    co_await answer(exchange, service, [chat](const ServedModel& m, const HttpRequest& r) { return translate(m, r, chat); });
  } catch (const LoadOnly&) { loaded = true; }
  if (!loaded) co_return;
  Json body{{"model", service.model().id}, {"created_at", rfc3339_now()}};
  if (chat)
    body["message"] = {{"role", "assistant"}, {"content", ""}};
  else
    body["response"] = "";
  body["done"] = true;
  body["done_reason"] = "load";
  Response response = json_response(body);
  co_await exchange.send(std::move(response));
}

}  // namespace

void add_ollama_chat_routes(Router& router, Service& service) {
  router.add("POST", "/api/chat", Dialect::ollama, [&service](Exchange& e) -> awaitable<void> { co_await run(e, service, true); });
  router.add("POST", "/api/generate", Dialect::ollama, [&service](Exchange& e) -> awaitable<void> { co_await run(e, service, false); });
}

}  // namespace verbund::serve
