#include "text/tool_formats.h"

#include "base/error.h"

namespace verbund::text {
namespace {

const std::vector<ToolFormat>& table() {
  static const std::vector<ToolFormat> formats = [] {
    std::vector<ToolFormat> f;
    const auto add = [&f](std::string_view name, std::vector<ToolSection> sections, auto parse,
                          bool (*begins)(std::string_view) = nullptr) {
      ToolFormat& format = f.emplace_back();
      format.name = name;
      format.sections = std::move(sections);
      format.parse = parse;
      format.begins = begins;
      return f.size() - 1;
    };
    constexpr std::string_view kFunction = "<function=";
    add("tool_call", {{"<tool_call>", "</tool_call>"}, {kFunction, "</function>", kFunction.size()}}, payload::tool_call_tag,
        payload::tool_call_tag_begins);
    add("seed", {{"<seed:tool_call>", "</seed:tool_call>"}}, payload::tool_call_tag, payload::tool_call_tag_begins);
    add("minimax_m2", {{"<minimax:tool_call>", "</minimax:tool_call>"}}, payload::invokes);
    constexpr std::string_view kDeepseekCall = "<｜tool▁call▁begin｜>";
    add("deepseek", {{"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"}, {kDeepseekCall, "<｜tool▁call▁end｜>", kDeepseekCall.size()}},
        payload::deepseek);
    add("deepseek_dsml", {{"<｜DSML｜function_calls>", "</｜DSML｜function_calls>"}, {"<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"}},
        payload::dsml);
    constexpr std::string_view kKimiCall = "<|tool_call_begin|>";
    add("kimi_k2", {{"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"}, {kKimiCall, "<|tool_call_end|>", kKimiCall.size()}},
        payload::kimi);
    f[add("llama3_json", {{"<|python_tag|>", ""}}, payload::json_lines, payload::json_begins)].whole_answer = '{';
    f[add("pythonic",
          {{"<|python_start|>", "<|python_end|>"}, {"<|tool_call_start|>", "<|tool_call_end|>"}, {"<function_calls>", "</function_calls>"}},
          payload::python, payload::python_begins)]
        .whole_answer = '[';
    f[add("mistral", {{"[TOOL_CALLS]", ""}}, payload::mistral)].nine_letter_ids = true;
    add("gemma4", {{"<|tool_call>", "<tool_call|>"}}, payload::gemma);
    add("functiongemma", {{"<start_function_call>", "<end_function_call>"}}, payload::gemma);
    add("granite3", {{"<|tool_call|>", ""}}, payload::json_array, payload::json_begins);
    add("phi4_mini", {{"functools[", "", 1}}, payload::json_array, payload::json_begins);
    add("hunyuan", {{"<tool_calls>", "</tool_calls>"}}, payload::json_array, payload::json_begins);
    add("nemotron2", {{"<TOOLCALL>", "</TOOLCALL>"}}, payload::json_array, payload::json_begins);
    ToolFormat& harmony = f.emplace_back();
    harmony.name = "harmony";
    harmony.harmony = true;
    return f;
  }();
  return formats;
}

constexpr ReasoningFormat kReasoning[] = {{"think", "<think>", "</think>", ""},
                                          {"mistral", "[THINK]", "[/THINK]", ""},
                                          {"gemma4", "<|channel>", "<channel|>", "thought"},
                                          {"seed", "<seed:think>", "</seed:think>", ""},
                                          {"longcat", "<longcat_think>", "</longcat_think>", ""}};

// Names under which other programs know these formats.
constexpr std::pair<std::string_view, std::string_view> kAliases[] = {{"hermes", "tool_call"},
                                                                      {"qwen", "tool_call"},
                                                                      {"qwen3_coder", "tool_call"},
                                                                      {"qwen3_xml", "tool_call"},
                                                                      {"glm45", "tool_call"},
                                                                      {"glm47", "tool_call"},
                                                                      {"seed_oss", "seed"},
                                                                      {"minimax", "minimax_m2"},
                                                                      {"deepseek_v3", "deepseek"},
                                                                      {"deepseek_v31", "deepseek"},
                                                                      {"deepseek_v32", "deepseek_dsml"},
                                                                      {"kimi", "kimi_k2"},
                                                                      {"llama", "llama3_json"},
                                                                      {"llama4_pythonic", "pythonic"},
                                                                      {"lfm2", "pythonic"},
                                                                      {"granite", "granite3"},
                                                                      {"gpt_oss", "harmony"},
                                                                      {"openai", "harmony"}};

// What in a template tells a format: the first that is found, from the most telling on.
constexpr std::pair<std::string_view, std::string_view> kSigns[] = {{"<|tool_calls_section_begin|>", "kimi_k2"},
                                                                    {"｜DSML｜", "deepseek_dsml"},
                                                                    {"<｜tool▁calls▁begin｜>", "deepseek"},
                                                                    {"<minimax:tool_call>", "minimax_m2"},
                                                                    {"<seed:tool_call>", "seed"},
                                                                    {"[TOOL_CALLS]", "mistral"},
                                                                    {"<|tool_call>", "gemma4"},
                                                                    {"<start_function_call>", "functiongemma"},
                                                                    {"<|tool_call_start|>", "pythonic"},
                                                                    {"<|python_start|>", "pythonic"},
                                                                    {"<function_calls>", "pythonic"},
                                                                    {"<TOOLCALL>", "nemotron2"},
                                                                    {"<tool_call>", "tool_call"},
                                                                    {"<tool_calls>", "hunyuan"},
                                                                    {"<|tool_call|>", "granite3"},
                                                                    {"functools", "phi4_mini"},
                                                                    {"<|python_tag|>", "llama3_json"},
                                                                    {"\"parameters\": dictionary of argument name", "llama3_json"}};

template <class List>
std::string names_of(const List& list) {
  std::string names = "auto, none";
  for (const auto& format : list) names += ", " + std::string(format.name);
  return names;
}

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

}  // namespace

std::span<const ToolFormat> tool_formats() { return table(); }
std::span<const ReasoningFormat> reasoning_formats() { return kReasoning; }

const ToolFormat* tool_format(std::string_view name) {
  if (name == "none") return nullptr;
  for (const auto& [alias, real] : kAliases)
    if (name == alias) name = real;
  for (const ToolFormat& format : table())
    if (format.name == name) return &format;
  throw Error(Code::invalid_argument, "there is no tool parser \"" + std::string(name) + "\"", "--tool-parser",
              "choose one of " + names_of(table()));
}

const ReasoningFormat* reasoning_format(std::string_view name) {
  if (name == "none") return nullptr;
  for (const ReasoningFormat& format : kReasoning)
    if (format.name == name) return &format;
  throw Error(Code::invalid_argument, "there is no reasoning parser \"" + std::string(name) + "\"", "--reasoning-parser",
              "choose one of " + names_of(reasoning_formats()));
}

const ToolFormat* detect_tool_format(std::string_view chat_template) {
  if (has(chat_template, "<|channel|>") && has(chat_template, "<|message|>")) return tool_format("harmony");
  for (const auto& [sign, name] : kSigns)
    if (has(chat_template, sign)) return tool_format(name);
  return nullptr;
}

const ReasoningFormat* detect_reasoning_format(std::string_view chat_template) {
  for (const ReasoningFormat& format : kReasoning)
    if (has(chat_template, format.open) || has(chat_template, format.close)) return &format;
  return nullptr;
}

}  // namespace verbund::text
