#include "text/grammar.h"

#include "text/border.h"

namespace verbund::text {

struct GrammarEnvironment::Impl {
  ~Impl() { vbt_grammar_free(grammar); }
  vbt_grammar* grammar = nullptr;
  size_t vocabulary_size = 0;
};

GrammarEnvironment::GrammarEnvironment(std::shared_ptr<const Tokenizer> tokenizer, size_t vocabulary_size, std::span<const int32_t> eos)
    : impl_(std::make_unique<Impl>()) {
  impl_->vocabulary_size = vocabulary_size;
  vbt_text error{};
  check(vbt_grammar_new(tokenizer->handle().tokenizer, vocabulary_size, eos.data(), eos.size(), &impl_->grammar, &error), error, "grammar");
}

GrammarEnvironment::~GrammarEnvironment() = default;

struct Matcher::Impl {
  ~Impl() { vbt_matcher_free(matcher); }
  vbt_matcher* matcher = nullptr;
  size_t words = 0;
};

Matcher::Matcher(const GrammarEnvironment& environment, GrammarKind kind, std::string_view source) : impl_(std::make_unique<Impl>()) {
  const auto& from = environment.impl();
  impl_->words = (from.vocabulary_size + 31) / 32;
  vbt_text error{};
  check(vbt_matcher_new(from.grammar, static_cast<int32_t>(kind), view_of(source), &impl_->matcher, &error), error, {});
}

Matcher::~Matcher() = default;
Matcher::Matcher(Matcher&&) noexcept = default;
Matcher& Matcher::operator=(Matcher&&) noexcept = default;

void Matcher::allowed(std::span<uint32_t> bit_mask) {
  if (bit_mask.size() != impl_->words) {
    throw Error(Code::internal,
                "mask has " + std::to_string(bit_mask.size()) + " words, the vocabulary needs " + std::to_string(impl_->words), "grammar");
  }
  vbt_text error{};
  check(vbt_matcher_allowed(impl_->matcher, bit_mask.data(), bit_mask.size(), &error), error, "grammar");
}

void Matcher::accept(int32_t id) {
  vbt_text error{};
  check(vbt_matcher_accept(impl_->matcher, id, &error), error, "grammar");
}

bool Matcher::finished() const { return vbt_matcher_finished(impl_->matcher) != 0; }

}  // namespace verbund::text
