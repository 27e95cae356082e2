// Grammars over small vocabularies: whatever allowed tokens are taken, in whatever order, the text keeps to the grammar.
#include "text/grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <random>

#include "base/error.h"
#include "text/fixtures.h"

namespace verbund::text::test {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kEos = 2;

struct Model {
  std::shared_ptr<const Tokenizer> tokenizer;
  size_t vocabulary_size;
  GrammarEnvironment environment;

  // A model's head often has more rows than the tokenizer has tokens; those may never be allowed.
  explicit Model(std::shared_ptr<const Tokenizer> t)
      : tokenizer(std::move(t)),
        vocabulary_size(tokenizer->size() + 37),
        environment(tokenizer, vocabulary_size, std::vector<int32_t>{kEos}) {}

  Ids allowed(Matcher& matcher) const {
    std::vector<uint32_t> mask((vocabulary_size + 31) / 32, 0xffffffff);
    matcher.allowed(mask);
    Ids ids;
    for (size_t id = 0; id < mask.size() * 32; ++id)
      if (mask[id / 32] >> (id % 32) & 1) ids.push_back(static_cast<int32_t>(id));
    return ids;
  }

  // Takes random allowed tokens, and the end as soon as it is allowed after `tokens` steps.
  std::string random_text(GrammarKind kind, std::string_view source, uint32_t seed, int tokens) const {
    std::mt19937 random(seed);
    Matcher matcher(environment, kind, source);
    Ids taken;
    for (int step = 0; step < 400; ++step) {
      const Ids ids = allowed(matcher);
      EXPECT_FALSE(ids.empty());
      if (ids.empty()) break;
      for (int32_t id : ids) EXPECT_LT(static_cast<size_t>(id), tokenizer->size());
      const bool may_end = std::find(ids.begin(), ids.end(), kEos) != ids.end();
      // Past the wanted length the shortest tokens are taken, so that strings close and numbers end.
      int32_t id = ids[random() % ids.size()];
      if (step >= tokens) {
        if (may_end) break;
        id = *std::min_element(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return closeness(a) < closeness(b); });
      }
      if (id == kEos) break;
      matcher.accept(id);
      taken.push_back(id);
    }
    return tokenizer->decode(taken, true);
  }

  // What brings a JSON text to its end: closing and separating characters, then digits and letters, white space last.
  int closeness(int32_t id) const {
    const std::string text = tokenizer->decode(Ids{id}, true);
    if (text.empty() || std::isspace(static_cast<unsigned char>(text[0]))) return 1000;
    const size_t closing = std::string("\"}],:").find(text[0]);
    return static_cast<int>(text.size()) * 10 + (closing == std::string::npos ? 9 : static_cast<int>(closing));
  }
};

const char* const kSchema = R"({
  "type": "object",
  "properties": {
    "name": {"type": "string", "maxLength": 12},
    "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "tags": {"type": "array", "items": {"enum": ["a", "bc"]}, "maxItems": 3},
    "ok": {"type": "boolean"}
  },
  "required": ["name", "age", "tags", "ok"],
  "additionalProperties": false
})";

void expect_matches_schema(const std::string& text) {
  SCOPED_TRACE(text);
  const nlohmann::json value = nlohmann::json::parse(text, nullptr, false);
  ASSERT_TRUE(value.is_object());
  ASSERT_EQ(value.size(), 4u);
  ASSERT_TRUE(value.at("name").is_string());
  ASSERT_TRUE(value.at("age").is_number_integer());
  EXPECT_GE(value.at("age").get<int>(), 0);
  EXPECT_LE(value.at("age").get<int>(), 150);
  EXPECT_LE(value.at("tags").size(), 3u);
  for (const auto& tag : value.at("tags")) EXPECT_TRUE(tag == "a" || tag == "bc");
  EXPECT_TRUE(value.at("ok").is_boolean());
}

TEST(Grammar, AJsonSchemaHoldsForAnyChoiceOfAllowedTokens) {
  for (const auto& tokenizer : {byte_level("smollm"), sentence_piece("no_prefix")}) {
    const Model model(tokenizer);
    for (uint32_t seed = 1; seed <= 10; ++seed) expect_matches_schema(model.random_text(GrammarKind::json_schema, kSchema, seed, 20));
  }
}

TEST(Grammar, ARegexHolds) {
  const Model model(byte_level("gpt-2"));
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    const std::string text = model.random_text(GrammarKind::regex, "(yes|no), [0-9]{2,4}!", seed, 3);
    const size_t digits = text.find(", ") + 2;
    EXPECT_THAT(text.substr(0, digits), ::testing::AnyOf("yes, ", "no, "));
    EXPECT_EQ(text.find_first_not_of("0123456789", digits), text.size() - 1) << text;
    EXPECT_EQ(text.back(), '!');
    EXPECT_GE(text.size() - 1 - digits, 2u) << text;
    EXPECT_LE(text.size() - 1 - digits, 4u) << text;
  }
}

TEST(Grammar, ALarkGrammarHolds) {
  const Model model(byte_level("gpt-2"));
  const char* grammar = "start: item (\"+\" item)*\nitem: NUMBER | \"(\" start \")\"\nNUMBER: /[0-9]{1,3}/\n";
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    const std::string text = model.random_text(GrammarKind::lark, grammar, seed, 6);
    int depth = 0;
    for (char c : text) {
      depth += (c == '(') - (c == ')');
      EXPECT_GE(depth, 0) << text;
      EXPECT_NE(std::string("0123456789+()").find(c), std::string::npos) << text;
    }
  }
}

TEST(Grammar, RefusesATokenThatIsNotAllowedAndStaysUsable) {
  const Model model(byte_level("gpt-2"));
  Matcher matcher(model.environment, GrammarKind::regex, "ab");
  const int32_t a = *model.tokenizer->id_of("a"), b = *model.tokenizer->id_of("b");
  EXPECT_FALSE(matcher.finished());
  EXPECT_THROW(matcher.accept(b), Error);
  EXPECT_THROW(matcher.accept(-1), Error);
  EXPECT_THROW(matcher.accept(static_cast<int32_t>(model.vocabulary_size)), Error);
  matcher.accept(a);
  EXPECT_EQ(model.allowed(matcher), Ids{b});
  matcher.accept(b);
  EXPECT_TRUE(matcher.finished());
  EXPECT_EQ(model.allowed(matcher), Ids{kEos});
  EXPECT_THROW(matcher.accept(a), Error);
  matcher.accept(kEos);
}

TEST(Grammar, TextNeverMatchesASpecialToken) {
  const Model model(byte_level("gpt-2"));
  Matcher matcher(model.environment, GrammarKind::regex, "<\\|im_start\\|>");
  for (int32_t id : model.allowed(matcher)) EXPECT_FALSE(model.tokenizer->is_special(id)) << model.tokenizer->token_of(id);
}

TEST(Grammar, BadGrammarsAreErrorsWithAReason) {
  const Model model(byte_level("gpt-2"));
  auto error_of = [&](GrammarKind kind, std::string_view source) -> std::string {
    try {
      Matcher matcher(model.environment, kind, source);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::invalid_argument);
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(error_of(GrammarKind::json_schema, "{"), HasSubstr("not JSON"));
  EXPECT_THAT(error_of(GrammarKind::json_schema, R"({"type": "nonsense"})"), HasSubstr("nonsense"));
  EXPECT_THAT(error_of(GrammarKind::json_schema, R"({"type": "integer", "minimum": 3, "maximum": 1})"), HasSubstr("bad grammar"));
  EXPECT_THAT(error_of(GrammarKind::regex, "("), HasSubstr("bad grammar"));
  EXPECT_THAT(error_of(GrammarKind::lark, "start: missing_rule"), HasSubstr("missing_rule"));
  EXPECT_THROW(GrammarEnvironment(model.tokenizer, model.vocabulary_size, {}), Error);
  std::vector<uint32_t> narrow(1);
  Matcher matcher(model.environment, GrammarKind::regex, "a");
  EXPECT_THROW(matcher.allowed(narrow), Error);
}

}  // namespace
}  // namespace verbund::text::test
