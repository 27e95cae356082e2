// What config.json says about quantised modules (MLX: `quantization`, duplicated as `quantization_config`).
// Value type; any thread.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace verbund::formats {

struct ModuleQuantization {
  int bits = 0;
  int group = 0;
  std::string mode;  // "affine", "mxfp4", ...
};

class QuantizationConfig {
 public:
  QuantizationConfig() = default;
  // Throws unimplemented naming the method of other quantisers (fp8, awq, gptq, compressed-tensors, ...), and data_loss
  // for values of wrong kinds.
  QuantizationConfig(const nlohmann::json& config, const std::string& where);

  // How `module` (its path without ".weight") is quantised if it is: the override under its own name, else the general
  // rule. Throws data_loss if config.json says that it is not, or says nothing at all.
  const ModuleQuantization& of(std::string_view module) const;

 private:
  std::string where_;
  std::optional<ModuleQuantization> general_;
  std::map<std::string, std::optional<ModuleQuantization>, std::less<>> overrides_;  // nullopt: explicitly not quantised
};

}  // namespace verbund::formats
