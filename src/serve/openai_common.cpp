#include "serve/openai_common.h"

#include <charconv>

namespace verbund::serve {
namespace {

constexpr size_t kBiasMax = 1024;

void read_logit_bias(Fields& body, GenerateRequest& request) {
  const Json* bias = body.object("logit_bias");
  if (!bias) return;
  if (bias->size() > kBiasMax) refuse("logit_bias", "has " + std::to_string(bias->size()) + " entries, at most 1024 are allowed");
  for (const auto& [key, value] : bias->items()) {
    int32_t id = 0;
    const auto [rest, problem] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (problem != std::errc() || rest != key.data() + key.size())
      refuse("logit_bias", "has the key " + brief(key) + ", which is no token id");
    const std::string path = "logit_bias." + key;
    if (!value.is_number()) refuse(path, "must be a number from -100 to 100, got " + brief(value));
    const double number = value.get<double>();
    if (!(number >= -100 && number <= 100)) refuse(path, "must be from -100 to 100, got " + brief(value));
    // The ends mean "always" and "never": more than any logit can outweigh.
    request.logit_bias[id] = static_cast<float>(number == 100 ? 1e9 : number == -100 ? -1e9 : number);
  }
}

Json token_json(const TokenInfo& token) {
  Json bytes = Json::array();
  for (const char c : token.bytes) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", token.text}, {"logprob", token.logprob}, {"bytes", std::move(bytes)}};
}

std::optional<float> as_float(std::optional<double> value) { return value ? std::optional(static_cast<float>(*value)) : std::nullopt; }

}  // namespace

void require_model(const ServedModel& model, Fields& body) {
  const std::string name = body.required_text("model");
  if (!model.is_called(name))
    throw ApiError(Fault::model_not_found, "The model '" + name + "' does not exist here; ready: " + model.id, "model");
}

std::vector<std::string> read_stop(Fields& body, std::string_view key) {
  const Json* stop = body.any(key);
  if (!stop) return {};
  if (stop->is_string()) return {stop->get<std::string>()};
  if (!stop->is_array()) refuse(body.path(key), "must be a string or an array of strings, got " + brief(*stop));
  return texts(*stop, body.path(key));
}

void read_common(Fields& body, const ServedModel& model, GenerateRequest& r) {
  require_model(model, body);
  r.stream = body.flag("stream", false);
  r.n = static_cast<uint32_t>(body.integer("n", 1, 16).value_or(1));
  r.temperature = as_float(body.number("temperature", 0, 2));
  r.top_p = as_float(body.number("top_p", 0, 1));
  r.min_p = as_float(body.number("min_p", 0, 1));
  r.top_k = body.integer("top_k", -1, INT32_MAX);
  if (r.top_k == -1) r.top_k = 0;  // vLLM's word for off
  r.repetition_penalty = as_float(body.number("repetition_penalty", 1e-6, 1e6));
  r.frequency_penalty = static_cast<float>(body.number("frequency_penalty", -2, 2).value_or(0));
  r.presence_penalty = static_cast<float>(body.number("presence_penalty", -2, 2).value_or(0));
  if (const auto seed = body.integer("seed", INT64_MIN, INT64_MAX)) r.seed = static_cast<uint64_t>(*seed);
  r.stop = read_stop(body, "stop");
  r.ignore_eos = body.flag("ignore_eos", false);
  r.min_tokens = static_cast<uint32_t>(body.integer("min_tokens", 0, INT32_MAX).value_or(0));
  r.priority = static_cast<int32_t>(-body.integer("priority", -1000, 1000).value_or(0));  // vLLM: lower goes first
  read_logit_bias(body, r);
  body.accept({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_options",
               "prompt_cache_retention"});
}

bool read_include_usage(Fields& body, bool stream) {
  const Json* options = body.object("stream_options");
  if (!options) return false;
  if (!stream) refuse("stream_options", "is only for streams: set stream to true");
  Fields fields(*options, "stream_options");
  fields.boolean("include_obfuscation");
  return fields.flag("include_usage", false);
}

Json usage_json(const ReplyUsage& u) {
  return {{"prompt_tokens", u.prompt_tokens},
          {"completion_tokens", u.output_tokens},
          {"total_tokens", u.prompt_tokens + u.output_tokens},
          {"prompt_tokens_details", {{"cached_tokens", u.cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", u.reasoning_tokens}}}};
}

Json timings_json(const ReplyUsage& u) {
  const auto rate = [](uint64_t tokens, double seconds) { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0; };
  const uint64_t computed = u.prompt_tokens - u.cached_tokens;
  return {{"cache_n", u.cached_tokens},
          {"prompt_n", computed},
          {"prompt_ms", u.prefill_s * 1000},
          {"prompt_per_second", rate(computed, u.prefill_s)},
          {"predicted_n", u.output_tokens},
          {"predicted_ms", u.decode_s * 1000},
          {"predicted_per_second", rate(u.output_tokens, u.decode_s)}};
}

Json logprobs_json(const std::vector<TokenLogprobs>& tokens) {
  Json content = Json::array();
  for (const TokenLogprobs& t : tokens) {
    Json entry = token_json(t.chosen);
    entry["top_logprobs"] = Json::array();
    for (const TokenInfo& top : t.top) entry["top_logprobs"].push_back(token_json(top));
    content.push_back(std::move(entry));
  }
  return content;
}

std::string_view finish_text(Finish finish) {
  switch (finish) {
    case Finish::stop: return "stop";
    case Finish::length: return "length";
    case Finish::tool_calls: return "tool_calls";
  }
  return "stop";
}

}  // namespace verbund::serve
