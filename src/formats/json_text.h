// JSON from outside: size capped by the caller, nesting capped here, errors with file and byte. Any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace verbund::formats {

constexpr int kJsonNestingMax = 64;

// Throws data_loss: not JSON (at which byte), nested too deep, or not an object at the top.
nlohmann::json parse_json_object(std::string_view text, const std::string& where);

// A file of at most `bytes_max`. Throws also not_found and what read_text_file throws.
nlohmann::json read_json_object(const std::string& path, uint64_t bytes_max);

}  // namespace verbund::formats
