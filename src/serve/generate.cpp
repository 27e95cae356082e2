#include "serve/generate.h"

#include <ctime>

#include "base/unix.h"
#include "serve/http.h"

namespace verbund::serve {

std::string sse(const nlohmann::ordered_json& data, std::string_view event) {
  std::string frame;
  if (!event.empty()) frame.append("event: ").append(event).append("\n");
  return frame + "data: " + json_text(data) + "\n\n";
}

std::string random_id(std::string_view prefix, size_t length) {
  static constexpr char kLetters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  std::string id(prefix);
  for (size_t i = 0; i < length; i += 8)
    for (uint64_t r = random_u64(), k = 0; k < 8 && i + k < length; ++k, r /= 62) id += kLetters[r % 62];
  return id;
}

int64_t unix_seconds() { return static_cast<int64_t>(std::time(nullptr)); }

}  // namespace verbund::serve
