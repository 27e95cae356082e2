// The tools a request offers, and how values that a model writes without quotes get their type from a tool's schema. Values; any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace verbund::text {

struct Tool {
  std::string name;
  nlohmann::ordered_json parameters;  // JSON schema of an object, or null
};

class Tools {
 public:
  Tools() = default;
  explicit Tools(std::vector<Tool> list) : list_(std::move(list)) {}
  // As in requests: [{"type": "function", "function": {"name", "parameters"}}]. Others are left out.
  static Tools from_json(const nlohmann::ordered_json& tools);

  const Tool* find(std::string_view name) const;
  bool empty() const { return list_.empty(); }

  // The value that `text` stands for as parameter `parameter`: as its schema says, JSON if there is none and it parses, else the text
  // itself. A text whose schema wants a string stays as written ("007").
  static nlohmann::ordered_json typed(const Tool& tool, std::string_view parameter, std::string_view text);

 private:
  std::vector<Tool> list_;
};

}  // namespace verbund::text
