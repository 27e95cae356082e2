#include "serve/anthropic.h"

#include "serve/anthropic_messages.h"
#include "serve/off_thread.h"
#include "serve/prepare.h"
#include "serve/routes.h"

namespace verbund::serve {
namespace {

constexpr std::string_view kSignature = "verbund";  // clients want one back; nothing here depends on it

Json usage_of(const ReplyUsage& u) {
  return {{"input_tokens", u.prompt_tokens - u.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", u.cached_tokens},
          {"output_tokens", u.output_tokens}};
}

Json input_of(const std::string& arguments) {
  Json input = Json::parse(arguments, nullptr, false);
  return input.is_object() ? input : Json::object();
}

class MessageWriter : public ReplyWriter {
 public:
  MessageWriter(const ServedModel& model, const GenerateRequest& request, std::string request_id)
      : model_(model.id), context_(model.context), max_tokens_(request.max_tokens.value_or(0)), request_id_(std::move(request_id)) {}

  std::string begin(const ReplyStart& start) override {
    prompt_tokens_ = start.prompt_tokens;
    ReplyUsage usage;
    usage.prompt_tokens = start.prompt_tokens;
    Json message = head();
    message["content"] = Json::array();
    message["stop_reason"] = nullptr;
    message["stop_sequence"] = nullptr;
    message["usage"] = usage_of(usage);
    return event({{"type", "message_start"}, {"message", std::move(message)}}) + event({{"type", "ping"}});
  }

  std::string delta(const Delta& d) override {
    std::string frames;  // built in order: each piece depends on what is open
    switch (d.kind) {
      case Delta::Kind::content:
        if (d.text.empty()) return {};
        frames = open(Block::text, {{"type", "text"}, {"text", ""}});
        return frames += piece({{"type", "text_delta"}, {"text", d.text}});
      case Delta::Kind::reasoning:
        if (d.text.empty()) return {};
        frames = open(Block::thinking, {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
        return frames += piece({{"type", "thinking_delta"}, {"thinking", d.text}});
      case Delta::Kind::tool_begin:
        frames = close();
        return frames +=
               open(Block::tool, {{"type", "tool_use"}, {"id", tool_id(d.tool_id)}, {"name", d.tool_name}, {"input", Json::object()}});
      case Delta::Kind::tool_arguments: return piece({{"type", "input_json_delta"}, {"partial_json", d.text}});
    }
    return {};
  }

  std::string finish(const ChoiceResult& r) override {
    std::string frames;
    if (index_ == 0 && block_ == Block::none) frames += open(Block::text, {{"type", "text"}, {"text", ""}});  // an empty answer
    frames += close();
    stop_reason_ = reason_of(r);
    stop_string_ = r.stop_string;
    return frames;
  }

  std::string end(const ReplyUsage& usage) override {
    const Json delta{{"stop_reason", stop_reason_}, {"stop_sequence", sequence_of(stop_string_)}};
    return event({{"type", "message_delta"}, {"delta", delta}, {"usage", usage_of(usage)}}) + event({{"type", "message_stop"}});
  }

  std::string failure(const ApiError& error) override { return event(error_body(error, Dialect::anthropic, request_id_)); }
  std::string keep_alive() override { return event({{"type", "ping"}}); }

  Json whole(const ReplyStart& start, const std::vector<ChoiceResult>& results, const ReplyUsage& usage) override {
    prompt_tokens_ = start.prompt_tokens;
    const ChoiceResult& r = results.front();
    Json content = Json::array();
    if (!r.reasoning.empty()) content.push_back({{"type", "thinking"}, {"thinking", r.reasoning}, {"signature", kSignature}});
    if (!r.content.empty() || (r.tool_calls.empty() && r.reasoning.empty())) content.push_back({{"type", "text"}, {"text", r.content}});
    for (const ToolCall& call : r.tool_calls)
      content.push_back({{"type", "tool_use"}, {"id", tool_id(call.id)}, {"name", call.name}, {"input", input_of(call.arguments)}});
    Json message = head();
    message["content"] = std::move(content);
    message["stop_reason"] = reason_of(r);
    message["stop_sequence"] = sequence_of(r.stop_string);
    message["usage"] = usage_of(usage);
    return message;
  }

 private:
  enum class Block { none, text, thinking, tool };

  Json head() const { return {{"id", id_}, {"type", "message"}, {"role", "assistant"}, {"model", model_}}; }
  static std::string event(const Json& data) { return sse(data, data["type"].get<std::string>()); }
  static Json sequence_of(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

  // Ids of other dialects' form keep what makes them unique; families with ids of their own keep them whole.
  static std::string tool_id(const std::string& id) { return id.starts_with("call_") ? "toolu_" + id.substr(5) : id; }

  std::string_view reason_of(const ChoiceResult& r) const {
    if (r.finish == Finish::tool_calls) return "tool_use";
    if (r.finish == Finish::stop) return r.stop_string.empty() ? "end_turn" : "stop_sequence";
    const bool full = prompt_tokens_ + r.output_tokens >= context_ && r.output_tokens < max_tokens_;
    return full ? "model_context_window_exceeded" : "max_tokens";
  }

  std::string open(Block block, Json start) {
    if (block_ == block) return {};
    std::string frames = close();
    block_ = block;
    return frames + event({{"type", "content_block_start"}, {"index", index_}, {"content_block", std::move(start)}});
  }

  std::string close() {
    if (block_ == Block::none) return {};
    std::string frames;
    if (block_ == Block::thinking) frames += piece({{"type", "signature_delta"}, {"signature", kSignature}});
    block_ = Block::none;
    return frames + event({{"type", "content_block_stop"}, {"index", index_++}});
  }

  std::string piece(Json delta) const { return event({{"type", "content_block_delta"}, {"index", index_}, {"delta", std::move(delta)}}); }

  std::string id_ = random_id("msg_", 24), model_;
  uint64_t context_, max_tokens_, prompt_tokens_ = 0;
  std::string request_id_, stop_string_;
  std::string_view stop_reason_ = "end_turn";
  Block block_ = Block::none;
  size_t index_ = 0;
};

awaitable<void> count_tokens(Exchange& exchange, Service& service) {
  const HttpRequest& request = exchange.request();
  std::function<size_t()> work = [&service, &request] {
    const GenerateRequest r = read_anthropic(service.model(), parse_body(request.body), true);
    return encode(service.model(), r.prompts.front()).size();
  };
  const size_t tokens = co_await off_thread<size_t>(service.work(), exchange.executor(), std::move(work));
  Response response = json_response({{"input_tokens", tokens}});  // not inside co_await: GCC 12 trips over the list
  co_await exchange.send(std::move(response));
}

}  // namespace

Translated translate_anthropic(const ServedModel& model, const HttpRequest& request) {
  GenerateRequest r = read_anthropic(model, parse_body(request.body), false);
  auto writer = std::make_unique<MessageWriter>(model, r, request.id);
  return {std::move(r), std::move(writer)};
}

void add_anthropic_routes(Router& router, Service& service) {
  router.add("POST", "/v1/messages", Dialect::anthropic,
             [&service](Exchange& e) -> awaitable<void> { co_await answer(e, service, translate_anthropic); });
  router.add("POST", "/v1/messages/count_tokens", Dialect::anthropic,
             [&service](Exchange& e) -> awaitable<void> { co_await count_tokens(e, service); });
}

}  // namespace verbund::serve
