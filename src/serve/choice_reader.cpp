#include "serve/choice_reader.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"

namespace verbund::serve {

namespace {

using Kind = text::OutputPiece::Kind;

// A template writes what it opens at its end.
constexpr size_t kPromptEnd = 64;

bool is_chat(const GenerateRequest& request) {
  return !request.prompts.empty() && std::holds_alternative<ChatPrompt>(request.prompts.front());
}

bool reads_calls(const ServedModel& model, const GenerateRequest& request) {
  const bool json_answer = request.grammar && request.grammar->kind == text::GrammarKind::json_schema;
  return model.output.tools && request.tool_use != ToolUse::none && !json_answer;
}

text::Tools offered_tools(const GenerateRequest& request) {
  return text::Tools::from_json(std::get<ChatPrompt>(request.prompts.front()).tools);
}

// Whether the prompt ends within reasoning that its template has opened. A grammar begins with the answer.
bool ends_in_reasoning(const ServedModel& model, const GenerateRequest& request, std::span<const int32_t> prompt) {
  const text::ReasoningFormat* format = model.output.reasoning;
  if (!format || request.grammar) return false;
  const std::span<const int32_t> end = prompt.subspan(prompt.size() - std::min(prompt.size(), kPromptEnd));
  const auto last = [&](std::string_view mark, std::string_view tail) -> size_t {
    if (model.output.is_token(mark) && tail.empty()) {
      const auto id = model.tokenizer->id_of(mark);
      for (size_t i = end.size(); i > 0; --i)
        if (end[i - 1] == *id) return i;
      return 0;
    }
    const size_t at = model.tokenizer->decode(end, false).rfind(std::string(mark) + std::string(tail));
    return at == std::string::npos ? 0 : at + 1;
  };
  return last(format->open, format->open_tail) > last(format->close, {});
}

}  // namespace

bool parses_output(const ServedModel& model, const GenerateRequest& request) {
  if (!is_chat(request) || request.answer_is_call || request.max_tokens == 0u) return false;
  if (model.output.tools && model.output.tools->harmony) return true;
  return model.output.reasoning || (reads_calls(model, request) && !offered_tools(request).empty());
}

ChoiceReader::ChoiceReader(const ServedModel& model, const GenerateRequest& request, uint32_t choice, std::span<const int32_t> prompt)
    : model_(model), request_(request), prompt_(prompt), stop_(parses_output(model, request) ? request.stop : std::vector<std::string>()) {
  result_.choice = choice;
  if (!parses_output(model, request)) return;
  text::Tools tools = reads_calls(model, request) ? offered_tools(request) : text::Tools();
  parser_ = text::make_output_parser(model.output, std::move(tools), ends_in_reasoning(model, request, prompt));
}

std::vector<Delta> ChoiceReader::push(const engine::InstanceEvent& event) {
  if (parser_) return push_parsed(event);
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

// Of a token that is part of the answer and whose log-probabilities are wanted.
std::optional<TokenLogprobs> ChoiceReader::logprobs_of(const engine::InstanceEvent& event) const {
  const int32_t id = event.token.value_or(0);
  const bool end = !request_.ignore_eos && std::find(model_.eos.begin(), model_.eos.end(), id) != model_.eos.end();
  if (!event.logprobs || end || request_.max_tokens == 0u) return std::nullopt;
  TokenLogprobs entry{info(id, event.logprobs->chosen), {}};
  for (const engine::TokenLogprob& t : event.logprobs->top) entry.top.push_back(info(t.id, t.logprob));
  if (entry.top.size() > *request_.logprobs) entry.top.resize(*request_.logprobs);
  return entry;
}

void ChoiceReader::hold_logprobs(const engine::InstanceEvent& event) {
  auto entry = logprobs_of(event);
  if (!entry) return;
  const size_t bytes = model_.tokenizer->is_special(*event.token) ? 0 : entry->chosen.bytes.size();
  held_.push_back({std::move(*entry), token_bytes_, token_bytes_ + bytes});
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

// ---- answers that are taken apart

std::vector<Delta> ChoiceReader::push_parsed(const engine::InstanceEvent& event) {
  std::vector<Delta> deltas;
  if (finished_) return deltas;
  if (event.token) result_.tokens.push_back(*event.token);
  const int32_t id = event.token.value_or(-1);
  const auto known = model_.marks.find(id);
  const bool special = event.token && model_.tokenizer->is_special(id);
  std::string_view before = event.text;  // a mark that is no special token is part of the text
  if (known != model_.marks.end() && before.ends_with(known->second)) before.remove_suffix(known->second.size());
  spoke(event, before.size());
  read_pieces(parser_->push(before), deltas);
  if (!finished_ && (known != model_.marks.end() || special))
    read_pieces(parser_->mark(special ? model_.tokenizer->token_of(id) : known->second), deltas);
  if (finished_ || !event.finish) return deltas;
  read_pieces(parser_->finish(*event.finish == "length"), deltas);
  if (finished_) return deltas;
  say(stop_.flush(), deltas);
  finish(event);
  if (!result_.tool_calls.empty() && result_.finish == Finish::stop) result_.finish = Finish::tool_calls;
  return deltas;
}

// Tokens whose text is not whole count with the one that completes it, marks by themselves.
void ChoiceReader::spoke(const engine::InstanceEvent& event, size_t text_bytes) {
  text_bytes_ += text_bytes;
  const bool mark = event.token && text_bytes == 0 && (model_.marks.contains(*event.token) || model_.tokenizer->is_special(*event.token));
  if (event.token && !mark) {
    ++speaking_.tokens;
    if (auto entry = logprobs_of(event)) speaking_.logprobs.push_back(std::move(*entry));
  }
  if (text_bytes == 0 || speaking_.tokens == 0) return;
  speaking_.end = text_bytes_;
  spoken_.push_back(std::exchange(speaking_, {}));
}

void ChoiceReader::read_pieces(std::vector<text::OutputPiece> pieces, std::vector<Delta>& deltas) {
  for (text::OutputPiece& piece : pieces) {
    if (finished_) return;
    parts_.push_back({piece.begin, piece.end, piece.kind});
    if (piece.kind == Kind::content) say(stop_.push(piece.text), deltas);
    if (piece.kind == Kind::reasoning) {
      result_.reasoning += piece.text;
      Delta& delta = deltas.emplace_back();
      delta.choice = result_.choice;
      delta.kind = Delta::Kind::reasoning;
      delta.text = std::move(piece.text);
    }
    if (piece.kind == Kind::call) say_call(std::move(piece.call), deltas);
    if (stop_.stopped()) {
      result_.stop_string = stop_.matched();
      end_early(result_.tool_calls.empty() ? Finish::stop : Finish::tool_calls);
    }
  }
  std::vector<TokenLogprobs> logprobs = release_spoken(false);
  if (logprobs.empty()) return;
  result_.logprobs.insert(result_.logprobs.end(), logprobs.begin(), logprobs.end());
  const bool said = !deltas.empty() && deltas.back().kind == Delta::Kind::content;
  Delta& delta = said ? deltas.back() : deltas.emplace_back();
  delta.choice = result_.choice;
  delta.logprobs.insert(delta.logprobs.end(), logprobs.begin(), logprobs.end());
}

void ChoiceReader::say(std::string text, std::vector<Delta>& deltas) {
  if (text.empty()) return;
  result_.content += text;
  Delta& delta = deltas.emplace_back();
  delta.choice = result_.choice;
  delta.text = std::move(text);
}

void ChoiceReader::say_call(text::ParsedCall call, std::vector<Delta>& deltas) {
  std::string id = call.id.empty() ? model_.output.tools->nine_letter_ids ? random_id("", 9) : random_id("call_") : std::move(call.id);
  const size_t index = result_.tool_calls.size();
  Delta begin;
  begin.choice = result_.choice;
  begin.kind = Delta::Kind::tool_begin;
  begin.tool = index;
  begin.tool_id = id;
  begin.tool_name = call.name;
  Delta arguments;
  arguments.choice = result_.choice;
  arguments.kind = Delta::Kind::tool_arguments;
  arguments.tool = index;
  arguments.text = call.arguments;
  result_.tool_calls.push_back({std::move(id), std::move(call.name), std::move(call.arguments)});
  deltas.push_back(std::move(begin));
  deltas.push_back(std::move(arguments));
  if (!request_.parallel_tool_calls) end_early(Finish::tool_calls);
}

// What is decided: reasoning is counted, content gives its log-probabilities, what became calls or nothing goes.
std::vector<TokenLogprobs> ChoiceReader::release_spoken(bool at_end) {
  std::vector<TokenLogprobs> out;
  size_t begin = 0;
  while (!spoken_.empty() && (at_end || spoken_.front().end <= parser_->decided())) {
    Spoken& s = spoken_.front();
    while (!parts_.empty() && parts_.front().end <= begin) parts_.pop_front();
    while (!parts_.empty() && parts_.front().end < s.end && parts_.front().kind == Kind::call) parts_.pop_front();
    if (!parts_.empty() && parts_.front().begin < s.end) {
      if (parts_.front().kind == Kind::reasoning) result_.reasoning_tokens += s.tokens;
      if (parts_.front().kind == Kind::content) std::move(s.logprobs.begin(), s.logprobs.end(), std::back_inserter(out));
    }
    begin = s.end;
    while (!parts_.empty() && parts_.front().end <= begin) parts_.pop_front();
    spoken_.pop_front();
  }
  return out;
}

void ChoiceReader::end_early(Finish finish) {
  finished_ = ended_early_ = true;
  result_.finish = finish;
  result_.output_tokens = static_cast<uint32_t>(result_.tokens.size());
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
