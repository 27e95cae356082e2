#include "text/tokenizer.h"

#include "text/border.h"

namespace verbund::text {
namespace {

constexpr std::string_view kWhere = "tokenizer";

std::vector<vbt_view> views_of(const std::vector<std::string>& texts) {
  std::vector<vbt_view> views;
  views.reserve(texts.size());
  for (const std::string& text : texts) views.push_back(view_of(text));
  return views;
}

int32_t flag_of(std::optional<bool> flag) { return flag ? *flag : -1; }

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<Handle> handle) : handle_(std::move(handle)) {}
Tokenizer::~Tokenizer() = default;

std::shared_ptr<const Tokenizer> Tokenizer::from_json(std::string_view json) {
  vbt_tokenizer* tokenizer = nullptr;
  vbt_text error{};
  check(vbt_tokenizer_from_json(view_of(json), &tokenizer, &error), error, kWhere);
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::make_unique<Handle>(tokenizer)));
}

std::shared_ptr<const Tokenizer> Tokenizer::from_gguf(const GgufVocabulary& vocabulary) {
  const std::vector<vbt_view> tokens = views_of(vocabulary.tokens);
  const std::vector<vbt_view> merges = views_of(vocabulary.merges);
  const vbt_gguf gguf{
      .model = view_of(vocabulary.model),
      .pre = view_of(vocabulary.pre),
      .tokens = tokens.data(),
      .token_count = tokens.size(),
      .token_types = vocabulary.token_types.data(),
      .token_type_count = vocabulary.token_types.size(),
      .merges = merges.data(),
      .merge_count = merges.size(),
      .scores = vocabulary.scores.data(),
      .score_count = vocabulary.scores.size(),
      .bos = vocabulary.bos.value_or(-1),
      .eos = vocabulary.eos.value_or(-1),
      .unknown = vocabulary.unknown.value_or(-1),
      .add_bos = flag_of(vocabulary.add_bos),
      .add_eos = flag_of(vocabulary.add_eos),
      .add_space_prefix = flag_of(vocabulary.add_space_prefix),
  };
  vbt_tokenizer* tokenizer = nullptr;
  vbt_text error{};
  check(vbt_tokenizer_from_gguf(&gguf, &tokenizer, &error), error, kWhere);
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::make_unique<Handle>(tokenizer)));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  vbt_ids ids{};
  vbt_text error{};
  check(vbt_tokenizer_encode(handle_->tokenizer, view_of(text), options.add_special, options.parse_special, &ids, &error), error, kWhere);
  std::vector<int32_t> copy(ids.data, ids.data + ids.size);
  vbt_ids_free(ids);
  return copy;
}

std::string Tokenizer::guard(std::string_view text, char32_t guard) const {
  vbt_text guarded{}, error{};
  check(vbt_tokenizer_guard(handle_->tokenizer, view_of(text), guard, &guarded, &error), error, kWhere);
  return take(guarded);
}

std::vector<int32_t> Tokenizer::encode_guarded(std::string_view text, char32_t guard) const {
  vbt_ids ids{};
  vbt_text error{};
  check(vbt_tokenizer_encode_guarded(handle_->tokenizer, view_of(text), guard, &ids, &error), error, kWhere);
  std::vector<int32_t> copy(ids.data, ids.data + ids.size);
  vbt_ids_free(ids);
  return copy;
}

std::string Tokenizer::bytes_of(int32_t id) const {
  vbt_text bytes{}, error{};
  check(vbt_tokenizer_bytes_of(handle_->tokenizer, id, &bytes, &error), error, kWhere);
  return take(bytes);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  vbt_text text{}, error{};
  check(vbt_tokenizer_decode(handle_->tokenizer, ids.data(), ids.size(), skip_special, &text, &error), error, kWhere);
  return take(text);
}

size_t Tokenizer::size() const { return vbt_tokenizer_size(handle_->tokenizer); }

std::optional<int32_t> Tokenizer::id_of(std::string_view token) const {
  const int32_t id = vbt_tokenizer_id_of(handle_->tokenizer, view_of(token));
  return id < 0 ? std::nullopt : std::optional(id);
}

std::string Tokenizer::token_of(int32_t id) const {
  vbt_text text{}, error{};
  check(vbt_tokenizer_token_of(handle_->tokenizer, id, &text, &error), error, kWhere);
  return take(text);
}

bool Tokenizer::is_special(int32_t id) const { return vbt_tokenizer_is_special(handle_->tokenizer, id) != 0; }

uint64_t Tokenizer::bytes_estimate() const { return vbt_tokenizer_bytes(handle_->tokenizer); }

struct Detokenizer::State {
  ~State() { vbt_detokenizer_free(detokenizer); }
  vbt_detokenizer* detokenizer = nullptr;
};

Detokenizer::Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special) : state_(std::make_unique<State>()) {
  vbt_text error{};
  check(vbt_detokenizer_new(tokenizer->handle().tokenizer, skip_special, &state_->detokenizer, &error), error, "detokenizer");
}

Detokenizer::~Detokenizer() = default;
Detokenizer::Detokenizer(Detokenizer&&) noexcept = default;
Detokenizer& Detokenizer::operator=(Detokenizer&&) noexcept = default;

std::string Detokenizer::push(int32_t id) {
  vbt_view piece{};
  vbt_text error{};
  check(vbt_detokenizer_push(state_->detokenizer, id, &piece, &error), error, "detokenizer");
  return std::string(piece.data, piece.size);
}

std::string Detokenizer::finish() {
  vbt_view piece{};
  vbt_text error{};
  check(vbt_detokenizer_finish(state_->detokenizer, &piece, &error), error, "detokenizer");
  return std::string(piece.data, piece.size);
}

}  // namespace verbund::text
