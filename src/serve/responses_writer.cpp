#include "serve/responses_writer.h"

#include <utility>

#include "serve/openai_common.h"

namespace verbund::serve {
namespace {

Json text_part(const std::string& text, Json logprobs) {
  return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", std::move(logprobs)}};
}

// What a custom tool's one argument says; a call that is no JSON is passed on as it is.
std::string custom_input(const std::string& arguments) {
  const Json json = Json::parse(arguments, nullptr, false);
  return json.is_object() && json.contains("input") && json["input"].is_string() ? json["input"].get<std::string>() : arguments;
}

}  // namespace

ResponsesWriter::ResponsesWriter(const ServedModel& model, const ResponsesRequest& request, Done done)
    : id_(random_id("resp_", 32)),
      model_(model.id),
      created_(unix_seconds()),
      echo_(request.echo),
      summary_(request.summary),
      logprobs_(request.output_logprobs),
      tools_(request.tools),
      done_(std::move(done)) {}

std::string ResponsesWriter::event(std::string_view type, Json fields) {
  Json data{{"type", type}, {"sequence_number", sequence_++}};
  data.update(fields);
  return sse(data, type);
}

Json ResponsesWriter::place() const { return {{"item_id", item_id_}, {"output_index", output_.size()}}; }

Json ResponsesWriter::response(std::string_view status) const {
  Json body{{"id", id_},        {"object", "response"}, {"created_at", created_}, {"completed_at", nullptr},
            {"status", status}, {"background", false},  {"error", nullptr},       {"incomplete_details", nullptr},
            {"model", model_},  {"output", output_},    {"usage", nullptr}};
  body.update(echo_);
  return body;
}

std::string ResponsesWriter::begin(const ReplyStart&) {
  std::string frames = event("response.created", {{"response", response("in_progress")}});
  return frames + keep_alive();
}

std::string ResponsesWriter::keep_alive() { return event("response.in_progress", {{"response", response("in_progress")}}); }

std::string ResponsesWriter::delta(const Delta& d) {
  Json at;
  std::string frames;
  switch (d.kind) {
    case Delta::Kind::content: {
      if (d.text.empty()) return {};
      frames = open(Item::message);
      text_ += d.text;
      Json logprobs = logprobs_ ? logprobs_json(d.logprobs) : Json::array();
      for (const Json& entry : logprobs) text_logprobs_.push_back(entry);
      at = place();
      at.update({{"content_index", 0}, {"delta", d.text}, {"logprobs", std::move(logprobs)}});
      return frames + event("response.output_text.delta", std::move(at));
    }
    case Delta::Kind::reasoning:
      if (d.text.empty()) return {};
      frames = open(Item::reasoning);
      text_ += d.text;
      at = place();
      at.update({{summary_ ? "summary_index" : "content_index", 0}, {"delta", d.text}});
      return frames + event(summary_ ? "response.reasoning_summary_text.delta" : "response.reasoning_text.delta", std::move(at));
    case Delta::Kind::tool_begin: return open_call(d);
    case Delta::Kind::tool_arguments:
      text_ += d.text;
      if (tool_.custom) return {};  // its text is inside the JSON: said when it is whole
      at = place();
      at.update({{"delta", d.text}});
      return event("response.function_call_arguments.delta", std::move(at));
  }
  return {};
}

std::string ResponsesWriter::open(Item item) {
  if (item_ == item) return {};
  std::string frames = close();
  item_ = item;
  text_.clear();
  text_logprobs_ = Json::array();
  const bool message = item == Item::message;
  item_id_ = random_id(message ? "msg_" : "rs_", 32);
  Json added = message ? message_item({}, "in_progress", Json::array()) : reasoning_item({});
  if (message) added["content"] = Json::array();
  frames += event("response.output_item.added", {{"output_index", output_.size()}, {"item", std::move(added)}});
  Json at = place();
  if (message)
    at.update({{"content_index", 0}, {"part", text_part({}, Json::array())}});
  else if (summary_)
    at.update({{"summary_index", 0}, {"part", {{"type", "summary_text"}, {"text", ""}}}});
  else
    at.update({{"content_index", 0}, {"part", {{"type", "reasoning_text"}, {"text", ""}}}});
  const bool as_summary = !message && summary_;
  return frames + event(as_summary ? "response.reasoning_summary_part.added" : "response.content_part.added", std::move(at));
}

std::string ResponsesWriter::open_call(const Delta& d) {
  std::string frames = close();
  item_ = Item::call;
  text_.clear();
  const auto known = tools_.find(d.tool_name);
  tool_ = known == tools_.end() ? ResponseTool{false, d.tool_name, {}} : known->second;
  item_id_ = random_id(tool_.custom ? "ctc_" : "fc_", 32);
  call_id_ = d.tool_id;
  return frames + event("response.output_item.added", {{"output_index", output_.size()}, {"item", call_item("in_progress")}});
}

std::string ResponsesWriter::close(std::string_view status) {
  std::string frames;
  switch (std::exchange(item_, Item::none)) {
    case Item::none: return {};
    case Item::message: return close_message(status);
    case Item::reasoning: return close_reasoning();
    case Item::call: return close_call();
  }
  return frames;
}

std::string ResponsesWriter::close_message(std::string_view status) {
  Json done = place(), part = place();
  done.update({{"content_index", 0}, {"text", text_}, {"logprobs", text_logprobs_}});
  part.update({{"content_index", 0}, {"part", text_part(text_, text_logprobs_)}});
  std::string frames = event("response.output_text.done", std::move(done));
  frames += event("response.content_part.done", std::move(part));
  Json item = message_item(text_, status, text_logprobs_);
  frames += event("response.output_item.done", {{"output_index", output_.size()}, {"item", item}});
  output_.push_back(std::move(item));
  return frames;
}

std::string ResponsesWriter::close_reasoning() {
  const std::string index = summary_ ? "summary_index" : "content_index";
  const std::string type = summary_ ? "summary_text" : "reasoning_text";
  Json done = place(), part = place();
  done.update({{index, 0}, {"text", text_}});
  part.update({{index, 0}, {"part", {{"type", type}, {"text", text_}}}});
  std::string frames = event(summary_ ? "response.reasoning_summary_text.done" : "response.reasoning_text.done", std::move(done));
  frames += event(summary_ ? "response.reasoning_summary_part.done" : "response.content_part.done", std::move(part));
  Json item = reasoning_item(text_);
  frames += event("response.output_item.done", {{"output_index", output_.size()}, {"item", item}});
  output_.push_back(std::move(item));
  return frames;
}

std::string ResponsesWriter::close_call() {
  std::string frames;
  Json done = place();
  if (tool_.custom) {
    const std::string input = custom_input(text_);
    Json piece = place();
    piece["delta"] = input;
    frames = event("response.custom_tool_call_input.delta", std::move(piece));
    done["input"] = input;
    frames += event("response.custom_tool_call_input.done", std::move(done));
  } else {
    done.update({{"name", tool_.name}, {"arguments", text_}});
    frames = event("response.function_call_arguments.done", std::move(done));
  }
  Json item = call_item("completed");
  frames += event("response.output_item.done", {{"output_index", output_.size()}, {"item", item}});
  output_.push_back(std::move(item));
  return frames;
}

std::string ResponsesWriter::finish(const ChoiceResult& r) {
  finish_ = r.finish;
  std::string frames;
  if (output_.empty() && item_ == Item::none) frames = open(Item::message);  // an empty answer is a message all the same
  return frames + close(finish_ == Finish::length ? "incomplete" : "completed");
}

Json ResponsesWriter::settled(const ReplyUsage& u) {
  Json body = response(finish_ == Finish::length ? "incomplete" : "completed");
  if (finish_ == Finish::length) body["incomplete_details"] = {{"reason", "max_output_tokens"}};
  body["completed_at"] = unix_seconds();
  body["usage"] = {{"input_tokens", u.prompt_tokens},
                   {"input_tokens_details", {{"cached_tokens", u.cached_tokens}, {"cache_write_tokens", 0}}},
                   {"output_tokens", u.output_tokens},
                   {"output_tokens_details", {{"reasoning_tokens", u.reasoning_tokens}}},
                   {"total_tokens", u.prompt_tokens + u.output_tokens}};
  done_(id_, body);
  return body;
}

std::string ResponsesWriter::end(const ReplyUsage& usage) {
  const std::string_view type = finish_ == Finish::length ? "response.incomplete" : "response.completed";
  return event(type, {{"response", settled(usage)}});
}

std::string ResponsesWriter::failure(const ApiError& error) {
  std::string frames = close("incomplete");
  Json body = response("failed");
  const std::string_view code = openai_code(error);
  body["error"] = {{"code", code.empty() ? "server_error" : code}, {"message", error.message}};
  return frames + event("response.failed", {{"response", std::move(body)}});
}

Json ResponsesWriter::whole(const ReplyStart&, const std::vector<ChoiceResult>& results, const ReplyUsage& usage) {
  const ChoiceResult& r = results.front();
  finish_ = r.finish;
  if (!r.reasoning.empty()) {
    item_id_ = random_id("rs_", 32);
    output_.push_back(reasoning_item(r.reasoning));
  }
  if (!r.content.empty() || (r.tool_calls.empty() && r.reasoning.empty())) {
    item_id_ = random_id("msg_", 32);
    output_.push_back(message_item(r.content, finish_ == Finish::length ? "incomplete" : "completed",
                                   logprobs_ ? logprobs_json(r.logprobs) : Json::array()));
  }
  for (const ToolCall& call : r.tool_calls) {
    const auto known = tools_.find(call.name);
    tool_ = known == tools_.end() ? ResponseTool{false, call.name, {}} : known->second;
    item_id_ = random_id(tool_.custom ? "ctc_" : "fc_", 32);
    call_id_ = call.id;
    text_ = call.arguments;
    output_.push_back(call_item("completed"));
  }
  return settled(usage);
}

Json ResponsesWriter::message_item(const std::string& text, std::string_view status, Json logprobs) const {
  return {{"id", item_id_},
          {"type", "message"},
          {"role", "assistant"},
          {"status", status},
          {"content", Json::array({text_part(text, std::move(logprobs))})}};
}

Json ResponsesWriter::reasoning_item(const std::string& text) const {
  Json item{{"id", item_id_}, {"type", "reasoning"}, {"summary", Json::array()}, {"content", Json::array()}};
  if (!text.empty())
    item[summary_ ? "summary" : "content"].push_back({{"type", summary_ ? "summary_text" : "reasoning_text"}, {"text", text}});
  return item;
}

Json ResponsesWriter::call_item(std::string_view status) const {
  Json item{{"id", item_id_}, {"type", tool_.custom ? "custom_tool_call" : "function_call"}, {"call_id", call_id_}, {"name", tool_.name}};
  if (!tool_.namespace_name.empty()) item["namespace"] = tool_.namespace_name;
  item[tool_.custom ? "input" : "arguments"] = tool_.custom ? (text_.empty() ? "" : custom_input(text_)) : text_;
  item["status"] = status;
  return item;
}

}  // namespace verbund::serve
