#include "formats/quantization_config.h"

#include "base/error.h"
#include "formats/byte_source.h"

namespace verbund::formats {
namespace {

using nlohmann::json;

[[noreturn]] void wrong(const std::string& what, const std::string& where) {
  throw Error(Code::data_loss, what, where, "config.json and the weights must come from the same conversion");
}

int count_at(const json& rule, const char* key, const std::string& place, const std::string& where) {
  const auto it = rule.find(key);
  if (it == rule.end() || !it->is_number_integer()) wrong(place + " lacks the integer '" + key + "'", where);
  const auto value = it->get<int64_t>();
  if (value < 1 || value > 65536) wrong(place + " has the impossible " + key + " " + std::to_string(value), where);
  return static_cast<int>(value);
}

// Without `mode` a rule means affine, also as an override in a model whose general mode is another.
ModuleQuantization parse_rule(const json& rule, const std::string& place, const std::string& where) {
  ModuleQuantization q{count_at(rule, "bits", place, where), count_at(rule, "group_size", place, where), "affine"};
  if (const auto mode = rule.find("mode"); mode != rule.end()) {
    if (!mode->is_string()) wrong(place + " has a mode that is no text", where);
    q.mode = mode->get<std::string>();
  }
  return q;
}

void refuse_foreign(const json& config, const std::string& where) {
  const auto it = config.find("quantization_config");
  if (it == config.end() || !it->is_object()) return;
  const auto method = it->find("quant_method");
  if (method == it->end()) return;
  const std::string name = method->is_string() ? method->get<std::string>() : method->dump();
  throw Error(Code::unimplemented, "the model is quantised with " + shown(name) + ", which is not read", where,
              "use the unquantised model, its MLX conversion, or a GGUF file");
}

}  // namespace

QuantizationConfig::QuantizationConfig(const json& config, const std::string& where) : where_(where) {
  auto it = config.find("quantization");
  if (it == config.end() || it->is_null()) {
    refuse_foreign(config, where);
    if (const auto text = config.find("text_config"); text != config.end() && text->is_object()) refuse_foreign(*text, where);
    it = config.find("quantization_config");
  }
  if (it == config.end() || it->is_null()) return;
  if (!it->is_object()) wrong("'quantization' in config.json is no object", where);
  general_ = parse_rule(*it, "'quantization' in config.json", where);
  for (const auto& [key, value] : it->items()) {
    if (value.is_object())
      overrides_[key] = parse_rule(value, "the quantisation of " + shown(key) + " in config.json", where);
    else if (value.is_boolean() && !value.get<bool>())
      overrides_[key] = std::nullopt;
  }
}

const ModuleQuantization& QuantizationConfig::of(std::string_view module) const {
  if (const auto it = overrides_.find(module); it != overrides_.end()) {
    if (!it->second) wrong("config.json says that " + shown(module) + " is not quantised, but it has scales", where_);
    return *it->second;
  }
  if (!general_) wrong(shown(module) + " is quantised (it has scales), but config.json has no 'quantization'", where_);
  return *general_;
}

}  // namespace verbund::formats
