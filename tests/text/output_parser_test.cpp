// Taking model output apart: every family's markup, whole and in every kind of pieces, with marks as tokens and as plain text.
#include "text/output_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"

namespace verbund::text {
namespace {

using Json = nlohmann::ordered_json;
using Kind = OutputPiece::Kind;

Tools tools() {
  const Json any = {{"type", "object"}};
  return Tools(std::vector<Tool>{{"get_weather",
                                  {{"type", "object"},
                                   {"properties",
                                    {{"city", {{"type", "string"}}},
                                     {"days", {{"type", "integer"}}},
                                     {"code", {{"type", "string"}}},
                                     {"exact", {{"type", "boolean"}}},
                                     {"where", {{"type", "object"}}},
                                     {"maybe", {{"type", {"integer", "null"}}}}}}}},
                                 {"now", any}});
}

struct Result {
  std::string content, reasoning;
  std::vector<ParsedCall> calls;
  bool operator==(const Result& o) const {
    const auto same = [](const ParsedCall& a, const ParsedCall& b) {
      return a.id == b.id && a.name == b.name && a.arguments == b.arguments;
    };
    return content == o.content && reasoning == o.reasoning && std::equal(calls.begin(), calls.end(), o.calls.begin(), o.calls.end(), same);
  }
};

std::ostream& operator<<(std::ostream& out, const Result& r) {
  out << "content " << Json(r.content) << ", reasoning " << Json(r.reasoning);
  for (const ParsedCall& c : r.calls) out << ", call " << c.id << " " << c.name << " " << c.arguments;
  return out;
}

struct Sample {
  std::string name, tools, reasoning, text;
  Result want;
  bool in_reasoning = false, cut = false;
};

// Everything that is one token in the models that have it.
const std::vector<std::string> kTokens{"<tool_call>",
                                       "</tool_call>",
                                       "<think>",
                                       "</think>",
                                       "[THINK]",
                                       "[/THINK]",
                                       "<|tool_calls_section_begin|>",
                                       "<|tool_calls_section_end|>",
                                       "<|tool_call_begin|>",
                                       "<|tool_call_argument_begin|>",
                                       "<|tool_call_end|>",
                                       "<｜tool▁calls▁begin｜>",
                                       "<｜tool▁calls▁end｜>",
                                       "<｜tool▁call▁begin｜>",
                                       "<｜tool▁sep｜>",
                                       "<｜tool▁call▁end｜>",
                                       "[TOOL_CALLS]",
                                       "[ARGS]",
                                       "[CALL_ID]",
                                       "<|tool_call>",
                                       "<tool_call|>",
                                       "<|\"|>",
                                       "<start_function_call>",
                                       "<end_function_call>",
                                       "<escape>",
                                       "<|python_tag|>",
                                       "<|python_start|>",
                                       "<|python_end|>",
                                       "<|tool_call_start|>",
                                       "<|tool_call|>",
                                       "<|start|>",
                                       "<|channel|>",
                                       "<|message|>",
                                       "<|constrain|>",
                                       "<|end|>",
                                       "<|return|>",
                                       "<|call|>",
                                       "<seed:think>",
                                       "</seed:think>",
                                       "<seed:tool_call>",
                                       "</seed:tool_call>",
                                       "<minimax:tool_call>",
                                       "</minimax:tool_call>",
                                       "<|channel>",
                                       "<channel|>",
                                       "<tool_calls>",
                                       "</tool_calls>"};

struct Step {
  std::string text;
  bool mark;
};

// The sample as a model gives it: marks that are tokens by themselves, the rest cut behind the bytes in `cuts`.
std::vector<Step> steps_of(const std::string& text, bool tokens, const std::function<bool(size_t)>& cut_before) {
  std::vector<Step> steps;
  bool fresh = true;
  for (size_t i = 0; i < text.size();) {
    if (tokens) {
      const auto it = std::find_if(kTokens.begin(), kTokens.end(), [&](const std::string& t) { return text.compare(i, t.size(), t) == 0; });
      if (it != kTokens.end()) {
        steps.push_back({*it, true});
        i += it->size();
        fresh = true;
        continue;
      }
    }
    size_t next = i + 1;
    while (next < text.size() && (static_cast<unsigned char>(text[next]) & 0xc0) == 0x80) ++next;  // whole characters
    if (fresh || cut_before(i)) steps.push_back({"", false});
    fresh = false;
    steps.back().text += text.substr(i, next - i);
    i = next;
  }
  return steps;
}

Result parsed(const Sample& s, bool tokens, const std::vector<Step>& steps) {
  OutputFormat format;
  format.tools = tool_format(s.tools);
  format.reasoning = reasoning_format(s.reasoning);
  if (tokens) format.is_token = [](std::string_view mark) { return std::find(kTokens.begin(), kTokens.end(), mark) != kTokens.end(); };
  const auto parser = make_output_parser(format, tools(), s.in_reasoning);
  Result r;
  size_t decided = 0, content_end = 0, given = 0;
  const auto add = [&](const std::vector<OutputPiece>& pieces) {
    for (const OutputPiece& p : pieces) {
      EXPECT_LE(p.begin, p.end);
      if (p.kind == Kind::content) {
        EXPECT_GE(p.begin, content_end);
        EXPECT_EQ(p.end - p.begin, p.text.size());
        content_end = p.end;
        r.content += p.text;
      }
      if (p.kind == Kind::reasoning) r.reasoning += p.text;
      if (p.kind == Kind::call) r.calls.push_back(p.call);
    }
    EXPECT_GE(parser->decided(), decided);
    decided = parser->decided();
    EXPECT_LE(decided, given);
  };
  for (const Step& step : steps) {
    if (!step.mark) given += step.text.size();
    add(step.mark ? parser->mark(step.text) : parser->push(step.text));
  }
  add(parser->finish(s.cut));
  EXPECT_EQ(decided, given) << "after the end everything is decided";
  return r;
}

std::vector<Sample> samples() {
  const ParsedCall berlin{"", "get_weather", R"({"city":"Berlin"})"}, now{"", "now", "{}"};
  const std::string hermes = R"(<tool_call>
{"name": "get_weather", "arguments": {"city": "Berlin"}}
</tool_call>)";
  std::vector<Sample> s{
      {"plain", "tool_call", "think", "Just a text, 2 < 3 & <b>bold</b>.", {"Just a text, 2 < 3 & <b>bold</b>.", "", {}}},
      {"nothing", "tool_call", "think", "", {"", "", {}}},
      {"blanks", "tool_call", "think", " \n ", {" \n ", "", {}}},
      {"hermes", "hermes", "think", "Sure " + hermes, {"Sure ", "", {berlin}}},
      {"hermes_two", "hermes", "think", hermes + "\n<tool_call>{\"name\":\"now\"}</tool_call>\n", {"", "", {berlin, now}}},
      {"hermes_text_after", "hermes", "think", hermes + "\nDone.", {"\nDone.", "", {berlin}}},
      {"hermes_string_arguments",
       "hermes",
       "think",
       R"(<tool_call>{"name":"get_weather","arguments":"{\"city\":\"Berlin\"}"}</tool_call>)",
       {"", "", {berlin}}},
      {"hermes_braces_in_strings",
       "hermes",
       "think",
       R"(<tool_call>{"name":"get_weather","arguments":{"city":"}\" {[ é 日本"}}</tool_call>)",
       {"", "", {{"", "get_weather", R"({"city":"}\" {[ é 日本"})"}}}},
      {"hermes_malformed",
       "hermes",
       "think",
       "A<tool_call>{\"name\": oops}</tool_call>B",
       {"A<tool_call>{\"name\": oops}</tool_call>B", "", {}}},
      {"hermes_unknown_tool",
       "hermes",
       "think",
       "<tool_call>{\"name\":\"rm\",\"arguments\":{}}</tool_call>",
       {"<tool_call>{\"name\":\"rm\",\"arguments\":{}}</tool_call>", "", {}}},
      {"hermes_prose_about_it", "hermes", "think", "Write `<tool_call>` first. " + hermes, {"Write `<tool_call>` first. ", "", {berlin}}},
      {"hermes_unfinished_and_cut", "hermes", "think", "Ok <tool_call>{\"name\":\"get_we", {"Ok ", "", {}}, false, true},
      {"hermes_no_end_mark", "hermes", "think", "<tool_call>{\"name\":\"now\",\"arguments\":{}}", {"", "", {now}}},
      {"held_back_prefix", "hermes", "think", "a <tool", {"a <tool", "", {}}},
      {"thinks", "hermes", "think", "<think>\nHm, <b>.\n</think>\n\nAnswer", {"Answer", "Hm, <b>.", {}}},
      {"thinks_in_prompt", "hermes", "think", "done</think>Answer", {"Answer", "done", {}}, true},
      {"thinks_to_the_end", "hermes", "think", "<think>never ends\n", {"", "never ends\n", {}}},
      {"thinks_then_calls", "hermes", "think", "<think>a</think>\n\n" + hermes, {"", "a", {berlin}}},
      {"think_in_content_is_text", "none", "think", "The tag `<think>` opens.", {"The tag `<think>` opens.", "", {}}},
      {"mistral_thinks", "mistral", "mistral", "[THINK]x[/THINK]y", {"y", "x", {}}},
      {"qwen3_coder",
       "qwen3_coder",
       "think",
       "Ok.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nBerlin\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
       "<parameter=code>\n007\n</parameter>\n<parameter=exact>\ntrue\n</parameter>\n<parameter=where>\n{\"a\": "
       "[1]}\n</parameter>\n</function>\n</tool_call>",
       {"Ok.\n", "", {{"", "get_weather", R"({"city":"Berlin","days":3,"code":"007","exact":true,"where":{"a":[1]}})"}}}},
      {"qwen3_coder_tags_in_value",
       "qwen3_coder",
       "think",
       "<tool_call><function=get_weather><parameter=code>\n<a></parameter> b\n</parameter></function></tool_call>",
       {"", "", {{"", "get_weather", R"({"code":"<a></parameter> b"})"}}}},
      {"qwen3_coder_no_outer_tag",
       "qwen3_coder",
       "think",
       "<function=get_weather>\n<parameter=city>\nnull\n</parameter>\n</function>",
       {"", "", {{"", "get_weather", R"({"city":"null"})"}}}},
      {"glm",
       "glm45",
       "think",
       "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Berlin</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</"
       "arg_value>\n</tool_call>"
       "<tool_call>now</tool_call>",
       {"", "", {{"", "get_weather", R"({"city":"Berlin","days":2})"}, now}}},
      {"minimax",
       "minimax",
       "think",
       "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">>Berlin</parameter>\n<parameter "
       "name=\"maybe\">null</parameter>\n"
       "</invoke>\n<invoke name=\"now\">\n</invoke>\n</minimax:tool_call>",
       {"", "", {{"", "get_weather", R"({"city":">Berlin","maybe":null})"}, now}}},
      {"seed",
       "seed_oss",
       "seed",
       "<seed:think>t</seed:think><seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
       {"", "t", {now}}},
      {"deepseek_v3",
       "deepseek",
       "think",
       "Hi<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": "
       "\"Berlin\"}\n```<｜tool▁call▁end｜>\n"
       "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       {"Hi", "", {berlin, now}}},
      {"deepseek_v31",
       "deepseek",
       "think",
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Berlin\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       {"", "", {berlin}}},
      {"deepseek_dsml",
       "deepseek_v32",
       "think",
       "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" "
       "string=\"true\">1</｜DSML｜parameter>\n"
       "<｜DSML｜parameter name=\"days\" string=\"false\">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
       {"", "", {{"", "get_weather", R"({"city":"1","days":1})"}}}},
      {"kimi",
       "kimi_k2",
       "think",
       "I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": \"Berlin\"}"
       "<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
       {"I look.", "", {{"functions.get_weather:0", "get_weather", R"({"city":"Berlin"})"}, {"functions.now:1", "now", "{}"}}}},
      {"kimi_in_reasoning",
       "kimi_k2",
       "think",
       "I must look <|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
       "<|tool_calls_section_end|>",
       {"", "I must look", {{"functions.now:0", "now", "{}"}}},
       true},
      {"kimi_cut",
       "kimi_k2",
       "think",
       "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_call_begin|>"
       "functions.get_w",
       {"", "", {{"functions.now:0", "now", "{}"}}},
       false,
       true},
      {"llama3", "llama3_json", "none", "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Berlin\"}}", {"", "", {berlin}}},
      {"llama3_two",
       "llama3_json",
       "none",
       "<|python_tag|>{\"name\":\"now\",\"parameters\":{}}; {\"name\":\"now\",\"parameters\":{}}",
       {"", "", {now, now}}},
      {"llama3_other_json", "llama3_json", "none", "{\"answer\": 42}\n", {"{\"answer\": 42}\n", "", {}}},
      {"pythonic",
       "pythonic",
       "none",
       "<|python_start|>[get_weather(city=\"Ber\\\"lin\", days=-2, where={'a': [1, 2.5, None, True]}), now()]<|python_end|>",
       {"", "", {{"", "get_weather", R"({"city":"Ber\"lin","days":-2,"where":{"a":[1,2.5,null,true]}})"}, now}}},
      {"pythonic_whole", "pythonic", "none", "[now()]", {"", "", {now}}},
      {"pythonic_not_a_call", "pythonic", "none", "[1] is a footnote", {"[1] is a footnote", "", {}}},
      {"lfm2", "lfm2", "none", "<|tool_call_start|>[now()]<|tool_call_end|>Looking.", {"Looking.", "", {now}}},
      {"olmo3", "pythonic", "none", "<function_calls>\nget_weather(city='Berlin')\nnow()\n</function_calls>", {"", "", {berlin, now}}},
      {"mistral",
       "mistral",
       "none",
       "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Berlin\"}}, {\"name\":\"now\",\"arguments\":{}}]",
       {"", "", {berlin, now}}},
      {"mistral_v11",
       "mistral",
       "none",
       "Hm.[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Berlin\"}[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{}",
       {"Hm.", "", {berlin, {"abcdefghi", "now", "{}"}}}},
      {"gemma4",
       "gemma4",
       "gemma4",
       "<|channel>thought\nI think.<channel|><|tool_call>call:get_weather{city:<|\"|>Ber, "
       "lin}<|\"|>,days:3,where:{a:[1,<|\"|>x<|\"|>],b:true}}<tool_call|>",
       {"", "I think.", {{"", "get_weather", R"({"city":"Ber, lin}","days":3,"where":{"a":[1,"x"],"b":true}})"}}}},
      {"functiongemma",
       "functiongemma",
       "none",
       "<start_function_call>call:get_weather{city:<escape>Berlin<escape>}<end_function_call>",
       {"", "", {berlin}}},
      {"granite3", "granite", "none", "<|tool_call|>[{\"name\":\"now\",\"arguments\":{}}]", {"", "", {now}}},
      {"phi4", "phi4_mini", "none", "Let me see. functools[{\"name\": \"now\", \"arguments\": {}}]", {"Let me see. ", "", {now}}},
      {"phi4_word", "phi4_mini", "none", "import functools\nfunctools[x]", {"import functools\nfunctools[x]", "", {}}},
      {"hunyuan", "hunyuan", "none", "<tool_calls>[{\"name\":\"now\",\"arguments\":{}}]</tool_calls>", {"", "", {now}}},
      {"harmony",
       "harmony",
       "none",
       "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
       "<|constrain|>json<|message|>"
       "{\"city\":\"Berlin\"}<|call|>",
       {"", "Let me see.", {berlin}}},
      {"harmony_recipient_first", "harmony", "none", " to=functions.now<|channel|>analysis<|message|>{}<|call|>", {"", "", {now}}},
      {"harmony_final",
       "harmony",
       "none",
       "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary<|message|>Now: "
       "<|end|><|start|>assistant<|channel|>final<|message|>"
       "Four.<|return|>",
       {"Now: Four.", "a", {}}},
      {"harmony_malformed", "harmony", "none", "<|channel|>commentary to=functions.now<|message|>{oops<|call|>", {"{oops", "", {}}},
      {"harmony_without_channels", "harmony", "none", "Plain words.", {"Plain words.", "", {}}},
      {"harmony_cut", "harmony", "none", "<|channel|>commentary to=functions.now<|message|>{\"a\": 1", {"", "", {}}, false, true},
  };
  return s;
}

class OutputParsing : public ::testing::TestWithParam<Sample> {};
INSTANTIATE_TEST_SUITE_P(Samples, OutputParsing, ::testing::ValuesIn(samples()), [](const auto& info) { return info.param.name; });

bool has_plain_marks_only(const Sample& s) {
  return s.name.find("malformed") != std::string::npos || s.name.find("unknown_tool") != std::string::npos;
}

TEST_P(OutputParsing, IsTheSameInAnyPieces) {
  const Sample& s = GetParam();
  for (const bool tokens : {false, true}) {
    Result want = s.want;
    if (tokens && has_plain_marks_only(s) && s.tools == "hermes")  // what was a token is no text
      for (const std::string mark : {"<tool_call>", "</tool_call>"})
        if (const size_t at = want.content.find(mark); at != std::string::npos) want.content.erase(at, mark.size());
    if (tokens && (s.name == "hermes_prose_about_it" || s.name == "think_in_content_is_text" || s.name == "held_back_prefix"))
      continue;  // text there
    EXPECT_EQ(parsed(s, tokens, steps_of(s.text, tokens, [](size_t) { return false; })), want) << "whole, tokens " << tokens;
    EXPECT_EQ(parsed(s, tokens, steps_of(s.text, tokens, [](size_t) { return true; })), want) << "each character, tokens " << tokens;
    for (size_t cut = 1; cut < s.text.size(); ++cut)
      EXPECT_EQ(parsed(s, tokens, steps_of(s.text, tokens, [cut](size_t i) { return i == cut; })), want)
          << "cut at " << cut << ", tokens " << tokens;
    std::mt19937 random(7);
    for (int round = 0; round < 50; ++round)
      EXPECT_EQ(parsed(s, tokens, steps_of(s.text, tokens, [&](size_t) { return random() % 5 == 0; })), want)
          << "random, tokens " << tokens;
  }
}

// With marks that are tokens, the same characters from ordinary tokens are text.
TEST(OutputParsing, MarksThatAreTokensAreNotFoundInText) {
  const Sample s{"", "hermes", "think", "", {}};
  const Result r = parsed(s, true,
                          {{"Write <tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call> or <think>.", false},
                           {"<tool_call>", true},
                           {"{\"name\":\"now\",\"arguments\":{}}", false},
                           {"</tool_call>", true}});
  EXPECT_EQ(r, (Result{"Write <tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call> or <think>.", "", {{"", "now", "{}"}}}));
}

TEST(OutputParsing, UnknownSpecialTokensAreDroppedFromContent) {
  const Result r = parsed({"", "hermes", "think", "", {}}, true, {{"a", false}, {"<|im_end|>", true}, {"b", false}});
  EXPECT_EQ(r, (Result{"ab", "", {}}));
}

// Without tools the marks mean nothing; reasoning still does.
TEST(OutputParsing, WithoutToolsCallsAreContent) {
  OutputFormat format{tool_format("hermes"), reasoning_format("think"), {}};
  const auto parser = make_output_parser(format, Tools(), false);
  std::string content, reasoning;
  auto pieces = parser->push("<think>r</think><tool_call>{\"name\":\"now\"}</tool_call>");
  for (const auto& p : parser->finish(false)) pieces.push_back(p);
  for (const OutputPiece& p : pieces) (p.kind == Kind::content ? content : reasoning) += p.text;
  EXPECT_EQ(content, "<tool_call>{\"name\":\"now\"}</tool_call>");
  EXPECT_EQ(reasoning, "r");
}

// Whatever a model says: no exception, nothing lost, the same in pieces, and time that grows with the length only.
TEST(OutputParsing, AnythingGivesAResult) {
  std::mt19937 random(11);
  std::vector<std::string> words{"{\"name\":\"now\",\"arguments\":{}}",
                                 "{\"name\":",
                                 "get_weather",
                                 "\n",
                                 " ",
                                 "```json\n",
                                 "```",
                                 "\"",
                                 "}",
                                 "]",
                                 "[",
                                 "é",
                                 "<arg_key>",
                                 "</arg_key>",
                                 "<arg_value>",
                                 "</arg_value>",
                                 "<parameter=city>",
                                 "</parameter>",
                                 "<function=now>",
                                 "</function>",
                                 "call:now{",
                                 "functools[",
                                 "now()",
                                 "to=functions.now",
                                 "\\",
                                 "'"};
  words.insert(words.end(), kTokens.begin(), kTokens.end());
  for (const ToolFormat& format : tool_formats())
    for (int round = 0; round < 60; ++round) {
      Sample s{"", std::string(format.name), "think", "", {}, round % 5 == 0, round % 3 == 0};
      for (size_t n = random() % 30; n > 0; --n) s.text += words[random() % words.size()];
      for (const bool tokens : {false, true}) {
        const Result whole = parsed(s, tokens, steps_of(s.text, tokens, [](size_t) { return false; }));
        EXPECT_EQ(parsed(s, tokens, steps_of(s.text, tokens, [](size_t) { return true; })), whole) << format.name << " " << tokens << "\n"
                                                                                                   << s.text;
        if (whole.calls.empty() && !tokens && !s.cut && !format.harmony) {
          size_t letters = 0, kept = 0;  // of ordinary words
          for (const char c : s.text) letters += c == 'n';
          for (const char c : whole.content + whole.reasoning) kept += c == 'n';
          const size_t in_marks = [&] {
            size_t n = 0;
            for (const std::string mark : {"<think>", "</think>"})
              for (size_t at = s.text.find(mark); at != std::string::npos; at = s.text.find(mark, at + 1)) ++n;
            return n;
          }();
          EXPECT_GE(kept + in_marks, letters) << format.name << "\n" << s.text << "\n" << whole;
        }
      }
    }
}

TEST(OutputParsing, ManyMarksTakeLinearTime) {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += "<tool_call>{";
  const Sample s{"", "hermes", "think", text, {}};
  EXPECT_EQ(parsed(s, false, steps_of(text, false, [](size_t i) { return i % 7 == 0; })).content, text);
  const Sample deep{"", "pythonic", "none", "<|python_start|>[now(a=" + std::string(1'000'000, '[') + "<|python_end|>", {}};
  EXPECT_EQ(parsed(deep, false, steps_of(deep.text, false, [](size_t) { return false; })).content, deep.text);
}

TEST(ToolFormats, AreFoundInTemplates) {
  const auto named = [](std::string_view text) {
    const ToolFormat* format = detect_tool_format(text);
    return format ? std::string(format->name) : "none";
  };
  EXPECT_EQ(named("{% for m in messages %}{{ m.content }}{% endfor %}"), "none");
  EXPECT_EQ(named("... <tool_call>\\n{\"name\": <function-name> ..."), "tool_call");
  EXPECT_EQ(named("<|tool_calls_section_begin|>"), "kimi_k2");
  EXPECT_EQ(named("'<|start|>assistant<|channel|>final<|message|>'"), "harmony");
  EXPECT_EQ(named("<｜tool▁calls▁begin｜>"), "deepseek");
  EXPECT_EQ(detect_reasoning_format("{{ '</think>' }}")->name, "think");
  EXPECT_EQ(detect_reasoning_format("nothing"), nullptr);
}

TEST(ToolFormats, UnknownNamesListTheKnownOnes) {
  try {
    tool_format("hermes9");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::invalid_argument);
    EXPECT_THAT(std::string(e.what()), ::testing::HasSubstr("kimi_k2"));
  }
}

}  // namespace
}  // namespace verbund::text
