// Text to token ids and back: Hugging Face `tokenizers` behind a C header (rust/include/verbund_text.h).
//
// Made from a tokenizer.json, or from the vocabulary that a GGUF file carries, rebuilt as the same object.
// Immutable after creation; const methods from any thread. Errors: invalid_argument (bad tokenizer file, unknown
// pre-tokeniser by name, invalid UTF-8 in), not_found.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace verbund::text {

// What GGUF metadata `tokenizer.ggml.*` says (docs: reference models.md section 3.6), as plain data.
struct GgufVocabulary {
  std::string model;  // "gpt2" (byte-level BPE), "llama" (SentencePiece BPE by scores)
  std::string pre;    // "smollm", "llama-bpe", "qwen2", ...
  std::vector<std::string> tokens;
  std::vector<int32_t> token_types;  // 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte
  std::vector<std::string> merges;   // "left right"
  std::vector<float> scores;
  std::optional<int32_t> bos, eos, unknown;
  std::optional<bool> add_bos, add_eos, add_space_prefix;
};

class Tokenizer {
 public:
  // json: text of tokenizer.json. Limits that it sets (truncation, padding) are ignored.
  static std::shared_ptr<const Tokenizer> from_json(std::string_view json);
  static std::shared_ptr<const Tokenizer> from_gguf(const GgufVocabulary& vocabulary);
  ~Tokenizer();

  struct EncodeOptions {
    bool add_special = true;  // what the post-processor adds (bos, ...)
    // Text of special tokens becomes their ids. False is for text from outside: it is ordinary text, and so is the text of added
    // tokens that steer a conversation without being flagged as special (<think>, <tool_call>, <|...|>).
    bool parse_special = true;
  };
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options) const;
  // For text from outside that a template puts among markers. guard() puts the character `guard`, which must not be in the text,
  // into whatever spells a marker; encode_guarded() takes only what is not guarded for markers and drops the guards.
  std::string guard(std::string_view text, char32_t guard) const;
  std::vector<int32_t> encode_guarded(std::string_view text, char32_t guard) const;
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  size_t size() const;  // ids below this have a token
  std::optional<int32_t> id_of(std::string_view token) const;
  std::string token_of(int32_t id) const;  // as in the vocabulary; empty if there is none
  std::string bytes_of(int32_t id) const;  // what it stands for in a text, perhaps a part of a character; empty if there is none
  bool is_special(int32_t id) const;
  uint64_t bytes_estimate() const;  // memory held, for the accountant

  struct Handle;  // the Rust object
  const Handle& handle() const { return *handle_; }

 private:
  explicit Tokenizer(std::unique_ptr<Handle> handle);
  std::unique_ptr<Handle> handle_;
};

// Turns ids into text as they come. Every piece is valid UTF-8, and the pieces joined are the text that
// decode(all ids) gives. One stream, one thread.
class Detokenizer {
 public:
  Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special = true);
  ~Detokenizer();
  Detokenizer(Detokenizer&&) noexcept;
  Detokenizer& operator=(Detokenizer&&) noexcept;
  std::string push(int32_t id);  // text that is certain now; may be empty
  std::string finish();          // the rest (incomplete characters as U+FFFD); the next push begins a new text

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace verbund::text
