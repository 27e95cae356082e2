#include "serve/ollama_input.h"

#include <algorithm>

#include "serve/openai_common.h"
#include "serve/openai_messages.h"
#include "serve/structured.h"

namespace verbund::serve {
namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::string without_latest(std::string name) {
  constexpr std::string_view kLatest = ":latest";
  if (name.ends_with(kLatest)) name.resize(name.size() - kLatest.size());
  return name;
}

std::optional<float> as_float(std::optional<double> value) { return value ? std::optional(static_cast<float>(*value)) : std::nullopt; }

void read_options(Fields& body, const ServedModel& model, GenerateRequest& r) {
  static const Json none = Json::object();
  const Json* given = body.object("options");
  Fields o(given ? *given : none, "options");
  // What the request says, then the model, then Ollama's own defaults.
  const SamplingDefaults& d = model.defaults;
  r.temperature = as_float(o.number("temperature", 0, 100)).value_or(d.temperature.value_or(0.8f));
  r.top_p = as_float(o.number("top_p", 0, 1)).value_or(d.top_p.value_or(0.9f));
  r.top_k = o.integer("top_k", 0, INT32_MAX).value_or(d.top_k.value_or(40));
  r.min_p = as_float(o.number("min_p", 0, 1));
  r.repetition_penalty = as_float(o.number("repeat_penalty", 1e-6, 1e6));
  r.frequency_penalty = static_cast<float>(o.number("frequency_penalty", -100, 100).value_or(0));
  r.presence_penalty = static_cast<float>(o.number("presence_penalty", -100, 100).value_or(0));
  if (const auto seed = o.integer("seed", INT64_MIN, INT64_MAX)) r.seed = static_cast<uint64_t>(*seed);
  r.stop = read_stop(o, "stop");
  if (const auto limit = o.integer("num_predict", -2, INT32_MAX); limit && *limit >= 0) r.max_tokens = static_cast<uint32_t>(*limit);
  o.integer("num_ctx", 0, INT32_MAX);  // the instance's context holds
  // The penalty here looks at the whole text; a shorter window would be another penalty.
  if (const auto last = o.integer("repeat_last_n", -1, INT32_MAX); last == 0)
    r.repetition_penalty = 1.0f;
  else if (last && *last > 0 && r.repetition_penalty && *r.repetition_penalty != 1.0f)
    throw ApiError(Fault::unsupported, "options.repeat_last_n must be -1 (all) or 0 (off) together with a repeat_penalty",
                   "options.repeat_last_n");
  if (const auto typical = o.number("typical_p", 0, 1); typical && *typical != 1)
    throw ApiError(Fault::unsupported, "options.typical_p is only accepted as 1", "options.typical_p");
  for (const char* key : {"num_keep", "num_gpu", "main_gpu", "num_thread", "num_batch"}) o.integer(key, INT32_MIN, INT32_MAX);
  for (const char* key : {"use_mmap", "use_mlock", "numa", "low_vram", "penalize_newline"}) o.boolean(key);
  for (const std::string& name : o.unknown()) r.ignored.push_back("options." + name);
}

void read_format(Fields& body, GenerateRequest& r) {
  const Json* format = body.any("format");
  if (!format || *format == "") return;
  r.grammar_field = "format";
  if (*format == "json") return void(r.grammar = json_grammar({{"type", "object"}}, false));
  if (!format->is_object()) refuse("format", "must be json or a JSON schema, got " + brief(*format));
  r.grammar = json_grammar(*format, false);
}

void read_think(Fields& body, ChatPrompt& chat) {
  const Json* think = body.any("think");
  if (!think) return;
  if (think->is_boolean()) return apply_effort(think->get<bool>() ? "medium" : "none", chat);
  if (!think->is_string()) refuse("think", "must be true, false, low, medium, high or max, got " + brief(*think));
  apply_effort(think->get<std::string>(), chat);
}

Json message_of(const Json& value, const std::string& path) {
  Fields message(value, path);
  const std::string role = message.required_text("role");
  if (role != "system" && role != "user" && role != "assistant" && role != "tool")
    refuse(path + ".role", "must be system, user, assistant or tool, got " + brief(role));
  if (const Json* images = message.array("images"); images && !images->empty())
    throw ApiError(Fault::invalid, path + " has images; this model takes text only", path + ".images");
  Json out{{"role", role}, {"content", message.text("content").value_or("")}};
  if (const auto thinking = message.text("thinking")) out["reasoning_content"] = *thinking;
  if (role == "tool") {
    out["tool_call_id"] = message.text("tool_call_id").value_or("");
    if (const auto name = message.text("tool_name")) out["name"] = *name;
  }
  const Json* calls = message.array("tool_calls");
  for (size_t i = 0; calls && i < calls->size(); ++i) {
    const std::string at = path + ".tool_calls[" + std::to_string(i) + "]";
    Fields call((*calls)[i], at);
    const Json* function = call.object("function");
    if (!function) refuse(at + ".function", "is required");
    Fields fields(*function, at + ".function");
    const Json* arguments = fields.any("arguments");
    out["tool_calls"].push_back(
        {{"id", call.text("id").value_or("")},
         {"type", "function"},
         {"function", {{"name", fields.required_text("name")}, {"arguments", arguments ? *arguments : Json::object()}}}});
  }
  return out;
}

void read_chat(Fields& body, ChatPrompt& chat, OllamaRequest& o) {
  const Json* messages = body.array("messages");
  o.load_only = !messages || messages->empty();
  for (size_t i = 0; messages && i < messages->size(); ++i)
    chat.messages.push_back(message_of((*messages)[i], "messages[" + std::to_string(i) + "]"));
  const Json* tools = body.array("tools");
  Json as_openai{{"tools", tools ? *tools : Json::array()}};
  Fields fields(as_openai);
  read_tools(fields, chat, o.generate);
  chat.truncate = body.flag("truncate", true);
}

void read_generate(Fields& body, ChatPrompt& chat, OllamaRequest& o, Prompt& prompt) {
  const std::string text = body.text("prompt").value_or("");
  const auto system = body.text("system");
  o.load_only = text.empty();
  if (const Json* images = body.array("images"); images && !images->empty())
    throw ApiError(Fault::invalid, "images: this model takes text only", "images");
  if (body.text("template").value_or("") != "")
    throw ApiError(Fault::unsupported, "template is not supported: Go templates are not read here", "template");
  if (body.text("suffix").value_or("") != "") throw ApiError(Fault::unsupported, "suffix is not supported by this model", "suffix");
  if (const Json* context = body.array("context"))
    for (size_t i = 0; i < context->size(); ++i) {
      const Json& id = (*context)[i];
      if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX)
        refuse("context[" + std::to_string(i) + "]", "must be a token id, got " + brief(id));
      o.generate.before.push_back(id.get<int32_t>());
    }
  if (system && !system->empty()) chat.messages.push_back({{"role", "system"}, {"content", *system}});
  chat.messages.push_back({{"role", "user"}, {"content", text}});
  if (body.flag("raw", false)) {
    o.show_context = false;
    prompt = text;
  }
  body.boolean("truncate");
}

}  // namespace

void require_ollama_model(const ServedModel& model, const std::string& name) {
  const std::string asked = without_latest(lower(name));
  const auto is = [&](const std::string& known) { return without_latest(lower(known)) == asked; };
  if (is(model.id) || asked == "default" || std::any_of(model.aliases.begin(), model.aliases.end(), is)) return;
  throw ApiError(Fault::model_not_found, "model \"" + name + "\" not found, try pulling it first", "model");
}

OllamaRequest read_ollama(const ServedModel& model, const Json& json, bool is_chat) {
  Fields body(json);
  OllamaRequest o;
  GenerateRequest& r = o.generate;
  ChatPrompt chat;
  o.chat = is_chat;
  require_ollama_model(model, body.required_text("model"));
  r.stream = body.flag("stream", true);
  read_options(body, model, r);
  read_format(body, r);
  if (const auto top = body.integer("top_logprobs", 0, 20); body.flag("logprobs", false))
    r.logprobs = static_cast<uint32_t>(top.value_or(0));
  Prompt prompt;
  if (is_chat)
    read_chat(body, chat, o);
  else
    read_generate(body, chat, o, prompt);
  read_think(body, chat);
  body.accept({"keep_alive", "shift"});  // the model stays; an answer that fills the context ends
  for (const std::string& name : body.unknown()) r.ignored.push_back(name);
  if (std::holds_alternative<ChatPrompt>(prompt)) prompt = std::move(chat);
  r.prompts.push_back(std::move(prompt));
  return o;
}

}  // namespace verbund::serve
