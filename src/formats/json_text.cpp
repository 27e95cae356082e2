#include "formats/json_text.h"

#include "base/error.h"
#include "base/unix.h"

namespace verbund::formats {

using nlohmann::json;

json parse_json_object(std::string_view text, const std::string& where) {
  const auto limit = [&](int depth, json::parse_event_t, json&) {
    if (depth > kJsonNestingMax) throw Error(Code::data_loss, "the JSON is nested deeper than " + std::to_string(kJsonNestingMax), where);
    return true;
  };
  json value;
  try {
    value = json::parse(text, limit);
  } catch (const json::parse_error& e) {
    throw Error(Code::data_loss, "not valid JSON at byte " + std::to_string(e.byte), where, "the file is broken; fetch it again");
  } catch (const json::exception&) {  // a number beyond every range
    throw Error(Code::data_loss, "not valid JSON", where, "the file is broken; fetch it again");
  }
  if (!value.is_object()) throw Error(Code::data_loss, std::string("a JSON object is expected, found ") + value.type_name(), where);
  return value;
}

json read_json_object(const std::string& path, uint64_t bytes_max) { return parse_json_object(read_text_file(path, bytes_max), path); }

}  // namespace verbund::formats
