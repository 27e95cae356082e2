#include "serve/choice_reader.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"

namespace verbund::serve {

ChoiceReader::ChoiceReader(const ServedModel& model, const GenerateRequest& request, uint32_t choice, std::span<const int32_t> prompt)
    : model_(model), request_(request), prompt_(prompt) {
  result_.choice = choice;
}

std::vector<Delta> ChoiceReader::push(const engine::InstanceEvent& event) {
  std::vector<Delta> deltas;
  if (request_.answer_is_call) {
    result_.content += event.text;
    if (event.finish) finish(event), deltas = read_call();
    return deltas;
  }
  if (event.token) result_.tokens.push_back(*event.token);
  if (event.logprobs) hold_logprobs(event);
  const bool silent = request_.max_tokens == 0u;  // only the prompt was asked for
  if (!silent) result_.content += event.text;
  std::vector<TokenLogprobs> logprobs = release_logprobs(event.finish.has_value());
  result_.logprobs.insert(result_.logprobs.end(), logprobs.begin(), logprobs.end());
  if (!silent && !(event.text.empty() && logprobs.empty())) {
    Delta& delta = deltas.emplace_back();
    delta.choice = result_.choice;
    delta.text = event.text;
    delta.logprobs = std::move(logprobs);
  }
  if (event.finish) finish(event);
  return deltas;
}

// A call cut off by the limit is left out.
std::vector<Delta> ChoiceReader::read_call() {
  const std::string text = std::exchange(result_.content, {});
  const auto call = nlohmann::ordered_json::parse(text, nullptr, false);
  if (result_.finish != Finish::stop || !call.is_object() || !call.contains("name") || !call.contains("arguments")) return {};
  result_.tool_calls.push_back({random_id("call_"), call["name"].get<std::string>(), call["arguments"].dump()});
  result_.finish = Finish::tool_calls;
  Delta begin;
  begin.choice = result_.choice;
  begin.kind = Delta::Kind::tool_begin;
  begin.tool_id = result_.tool_calls[0].id;
  begin.tool_name = result_.tool_calls[0].name;
  Delta arguments;
  arguments.choice = result_.choice;
  arguments.kind = Delta::Kind::tool_arguments;
  arguments.text = result_.tool_calls[0].arguments;
  return {begin, arguments};
}

void ChoiceReader::hold_logprobs(const engine::InstanceEvent& event) {
  const int32_t id = event.token.value_or(0);
  const bool end = !request_.ignore_eos && std::find(model_.eos.begin(), model_.eos.end(), id) != model_.eos.end();
  if (end || request_.max_tokens == 0u) return;
  TokenLogprobs entry{info(id, event.logprobs->chosen), {}};
  for (const engine::TokenLogprob& t : event.logprobs->top) entry.top.push_back(info(t.id, t.logprob));
  if (entry.top.size() > *request_.logprobs) entry.top.resize(*request_.logprobs);
  const size_t bytes = model_.tokenizer->is_special(id) ? 0 : entry.chosen.bytes.size();
  held_.push_back({std::move(entry), token_bytes_, token_bytes_ + bytes});
  token_bytes_ += bytes;
}

std::vector<TokenLogprobs> ChoiceReader::release_logprobs(bool at_end) {
  std::vector<TokenLogprobs> out;
  const size_t released = result_.content.size();
  while (!held_.empty() && (held_.front().end <= released || (at_end && held_.front().begin < released))) {
    out.push_back(std::move(held_.front().logprobs));
    held_.pop_front();
  }
  return out;
}

void ChoiceReader::finish(const engine::InstanceEvent& event) {
  finished_ = true;
  figures_ = event.figures.is_object() ? event.figures : nlohmann::json::object();
  result_.finish = *event.finish == "length" ? Finish::length : Finish::stop;
  if (request_.max_tokens == 0u) result_.finish = Finish::length;
  result_.stop_string = figures_.value("stop_string", std::string());
  result_.output_tokens = request_.max_tokens == 0u ? 0 : figures_.value("output_tokens", uint32_t(0));
  const auto scores = figures_.find("prompt_logprobs");
  const auto tops = figures_.find("prompt_top_logprobs");
  if (!request_.echo || !request_.logprobs || prompt_.empty()) return;
  result_.prompt_logprobs.push_back({info(prompt_[0], 0), {}});
  for (size_t i = 1; i < prompt_.size(); ++i) {
    const bool scored = scores != figures_.end() && i <= scores->size();
    TokenLogprobs& entry = result_.prompt_logprobs.emplace_back();
    entry.chosen = info(prompt_[i], scored ? scores->at(i - 1).get<float>() : 0);
    if (!scored || tops == figures_.end() || i > tops->size()) continue;
    for (const auto& t : tops->at(i - 1)) entry.top.push_back(info(t.at(0).get<int32_t>(), t.at(1).get<float>()));
    if (entry.top.size() > *request_.logprobs) entry.top.resize(*request_.logprobs);
  }
}

TokenInfo ChoiceReader::info(int32_t id, float logprob) const {
  TokenInfo token;
  token.id = id;
  token.bytes = model_.tokenizer->bytes_of(id);
  token.text = find_invalid_utf8(token.bytes) ? "\xef\xbf\xbd" : token.bytes;
  token.logprob = logprob;
  return token;
}

}  // namespace verbund::serve
