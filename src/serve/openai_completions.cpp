#include "serve/openai_completions.h"

#include "serve/openai_common.h"
#include "serve/routes.h"
#include "serve/structured.h"

namespace verbund::serve {
namespace {

constexpr uint32_t kMaxTokensDefault = 16;
constexpr size_t kPromptsMax = 256;

size_t code_points(std::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  return count;
}

// A part of a character as evaluation harnesses expect it: bytes:\xe2\x80.
std::string shown(const TokenInfo& token) {
  if (token.text == token.bytes) return token.text;
  std::string out = "bytes:";
  for (const char c : token.bytes) {
    char hex[8];
    std::snprintf(hex, sizeof hex, "\\x%02x", static_cast<unsigned char>(c));
    out += hex;
  }
  return out;
}

class CompletionWriter : public ReplyWriter {
 public:
  CompletionWriter(const ServedModel& model, const GenerateRequest& request, bool include_usage)
      : model_(model.id), fingerprint_(model.fingerprint), n_(request.n), logprobs_(request.logprobs), include_usage_(include_usage) {}

  std::string begin(const ReplyStart& start) override {
    std::string frames;
    offsets_.resize(start.choices);
    for (size_t i = 0; i < start.choices && !start.prompt_texts.empty(); ++i) {
      const std::string& text = start.prompt_texts[i / n_];
      frames += chunk(i, text, nullptr, {});
      offsets_[i] = code_points(text);
    }
    return frames;
  }

  std::string delta(const Delta& d) override {
    Json logprobs = nullptr;
    if (logprobs_ && !d.logprobs.empty()) {
      logprobs = empty_logprobs();
      for (const TokenLogprobs& t : d.logprobs) add(logprobs, t, offsets_[d.choice]);
    }
    return chunk(d.choice, d.text, nullptr, std::move(logprobs));
  }

  std::string finish(const ChoiceResult& r) override { return chunk(r.choice, "", finish_text(r.finish), nullptr); }

  std::string end(const ReplyUsage& usage) override {
    std::string frames;
    if (include_usage_) {
      Json last = head();
      last["choices"] = Json::array();
      last["usage"] = usage_json(usage);
      frames = sse(last);
    }
    return frames + "data: [DONE]\n\n";
  }

  std::string failure(const ApiError& error) override { return sse(error_body(error, Dialect::openai, {})); }

  Json whole(const ReplyStart& start, const std::vector<ChoiceResult>& results, const ReplyUsage& usage) override {
    Json body = head();
    body["choices"] = Json::array();
    for (const ChoiceResult& r : results) {
      const std::string before = start.prompt_texts.empty() ? "" : start.prompt_texts[r.choice / n_];
      Json logprobs = nullptr;
      if (logprobs_) {
        logprobs = empty_logprobs();
        size_t offset = 0;
        for (size_t i = 0; i < r.prompt_logprobs.size(); ++i) add(logprobs, r.prompt_logprobs[i], offset, i == 0);
        offset = code_points(before);
        for (const TokenLogprobs& t : r.logprobs) add(logprobs, t, offset);
      }
      body["choices"].push_back(
          {{"text", before + r.content}, {"index", r.choice}, {"logprobs", std::move(logprobs)}, {"finish_reason", finish_text(r.finish)}});
    }
    body["usage"] = usage_json(usage);
    return body;
  }

 private:
  static Json empty_logprobs() {
    return {{"tokens", Json::array()}, {"token_logprobs", Json::array()}, {"top_logprobs", Json::array()}, {"text_offset", Json::array()}};
  }

  // The chosen token is always among the best that are listed. The first token of a prompt follows nothing: it has no figures.
  void add(Json& logprobs, const TokenLogprobs& t, size_t& offset, bool first = false) const {
    const std::string text = shown(t.chosen);
    logprobs["tokens"].push_back(text);
    logprobs["token_logprobs"].push_back(first ? Json(nullptr) : Json(t.chosen.logprob));
    Json top = Json::object();
    for (const TokenInfo& other : t.top) top[shown(other)] = other.logprob;
    top[text] = t.chosen.logprob;
    logprobs["top_logprobs"].push_back(first ? Json(nullptr) : std::move(top));
    logprobs["text_offset"].push_back(offset);
    offset += code_points(t.chosen.bytes);
  }

  Json head() const {
    Json body{{"id", id_}, {"object", "text_completion"}, {"created", created_}, {"model", model_}};
    if (!fingerprint_.empty()) body["system_fingerprint"] = fingerprint_;
    return body;
  }

  std::string chunk(size_t index, const std::string& text, Json finish_reason, Json logprobs) {
    Json body = head();
    body["choices"] =
        Json::array({{{"text", text}, {"index", index}, {"logprobs", std::move(logprobs)}, {"finish_reason", std::move(finish_reason)}}});
    if (include_usage_) body["usage"] = nullptr;
    return sse(body);
  }

  std::string id_ = random_id("cmpl-", 24), model_, fingerprint_;
  int64_t created_ = unix_seconds();
  uint32_t n_;
  std::optional<uint32_t> logprobs_;
  bool include_usage_;
  std::vector<size_t> offsets_;  // code points of each choice that are out
};

bool is_ids(const Json& value) { return value.is_array() && !value.empty() && value[0].is_number(); }

std::vector<int32_t> ids_of(const Json& array, const std::string& path) {
  std::vector<int32_t> ids;
  ids.reserve(array.size());
  for (size_t i = 0; i < array.size(); ++i) {
    const Json& v = array[i];
    if (!v.is_number_integer() || v.get<int64_t>() < 0 || v.get<int64_t>() > INT32_MAX)
      refuse(path + "[" + std::to_string(i) + "]", "must be a token id, got " + brief(v));
    ids.push_back(v.get<int32_t>());
  }
  return ids;
}

void read_prompt(Fields& body, GenerateRequest& r) {
  const Json* prompt = body.any("prompt");
  if (!prompt) return void(r.prompts.emplace_back(std::string()));
  if (prompt->is_string()) return void(r.prompts.emplace_back(prompt->get<std::string>()));
  if (!prompt->is_array() || prompt->empty())
    refuse("prompt", "must be a string, strings, token ids or arrays of them, got " + brief(*prompt));
  if (is_ids(*prompt)) return void(r.prompts.emplace_back(ids_of(*prompt, "prompt")));
  if (prompt->size() > kPromptsMax) refuse("prompt", "has " + std::to_string(prompt->size()) + " prompts, at most 256 are allowed");
  for (size_t i = 0; i < prompt->size(); ++i) {
    const Json& one = (*prompt)[i];
    const std::string path = "prompt[" + std::to_string(i) + "]";
    if (one.is_string())
      r.prompts.emplace_back(one.get<std::string>());
    else if (is_ids(one))
      r.prompts.emplace_back(ids_of(one, path));
    else
      refuse(path, "must be a string or an array of token ids, got " + brief(one));
  }
}

void read_logprobs(Fields& body, GenerateRequest& r) {
  const Json* value = body.any("logprobs");
  if (!value) return;
  if (value->is_boolean()) {
    if (value->get<bool>()) r.logprobs = 1;
  } else {
    r.logprobs = static_cast<uint32_t>(*body.integer("logprobs", 0, 20));
  }
}

}  // namespace

Translated translate_completions(const ServedModel& model, const HttpRequest& request) {
  const Json json = parse_body(request.body);
  Fields body(json);
  GenerateRequest r;
  read_prompt(body, r);
  read_common(body, model, r);
  r.max_tokens = static_cast<uint32_t>(body.integer("max_tokens", 0, INT32_MAX).value_or(kMaxTokensDefault));
  read_logprobs(body, r);
  r.echo = body.flag("echo", false);
  read_response_format(body, r);
  if (const auto best_of = body.integer("best_of", 1, 16); best_of && *best_of != 1 && *best_of != r.n)
    throw ApiError(Fault::unsupported, "best_of must be 1 or equal to n", "best_of");
  const bool include_usage = read_include_usage(body, r.stream);
  body.not_offered({"suffix"});
  if (r.echo && r.logprobs && r.stream)
    throw ApiError(Fault::unsupported, "echo with logprobs is not supported for streams; set stream to false", "echo");
  r.ignored = body.unknown();
  auto writer = std::make_unique<CompletionWriter>(model, r, include_usage);
  return {std::move(r), std::move(writer)};
}

void add_completions_route(Router& router, Service& service) {
  router.add("POST", "/v1/completions", Dialect::openai,
             [&service](Exchange& e) -> awaitable<void> { co_await answer(e, service, translate_completions); });
}

}  // namespace verbund::serve
