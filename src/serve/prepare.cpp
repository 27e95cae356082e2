#include "serve/prepare.h"

#include "serve/chat_prompt.h"
#include "serve/choice_reader.h"
#include "serve/fields.h"

namespace verbund::serve {
namespace {

constexpr size_t kStopsMax = 64, kStopBytesMax = 1024;

// A text continues as it is; the tokenizer's own start goes in front unless the text has it already.
std::vector<int32_t> encode_text(const ServedModel& model, const std::string& text) {
  std::vector<int32_t> ids = model.tokenizer->encode(text, {.add_special = true, .parse_special = true});
  const auto bos = model.bos_token.empty() ? std::nullopt : model.tokenizer->id_of(model.bos_token);
  if (bos && ids.size() > 1 && ids[0] == *bos && ids[1] == *bos) ids.erase(ids.begin());
  if (ids.empty()) ids.push_back(bos ? *bos : model.eos.empty() ? 0 : model.eos.front());  // nothing to start from
  return ids;
}

void check_ids(const ServedModel& model, const std::vector<int32_t>& ids, const std::string& field) {
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || static_cast<size_t>(ids[i]) >= model.vocabulary)
      refuse(field + "[" + std::to_string(i) + "]",
             "is token id " + std::to_string(ids[i]) + ", ids go from 0 to " + std::to_string(model.vocabulary - 1));
}

void check_stops(const std::vector<std::string>& stops) {
  if (stops.size() > kStopsMax) refuse("stop", "has " + std::to_string(stops.size()) + " strings, at most 64 are allowed");
  for (size_t i = 0; i < stops.size(); ++i)
    if (stops[i].empty() || stops[i].size() > kStopBytesMax)
      refuse("stop[" + std::to_string(i) + "]", "must have 1 to 1024 bytes, has " + std::to_string(stops[i].size()));
}

engine::SamplingParams sampling_of(const ServedModel& model, const GenerateRequest& r) {
  engine::SamplingParams p;
  p.temperature = r.temperature.value_or(model.defaults.temperature.value_or(1.0f));
  p.top_p = r.top_p.value_or(model.defaults.top_p.value_or(1.0f));
  p.min_p = r.min_p.value_or(model.defaults.min_p.value_or(0.0f));
  p.top_k = r.top_k.value_or(model.defaults.top_k.value_or(0));
  p.repetition_penalty = r.repetition_penalty.value_or(model.defaults.repetition_penalty.value_or(1.0f));
  p.frequency_penalty = r.frequency_penalty;
  p.presence_penalty = r.presence_penalty;
  p.logit_bias = r.logit_bias;
  p.seed = r.seed;
  engine::ensure_seed(p);
  return p;
}

// The conversation without its `count` oldest messages that are not the system's, and without answers to what is gone.
ChatPrompt without_oldest(const ChatPrompt& chat, size_t count) {
  ChatPrompt shorter = chat;
  shorter.messages = Json::array();
  bool begun = false;
  for (const Json& message : chat.messages) {
    const std::string role = message.value("role", "");
    const bool system = role == "system" || role == "developer";
    if (!system && count > 0) {
      --count;
      continue;
    }
    begun |= role == "user";
    if (system || begun) shorter.messages.push_back(message);
  }
  return shorter;
}

bool has_user(const ChatPrompt& chat) {
  for (const Json& message : chat.messages)
    if (message.value("role", "") == "user") return true;
  return false;
}

// As few messages left out as possible, by bisection: a longer conversation has more tokens.
std::vector<int32_t> encode_truncated(const ServedModel& model, const ChatPrompt& chat, size_t tokens_max) {
  std::vector<int32_t> best = encode_chat(model, chat);
  size_t low = 1, high = best.size() <= tokens_max ? 0 : chat.messages.size();
  while (low <= high) {
    const size_t middle = (low + high) / 2;
    const ChatPrompt shorter = without_oldest(chat, middle);
    std::vector<int32_t> ids = has_user(shorter) ? encode_chat(model, shorter) : std::vector<int32_t>();
    if (ids.size() > tokens_max) {
      low = middle + 1;
    } else {
      if (!ids.empty()) best = std::move(ids);
      high = middle - 1;
    }
  }
  return best;
}

}  // namespace

std::vector<int32_t> encode(const ServedModel& model, const Prompt& prompt) {
  if (const auto* chat = std::get_if<ChatPrompt>(&prompt))
    return chat->truncate ? encode_truncated(model, *chat, model.context - 1) : encode_chat(model, *chat);
  if (const auto* text = std::get_if<std::string>(&prompt)) return encode_text(model, *text);
  const auto& ids = std::get<std::vector<int32_t>>(prompt);
  if (ids.empty()) refuse("prompt", "is empty; it needs at least one token");
  check_ids(model, ids, "prompt");
  return ids;
}

Prepared prepare(const ServedModel& model, const GenerateRequest& r) {
  check_stops(r.stop);
  Prepared prepared;
  engine::Request base;
  base.params = sampling_of(model, r);
  base.eos = model.eos;
  base.ignore_eos = r.ignore_eos;
  base.min_tokens = r.min_tokens;
  if (!parses_output(model, r)) base.stop = r.stop;
  base.logprobs = r.logprobs;
  base.grammar = r.grammar;
  base.priority = r.priority;
  base.max_tokens = r.max_tokens.value_or(engine::kNoTokenLimit);
  if (r.grammar && r.grammar->source.size() > engine::kGrammarBytesMax)
    refuse(r.grammar_field, "has " + std::to_string(r.grammar->source.size()) + " bytes, at most 262144 are allowed");
  // Scores come from a step, and a step samples a token: it is left out of the answer.
  base.score_from = r.echo && r.logprobs.has_value() ? 1 : 0;
  if (base.score_from > 0 && base.max_tokens == 0) base.max_tokens = 1;

  for (const Prompt& prompt : r.prompts) {
    std::vector<int32_t> ids = encode(model, prompt);
    check_ids(model, r.before, "context");
    ids.insert(ids.begin(), r.before.begin(), r.before.end());
    if (ids.size() + (base.max_tokens > 0 ? 1 : 0) > model.context) throw context_error(ids.size(), model.context);
    prepared.start.prompt_tokens += ids.size();
    if (r.echo) {
      const auto* text = std::get_if<std::string>(&prompt);
      prepared.start.prompt_texts.push_back(text ? *text : model.tokenizer->decode(ids, false));
    }
    for (uint32_t i = 0; i < r.n; ++i) {
      engine::Request& choice = prepared.choices.emplace_back(base);
      choice.prompt = ids;
      choice.params.choice = i;
    }
    if (prepared.prompts.empty()) prepared.start.first_prompt = ids;
    prepared.prompts.push_back(std::move(ids));
  }
  prepared.start.choices = prepared.choices.size();
  prepared.choices.front().validate(model.vocabulary, model.context);  // all differ only in what is checked above
  return prepared;
}

}  // namespace verbund::serve
