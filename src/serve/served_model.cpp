#include "serve/served_model.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>

#include "model/fields.h"

namespace verbund::serve {
namespace {

int64_t modified_at(const std::string& path) {
  std::error_code problem;
  const auto time = std::filesystem::last_write_time(path, problem);
  if (problem) return 0;
  const auto age = std::filesystem::file_time_type::clock::now() - time;
  return std::chrono::duration_cast<std::chrono::seconds>((std::chrono::system_clock::now() - age).time_since_epoch()).count();
}

SamplingDefaults defaults_of(const nlohmann::json& generation) {
  SamplingDefaults d;
  if (!generation.is_object()) return d;
  const model::Fields fields(generation);
  const auto number = [&](const char* key) -> std::optional<float> {
    return fields.has(key) ? std::optional(static_cast<float>(fields.number(key, 0))) : std::nullopt;
  };
  d.temperature = number("temperature");
  d.top_p = number("top_p");
  d.min_p = number("min_p");
  d.repetition_penalty = number("repetition_penalty");
  if (fields.has("top_k")) d.top_k = static_cast<int64_t>(fields.number("top_k", 0));
  // transformers: greedy unless do_sample says otherwise, but then it carries no temperature that anybody means.
  return d;
}

// Whether a mark is one token that no text from outside can spell.
bool is_one_token(const text::Tokenizer& tokenizer, std::string_view mark) {
  const auto alone = tokenizer.encode(mark, {.add_special = false, .parse_special = true});
  return alone.size() == 1 && alone != tokenizer.encode(mark, {.add_special = false, .parse_special = false});
}

void choose_output(ServedModel& m, const std::string& tool_parser, const std::string& reasoning_parser) {
  m.output.tools = tool_parser == "auto" ? text::detect_tool_format(m.template_source) : text::tool_format(tool_parser);
  m.output.reasoning =
      reasoning_parser == "auto" ? text::detect_reasoning_format(m.template_source) : text::reasoning_format(reasoning_parser);
  m.output.is_token = [tokenizer = m.tokenizer](std::string_view mark) { return is_one_token(*tokenizer, mark); };
  const auto note = [&m](std::string_view mark) {
    if (!mark.empty() && m.output.is_token(mark)) m.marks.emplace(*m.tokenizer->id_of(mark), mark);
  };
  if (m.output.reasoning) note(m.output.reasoning->open), note(m.output.reasoning->close);
  if (m.output.tools)
    for (const text::ToolSection& section : m.output.tools->sections) note(section.open), note(section.close);
}

}  // namespace

bool ServedModel::is_called(std::string_view name) const {
  return name == id || name == "default" || std::find(aliases.begin(), aliases.end(), name) != aliases.end();
}

ServedModel make_served_model(const std::string& id, formats::ModelFiles& files, const model::DecoderSpec& spec,
                              const std::string& tool_parser, const std::string& reasoning_parser) {
  ServedModel m;
  m.id = id;
  m.created = modified_at(files.path);
  m.bytes_on_disk = files.bytes_on_disk;
  m.family = spec.family;
  m.container = files.container == formats::Container::gguf ? "gguf" : "safetensors";
  std::map<std::string, uint64_t> stored;
  for (const formats::TensorInfo& t : files.tensors->tensors()) {
    const uint64_t elements = uint64_t{t.rows()} * t.cols();
    m.parameters += elements;
    stored[t.stored] += elements;
  }
  const auto most = std::max_element(stored.begin(), stored.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most != stored.end()) m.quantisation = most->first;
  m.defaults = defaults_of(files.generation_config);
  model::ModelText text = model::load_text(files, spec);
  m.tokenizer = text.tokenizer;
  if (text.chat_template) {
    m.chat_template.emplace(*text.chat_template);
    m.template_source = *text.chat_template;
  }
  m.bos_token = text.bos_token;
  m.eos_token = text.eos_token;
  m.eos = text.eos;
  choose_output(m, tool_parser, reasoning_parser);
  m.vocabulary = std::min(text.tokenizer->size(), spec.vocabulary);
  return m;
}

}  // namespace verbund::serve
