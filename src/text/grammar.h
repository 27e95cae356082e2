// Grammar-constrained decoding with llguidance: which tokens may come next. The engine masks logits with it.
// Grammar: immutable, any thread. Matcher: one sequence, one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace verbund::text {

// The tokenizer as llguidance sees it (a trie of all tokens); made once per model.
class GrammarEnvironment {
 public:
  GrammarEnvironment(std::shared_ptr<const Tokenizer> tokenizer, size_t vocabulary_size, std::span<const int32_t> eos);
  ~GrammarEnvironment();
  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

enum class GrammarKind { json_schema, regex, lark };

class Matcher {
 public:
  // Throws invalid_argument with the grammar's error.
  Matcher(const GrammarEnvironment& environment, GrammarKind kind, std::string_view source);
  ~Matcher();
  Matcher(Matcher&&) noexcept;
  Matcher& operator=(Matcher&&) noexcept;
  void allowed(std::span<uint32_t> bit_mask);  // bit i set: token i may come next; (vocabulary_size + 31) / 32 words
  void accept(int32_t id);                     // throws invalid_argument if it was not allowed
  bool finished() const;                       // only an end token may come

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace verbund::text
