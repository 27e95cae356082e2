// A stream of pieces must be valid UTF-8 throughout and, joined, exactly what decoding everything at once gives: for ordinary text
// and for random ids, where characters break in every possible way.
#include <gtest/gtest.h>

#include <random>

#include "text/fixtures.h"
#include "text/tokenizer.h"

namespace verbund::text::test {
namespace {

bool is_utf8(std::string_view text) {
  try {
    (void)nlohmann::json(std::string(text)).dump();  // throws on invalid UTF-8
    return true;
  } catch (const nlohmann::json::exception&) { return false; }
}

// Feeds ids one by one; checks each piece; returns them joined.
std::string streamed(Detokenizer& detokenizer, const Ids& ids) {
  std::string text;
  for (int32_t id : ids) {
    const std::string piece = detokenizer.push(id);
    EXPECT_TRUE(is_utf8(piece));
    text += piece;
  }
  const std::string rest = detokenizer.finish();
  EXPECT_TRUE(is_utf8(rest));
  return text + rest;
}

std::vector<std::shared_ptr<const Tokenizer>> tokenizers() {
  const Json pieces = stored("sentence_piece.json")["cases"]["prefix"]["tokenizer"];
  auto with_decoder = [&](const Json& decoder) {
    Json document = pieces;
    document["decoder"] = decoder;
    return Tokenizer::from_json(document.dump());
  };
  const Json replace = {{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}};
  const Json fallback = {{"type", "ByteFallback"}}, fuse = {{"type", "Fuse"}};
  auto sequence = [](std::vector<Json> decoders) { return Json{{"type", "Sequence"}, {"decoders", decoders}}; };
  auto strip = [](int start, int stop) { return Json{{"type", "Strip"}, {"content", " "}, {"start", start}, {"stop", stop}}; };
  return {
      byte_level("gpt-2"),
      byte_level("qwen2"),
      sentence_piece("prefix"),
      sentence_piece("no_prefix"),
      with_decoder({{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}, {"split", true}}),
      with_decoder({{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "never"}, {"split", true}}),
      with_decoder(nullptr),
      with_decoder({{"type", "WordPiece"}, {"prefix", "\u2581"}, {"cleanup", true}}),
      with_decoder({{"type", "BPEDecoder"}, {"suffix", "e"}}),
      with_decoder({{"type", "CTC"}, {"pad_token", "<unk>"}, {"word_delimiter_token", "\u2581"}, {"cleanup", true}}),
      with_decoder(sequence({replace, fallback, fuse, strip(2, 0)})),
      with_decoder(sequence({strip(1, 0), replace, fallback})),
      with_decoder(sequence({fallback, fuse, replace})),  // not token by token: the text comes at the end
  };
}

TEST(Detokenizer, PiecesOfTheCorpusJoinToTheWholeText) {
  for (const auto& tokenizer : tokenizers()) {
    Detokenizer detokenizer(tokenizer, false);  // finish() begins a new text, so that one serves for all
    for (const std::string& text : corpus()) {
      const Ids ids = tokenizer->encode(text, {});
      EXPECT_EQ(streamed(detokenizer, ids), tokenizer->decode(ids, false)) << text;
    }
  }
}

TEST(Detokenizer, PiecesOfRandomIdsJoinToTheWholeText) {
  const uint32_t seed = 20240607;
  size_t number = 0;
  for (const auto& tokenizer : tokenizers()) {
    std::mt19937 random(seed);
    const auto below = [&](size_t n) { return static_cast<int32_t>(random() % n); };
    for (int round = 0; round < 200; ++round) {
      Ids ids(static_cast<size_t>(1 + below(40)));
      const bool bytes_only = below(2);
      for (int32_t& id : ids) id = bytes_only ? below(262) : below(tokenizer->size() + 4) - 1;
      for (bool skip : {true, false}) {
        Detokenizer detokenizer(tokenizer, skip);
        ASSERT_EQ(streamed(detokenizer, ids), tokenizer->decode(ids, skip))
            << "tokenizer " << number << ", seed " << seed << ", round " << round << ": " << nlohmann::json(ids).dump();
      }
    }
    ++number;
  }
}

TEST(Detokenizer, TextComesAsSoonAsItIsCertain) {
  const auto tokenizer = byte_level("gpt-2");
  const std::string text = "Hi \U0001F44D\U0001F3FD!";
  Detokenizer detokenizer(tokenizer);
  size_t sent = 0, known = 0;
  for (int32_t id : tokenizer->encode(text, {})) {
    for (char c : tokenizer->token_of(id)) known += (c & 0xc0) != 0x80;  // one character spells one byte
    sent += detokenizer.push(id).size();
    EXPECT_LE(sent, known);
    EXPECT_LE(known - sent, 3u) << "only an incomplete character is held";
  }
  EXPECT_EQ(sent, text.size());
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST(Detokenizer, ABrokenCharacterIsReplacedWhenNoByteCanMendIt) {
  const auto tokenizer = byte_level("gpt-2");
  const int32_t lead = *tokenizer->id_of("\u00f0");  // byte f0 opens four bytes
  const int32_t next = *tokenizer->id_of("\u0141");  // byte 9f
  const int32_t letter = *tokenizer->id_of("A");
  Detokenizer detokenizer(tokenizer);
  EXPECT_EQ(detokenizer.push(lead), "");
  EXPECT_EQ(detokenizer.push(next), "");
  EXPECT_EQ(detokenizer.push(letter), "\uFFFDA");
  EXPECT_EQ(detokenizer.push(lead), "");
  EXPECT_EQ(detokenizer.finish(), "\uFFFD");
  EXPECT_EQ(detokenizer.push(letter), "A");
}

TEST(Detokenizer, TheFirstSpaceGoesOnlyWhereTheDecoderSaysSo) {
  for (const auto& [name, expected] : {std::pair{"prefix", "x y"}, {"no_prefix", " x y"}}) {
    const auto tokenizer = sentence_piece(name);
    Detokenizer detokenizer(tokenizer);
    std::string text;
    for (const char* piece : {"\u2581", "x", "\u2581", "y"}) text += detokenizer.push(*tokenizer->id_of(piece));
    EXPECT_EQ(text + detokenizer.finish(), expected) << name;
  }
}

TEST(Detokenizer, LongTextsTakeLinearTime) {
  const auto tokenizer = sentence_piece("no_prefix");
  const Ids euro = {*tokenizer->id_of("<0xE2>"), *tokenizer->id_of("<0x82>"), *tokenizer->id_of("<0xAC>")};
  Detokenizer detokenizer(tokenizer);
  const size_t count = 200'000;  // a single run of byte tokens, the worst case: it is certain only at its end
  for (size_t i = 0; i < count; ++i)
    for (int32_t id : euro) ASSERT_EQ(detokenizer.push(id), "");
  const std::string text = detokenizer.finish();
  EXPECT_EQ(text.size(), 3 * count);
  EXPECT_EQ(text.substr(0, 6), "\u20ac\u20ac");
}

}  // namespace
}  // namespace verbund::text::test
