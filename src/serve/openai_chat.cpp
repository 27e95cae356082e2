#include "serve/openai_chat.h"

#include "serve/openai_common.h"
#include "serve/openai_messages.h"
#include "serve/routes.h"
#include "serve/structured.h"

namespace verbund::serve {
namespace {

Json chat_logprobs(const std::vector<TokenLogprobs>& tokens) { return {{"content", logprobs_json(tokens)}, {"refusal", nullptr}}; }

class ChatWriter : public ReplyWriter {
 public:
  ChatWriter(const ServedModel& model, const GenerateRequest& request, bool include_usage)
      : model_(model.id), fingerprint_(model.fingerprint), logprobs_(request.logprobs.has_value()), include_usage_(include_usage) {}

  std::string begin(const ReplyStart& start) override {
    std::string frames;
    for (size_t i = 0; i < start.choices; ++i) frames += chunk(i, {{"role", "assistant"}, {"content", ""}}, nullptr);
    return frames;
  }

  std::string delta(const Delta& d) override {
    switch (d.kind) {
      case Delta::Kind::content: return chunk(d.choice, {{"content", d.text}}, nullptr, &d.logprobs);
      case Delta::Kind::reasoning: return chunk(d.choice, {{"reasoning_content", d.text}}, nullptr);
      case Delta::Kind::tool_begin:
        return tool_chunk(
            d, {{"index", d.tool}, {"id", d.tool_id}, {"type", "function"}, {"function", {{"name", d.tool_name}, {"arguments", ""}}}});
      case Delta::Kind::tool_arguments: return tool_chunk(d, {{"index", d.tool}, {"function", {{"arguments", d.text}}}});
    }
    return {};
  }

  std::string finish(const ChoiceResult& r) override { return chunk(r.choice, Json::object(), finish_text(r.finish)); }

  std::string end(const ReplyUsage& usage) override {
    std::string frames;
    if (include_usage_) {
      Json last = head("chat.completion.chunk");
      last["choices"] = Json::array();
      last["usage"] = usage_json(usage);
      last["timings"] = timings_json(usage);
      frames = sse(last);
    }
    return frames + "data: [DONE]\n\n";
  }

  std::string failure(const ApiError& error) override { return sse(error_body(error, Dialect::openai, {})); }

  Json whole(const ReplyStart&, const std::vector<ChoiceResult>& results, const ReplyUsage& usage) override {
    Json body = head("chat.completion");
    body["choices"] = Json::array();
    for (const ChoiceResult& r : results) {
      Json choice{{"index", r.choice}, {"message", message(r)}};
      choice["logprobs"] = logprobs_ ? chat_logprobs(r.logprobs) : Json(nullptr);
      choice["finish_reason"] = finish_text(r.finish);
      body["choices"].push_back(std::move(choice));
    }
    body["usage"] = usage_json(usage);
    body["timings"] = timings_json(usage);
    return body;
  }

 private:
  Json head(std::string_view object) const {
    Json body{{"id", id_}, {"object", object}, {"created", created_}, {"model", model_}};
    if (!fingerprint_.empty()) body["system_fingerprint"] = fingerprint_;
    return body;
  }

  static Json message(const ChoiceResult& r) {
    Json m{{"role", "assistant"}};
    m["content"] = r.content.empty() && !r.tool_calls.empty() ? Json(nullptr) : Json(r.content);
    m["refusal"] = nullptr;
    if (!r.reasoning.empty()) m["reasoning_content"] = r.reasoning;
    if (r.tool_calls.empty()) return m;
    m["tool_calls"] = Json::array();
    for (const ToolCall& call : r.tool_calls)
      m["tool_calls"].push_back(
          {{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
    return m;
  }

  std::string tool_chunk(const Delta& d, Json call) { return chunk(d.choice, {{"tool_calls", Json::array({std::move(call)})}}, nullptr); }

  std::string chunk(size_t index, Json delta, Json finish_reason, const std::vector<TokenLogprobs>* logprobs = nullptr) {
    Json choice{{"index", index}, {"delta", std::move(delta)}};
    choice["logprobs"] = logprobs_ && logprobs && !logprobs->empty() ? chat_logprobs(*logprobs) : Json(nullptr);
    choice["finish_reason"] = std::move(finish_reason);
    Json body = head("chat.completion.chunk");
    body["choices"] = Json::array({std::move(choice)});
    if (include_usage_) body["usage"] = nullptr;
    return sse(body);
  }

  std::string id_ = random_id("chatcmpl-", 24), model_, fingerprint_;
  int64_t created_ = unix_seconds();
  bool logprobs_, include_usage_;
};

void read_logprobs(Fields& body, GenerateRequest& r) {
  const bool wanted = body.flag("logprobs", false);
  const auto top = body.integer("top_logprobs", 0, 20);
  if (top && !wanted) refuse("top_logprobs", "needs logprobs: true");
  if (wanted) r.logprobs = static_cast<uint32_t>(top.value_or(0));
}

void read_limit(Fields& body, GenerateRequest& r) {
  const auto completion = body.integer("max_completion_tokens", 0, INT32_MAX), tokens = body.integer("max_tokens", 0, INT32_MAX);
  if (const auto limit = completion ? completion : tokens) r.max_tokens = static_cast<uint32_t>(*limit);
}

void read_modalities(Fields& body) {
  const Json* modalities = body.array("modalities");
  if (!modalities) return;
  for (const std::string& m : texts(*modalities, "modalities"))
    if (m != "text")
      throw ApiError(Fault::unsupported, "modalities: " + brief(m) + " is not supported; this model answers in text", "modalities");
}

}  // namespace

Translated translate_chat(const ServedModel& model, const HttpRequest& request) {
  const Json json = parse_body(request.body);
  Fields body(json);
  GenerateRequest r;
  ChatPrompt chat;
  read_messages(body, chat);
  read_common(body, model, r);
  read_limit(body, r);
  read_logprobs(body, r);
  read_tools(body, chat, r);
  read_response_format(body, r);
  read_modalities(body);
  const bool include_usage = read_include_usage(body, r.stream);
  body.not_offered({"audio", "web_search_options", "moderation"});
  body.accept({"verbosity", "prediction"});
  if (r.tool_use == ToolUse::required || r.tool_use == ToolUse::named) {
    if (r.grammar)
      throw ApiError(Fault::unsupported, "response_format together with a tool_choice that forces a call is not supported",
                     "response_format");
    force_call(chat.tools, r);
  }
  r.ignored = body.unknown();
  r.prompts.emplace_back(std::move(chat));
  auto writer = std::make_unique<ChatWriter>(model, r, include_usage);
  return {std::move(r), std::move(writer)};
}

void add_chat_route(Router& router, Service& service) {
  router.add("POST", "/v1/chat/completions", Dialect::openai,
             [&service](Exchange& e) -> awaitable<void> { co_await answer(e, service, translate_chat); });
}

}  // namespace verbund::serve
