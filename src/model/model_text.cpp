#include "model/model_text.h"

#include <algorithm>
#include <filesystem>

#include "base/unix.h"
#include "model/fields.h"

namespace verbund::model {
namespace {

constexpr uint64_t kTokenizerBytesMax = 256u << 20;
constexpr uint64_t kTemplateBytesMax = 4u << 20;

// Ends of a turn that GGUF files often forget to list.
constexpr const char* kEndTexts[] = {"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>"};

void add_id(std::vector<int32_t>& ids, int32_t id) {
  if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
}

template <class T>
std::vector<T> numbers(const nlohmann::json& metadata, const char* key) {
  const auto it = metadata.find(key);
  if (it == metadata.end()) return {};
  if (!it->is_array()) throw Error(Code::invalid_argument, std::string("'") + key + "' is not an array");
  std::vector<T> out;
  out.reserve(it->size());
  for (const auto& v : *it) {
    if (!v.is_number()) throw Error(Code::invalid_argument, std::string("'") + key + "' has an entry that is no number");
    out.push_back(v.get<T>());
  }
  return out;
}

text::GgufVocabulary vocabulary_of(const nlohmann::json& metadata) {
  const Fields t(metadata, "tokenizer.ggml.");
  text::GgufVocabulary v;
  v.model = t.text("model", "");
  v.pre = t.text("pre", "");
  v.tokens = t.texts("tokens");
  v.token_types = numbers<int32_t>(metadata, "tokenizer.ggml.token_type");
  v.merges = t.texts("merges");
  v.scores = numbers<float>(metadata, "tokenizer.ggml.scores");
  const auto id = [&](const char* key) -> std::optional<int32_t> {
    const auto ids = t.ids(key);
    return ids.empty() ? std::nullopt : std::optional(ids[0]);
  };
  const auto flag = [&](const char* key) -> std::optional<bool> { return t.has(key) ? std::optional(t.flag(key, false)) : std::nullopt; };
  v.bos = id("bos_token_id");
  v.eos = id("eos_token_id");
  v.unknown = id("unknown_token_id");
  v.add_bos = flag("add_bos_token");
  v.add_eos = flag("add_eos_token");
  v.add_space_prefix = flag("add_space_prefix");
  return v;
}

ModelText load_gguf(const formats::ModelFiles& files, const DecoderSpec& spec) {
  ModelText text;
  text.tokenizer = text::Tokenizer::from_gguf(vocabulary_of(files.metadata));
  if (const std::string source = Fields(files.metadata).text("tokenizer.chat_template", ""); !source.empty()) text.chat_template = source;
  text.eos = spec.eos;
  if (spec.bos) text.bos_token = text.tokenizer->token_of(*spec.bos);
  if (!spec.eos.empty()) text.eos_token = text.tokenizer->token_of(spec.eos[0]);
  for (const char* end : kEndTexts)
    if (const auto id = text.tokenizer->id_of(end)) add_id(text.eos, *id);
  return text;
}

// A token in tokenizer_config.json is a string or an object with "content".
std::string token_text(const nlohmann::json& config, const char* key) {
  const auto it = config.find(key);
  if (it == config.end()) return {};
  if (it->is_string()) return it->get<std::string>();
  return it->is_object() ? it->value("content", std::string()) : std::string();
}

// A string, or a list of {"name", "template"} of which "default" is ours.
std::optional<std::string> template_of(const nlohmann::json& config) {
  const auto it = config.find("chat_template");
  if (it == config.end()) return std::nullopt;
  if (it->is_string()) return it->get<std::string>();
  if (it->is_array())
    for (const auto& entry : *it)
      if (entry.is_object() && entry.value("name", std::string()) == "default") return entry.value("template", std::string());
  return std::nullopt;
}

ModelText load_folder(const formats::ModelFiles& files, const DecoderSpec& spec) {
  namespace fs = std::filesystem;
  const fs::path folder(files.path);
  const fs::path tokenizer = folder / "tokenizer.json";
  if (!fs::exists(tokenizer))
    throw Error(Code::not_found, "the model has no tokenizer.json", files.path,
                "other tokenizer files are not read; fetch the model in its Hugging Face layout");
  ModelText text;
  text.tokenizer = text::Tokenizer::from_json(read_text_file(tokenizer.string(), kTokenizerBytesMax));
  if (const fs::path path = folder / "tokenizer_config.json"; fs::exists(path)) {
    const auto config = nlohmann::json::parse(read_text_file(path.string(), kTokenizerBytesMax), nullptr, false);
    if (!config.is_object()) throw Error(Code::invalid_argument, "not valid JSON", path.string());
    text.chat_template = template_of(config);
    text.bos_token = token_text(config, "bos_token");
    text.eos_token = token_text(config, "eos_token");
  }
  if (const fs::path path = folder / "chat_template.jinja"; fs::exists(path))
    text.chat_template = read_text_file(path.string(), kTemplateBytesMax);

  text.eos = files.generation_config.is_object() ? Fields(files.generation_config).ids("eos_token_id") : std::vector<int32_t>();
  if (text.eos.empty()) text.eos = spec.eos;
  if (const auto id = text.tokenizer->id_of(text.eos_token); id && !text.eos_token.empty()) add_id(text.eos, *id);
  return text;
}

}  // namespace

ModelText load_text(const formats::ModelFiles& files, const DecoderSpec& spec) {
  try {
    return files.container == formats::Container::gguf ? load_gguf(files, spec) : load_folder(files, spec);
  } catch (const Error& e) { throw e.within(files.path); } catch (const nlohmann::json::exception& e) {
    throw Error(Code::invalid_argument, std::string("the tokenizer's description has a value of the wrong kind: ") + e.what(), files.path);
  }
}

uint64_t text_bytes_on_disk(const formats::ModelFiles& files) {
  if (files.container == formats::Container::safetensors) {
    std::error_code problem;
    const auto size = std::filesystem::file_size(std::filesystem::path(files.path) / "tokenizer.json", problem);
    return problem ? 0 : size;
  }
  uint64_t tensors = 0;
  for (const formats::TensorInfo& t : files.tensors->tensors()) tensors += t.stored_bytes;
  return files.bytes_on_disk - std::min(files.bytes_on_disk, tensors);
}

}  // namespace verbund::model
