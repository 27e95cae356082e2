#include "engine/stop_strings.h"

#include <random>

#include <gtest/gtest.h>

#include "base/bytes.h"

namespace verbund::engine {
namespace {

using Pieces = std::vector<std::string>;

struct Outcome {
  Pieces emitted;
  std::string text;
  bool stopped;
};

Outcome run(const Pieces& stops, const Pieces& pieces) {
  StopMatcher matcher(stops);
  Outcome out{};
  const auto take = [&](std::string text) {
    EXPECT_FALSE(find_invalid_utf8(text));
    out.text += text;
    out.emitted.push_back(std::move(text));
  };
  for (const std::string& piece : pieces) take(matcher.push(piece));
  take(matcher.flush());
  out.stopped = matcher.stopped();
  return out;
}

// The definition, on the whole text: the end of the first complete stop string, byte by byte.
std::string expected(const Pieces& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops)
      if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0) longest = std::max(longest, stop.size());
    if (longest) return text.substr(0, end - longest);
  }
  return text;
}

TEST(StopStrings, SplitOverPieces) {
  const Outcome out = run({"STOP"}, {"Hi S", "TOP", " x"});
  EXPECT_EQ(out.emitted, (Pieces{"Hi ", "", "", ""}));  // "S" is never sent early
  EXPECT_TRUE(out.stopped);
}

TEST(StopStrings, HeldBackTextIsDeliveredWhenItIsNoStop) {
  EXPECT_EQ(run({"STOP"}, {"ST", "ST", "OR"}).emitted, (Pieces{"", "ST", "STOR", ""}));
  EXPECT_EQ(run({"STOP"}, {"an ST"}).emitted, (Pieces{"an ", "ST"}));
  EXPECT_EQ(run({"aab"}, {"a", "a", "a", "a", "c"}).text, "aaaac");
  EXPECT_EQ(run({"aab"}, {"a", "a", "a", "b"}).text, "a");
}

TEST(StopStrings, SeveralAndOverlapping) {
  EXPECT_EQ(run({"\n", "Alice:"}, {"Bob said hi.", " Alice", " went; Al", "ice", ": x"}).text, "Bob said hi. Alice went; ");
  EXPECT_EQ(run({"\n", "Alice:"}, {"one\ntwo"}).text, "one");
  EXPECT_EQ(run({"abc", "b"}, {"xabc"}).text, "xa");      // "b" is complete first
  EXPECT_EQ(run({"bc", "abc"}, {"xab", "c"}).text, "x");  // complete together: the longer
}

TEST(StopStrings, NoStopsIsTransparent) {
  EXPECT_EQ(run({}, {"a", "", "b"}).emitted, (Pieces{"a", "", "b", ""}));
  EXPECT_FALSE(run({}, {"a"}).stopped);
}

TEST(StopStrings, Multibyte) {
  EXPECT_EQ(run({"!"}, {"👍", "🏽", "!"}).text, "👍🏽");
  EXPECT_EQ(run({"é!"}, {"caf", "é", "?"}).emitted, (Pieces{"caf", "", "é?", ""}));
  EXPECT_EQ(run({"界。"}, {"世界", "。終"}).emitted, (Pieces{"世", "", ""}));
}

TEST(StopStrings, AnySplitGivesTheSameText) {
  std::mt19937 random(3);
  const Pieces letters{"a", "b", "ä", "界"};
  const auto word = [&](size_t max) {
    std::string s;
    for (size_t n = 1 + random() % max; n > 0; --n) s += letters[random() % letters.size()];
    return s;
  };
  int stopped = 0;
  for (int round = 0; round < 20000; ++round) {
    Pieces stops, pieces;
    for (size_t n = random() % 4; n > 0; --n) stops.push_back(word(4));
    std::string text;
    for (size_t n = random() % 8; n > 0; --n) text += pieces.emplace_back(word(3));
    const Outcome out = run(stops, pieces);
    ASSERT_EQ(out.text, expected(stops, text)) << text;
    ASSERT_EQ(out.stopped, out.text != text);
    stopped += out.stopped;
  }
  EXPECT_GT(stopped, 2000);
  EXPECT_LT(stopped, 18000);
}

}  // namespace
}  // namespace verbund::engine
