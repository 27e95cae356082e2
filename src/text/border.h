// Private to src/text: how a call through rust/include/verbund_text.h becomes C++ values and verbund::Error.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "text/rust/include/verbund_text.h"
#include "text/tokenizer.h"

namespace verbund::text {

inline vbt_view view_of(std::string_view text) { return {text.data(), text.size()}; }

// Takes the text over and frees it.
inline std::string take(vbt_text text) {
  std::string copy(text.data, text.size);
  vbt_text_free(text);
  return copy;
}

inline void check(int32_t status, vbt_text error, std::string_view where) {
  if (status == VBT_OK) return;
  throw Error(status == VBT_INVALID ? Code::invalid_argument : Code::internal, take(error), std::string(where));
}

struct Tokenizer::Handle {
  explicit Handle(vbt_tokenizer* tokenizer) : tokenizer(tokenizer) {}
  ~Handle() { vbt_tokenizer_free(tokenizer); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  vbt_tokenizer* tokenizer;
};

}  // namespace verbund::text
