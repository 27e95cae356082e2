#include "text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <ctime>

#include "base/error.h"
#include "text/fixtures.h"

namespace verbund::text::test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

std::string source_of(const std::string& name) {
  std::ifstream file(std::string(VERBUND_TEST_DATA) + "/text/templates/" + name, std::ios::binary);
  if (!file) throw std::runtime_error("no template " + name);
  return {std::istreambuf_iterator<char>(file), {}};
}

ChatTemplate::Input input_of(const Json& conversation) {
  ChatTemplate::Input input;
  input.messages = conversation.at("messages");
  if (conversation.contains("tools")) input.tools = conversation["tools"];
  input.add_generation_prompt = conversation.at("add_generation_prompt").get<bool>();
  input.bos_token = "<s>";
  input.eos_token = "</s>";
  if (conversation.contains("extra")) input.extra = conversation["extra"];
  return input;
}

std::string render(std::string_view source, const Json& extra = Json::object()) {
  ChatTemplate::Input input;
  input.messages = {{{"role", "user"}, {"content", "hi"}}};
  input.extra = extra;
  return ChatTemplate(source).render(input);
}

std::string error_of(std::string_view source, const Json& extra = Json::object()) {
  try {
    return "no error, but the text: " + render(source, extra);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::invalid_argument) << error.what();
    return error.what();
  }
}

TEST(ChatTemplate, RendersAsTransformersDoes) {
  const Json conversations = stored("conversations.json");
  const Json cases = stored("templates.json");
  ASSERT_GE(cases.size(), 80u);
  for (const Json& expected : cases) {
    const std::string name = expected["template"].get<std::string>(), conversation = expected["conversation"].get<std::string>();
    SCOPED_TRACE(name + " over " + conversation);
    const ChatTemplate chat_template(source_of(name));
    std::string text, error;
    try {
      text = chat_template.render(input_of(conversations.at(conversation)));
    } catch (const Error& thrown) { error = thrown.what(); }
    if (expected.contains("text")) {
      EXPECT_EQ(error, "");
      EXPECT_EQ(text, expected["text"].get<std::string>());
    } else {
      EXPECT_NE(error, "") << "rendered: " << text;
      EXPECT_THAT(error, HasSubstr(expected["error"].get<std::string>()));
    }
  }
}

TEST(ChatTemplate, StrftimeNowIsLocalTime) {
  auto today = [] {
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    localtime_r(&now, &parts);
    char text[64];
    return std::string(text, std::strftime(text, sizeof text, "%d %b %Y", &parts));
  };
  const std::string before = today();
  const std::string rendered = render("{{ strftime_now('%d %b %Y') }}");
  EXPECT_THAT(rendered, AnyOf(before, today()));
  EXPECT_EQ(render("[{{ strftime_now('') }}] {{ strftime_now('100%%') }}"), "[] 100%");
}

TEST(ChatTemplate, ErrorsCarryTheTemplatesWordsOrTheLine) {
  EXPECT_THAT(error_of("{{ raise_exception('Only \"user\" here, please.') }}"), HasSubstr("Only \"user\" here, please."));
  EXPECT_THAT(error_of("ok\nok\n{% if %}"), HasSubstr("line 3"));
  EXPECT_THAT(error_of("\n{{ messages[0].a.b.c }}"), HasSubstr("line 2"));
  EXPECT_THAT(error_of("{{ 'x' | no_such_filter }}"), HasSubstr("no_such_filter"));
  EXPECT_THAT(error_of("{{ 'x'.no_such_method() }}"), HasSubstr("no_such_method"));
  EXPECT_THAT(error_of("{% include 'other' %}"), HasSubstr("other"));
}

TEST(ChatTemplate, EndlessTemplatesEndSoon) {
  const char* loops =
      "{% for a in range(100000) %}{% for b in range(100000) %}{% for c in range(100000) %}x{% endfor %}{% endfor %}{% endfor %}";
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(error_of(loops), HasSubstr("does not come to an end"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));  // about 0.06 s; room for sanitizers and a busy machine
  EXPECT_THAT(error_of("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}"), HasSubstr("recursion"));
}

TEST(ChatTemplate, DeepNestingIsAnErrorNotACrash) {
  std::string open, close;
  for (int i = 0; i < 20'000; ++i) {
    open += "(";
    close += ")";
  }
  EXPECT_THAT(error_of("{{ " + open + "1" + close + " }}"), HasSubstr("recursion"));
  Json deep = 1;
  for (int i = 0; i < 1'000; ++i) deep = Json::array({deep});
  EXPECT_THAT(error_of("{{ deep | tojson }}", {{"deep", deep}}), HasSubstr("recursion"));
}

TEST(ChatTemplate, GenerationTagsPrintTheirBody) {
  EXPECT_EQ(render("a {%- generation %} b {{ messages[0].content }}{%- endgeneration -%}  c"), "a b hic");
  EXPECT_EQ(render("{% set generation = 1 %}{{ generation }}{{ '{% x %}' }}"), "1{% x %}");
}

TEST(ChatTemplate, RefusesMessagesThatAreNotUtf8AndVariablesThatAreNoObject) {
  ChatTemplate::Input input;
  input.messages = {{{"role", "user"}, {"content", "\xff"}}};
  const ChatTemplate chat_template("{{ messages[0].content }}");
  EXPECT_THROW(chat_template.render(input), Error);
  EXPECT_THAT(error_of("x", Json::array({1})), HasSubstr("object"));
  EXPECT_THROW(ChatTemplate("\xff"), Error);
}

TEST(ChatTemplate, ACallersVariableCannotReplaceTheMessages) {
  EXPECT_EQ(render("{{ messages[0].content }}", {{"messages", Json::array()}}), "hi");
}

}  // namespace
}  // namespace verbund::text::test
