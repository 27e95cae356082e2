// The input is what a model says (text/output_parser.h): its first byte picks the format, the second how it goes, the third tells which
// bytes of the rest are tokens that are marks. Whatever it is, its pieces give what the whole gives, and everything is decided at the end.
#include <cstdlib>
#include <string>
#include <vector>

#include "text/output_parser.h"

namespace {

using namespace verbund::text;

Tools tools() {
  return Tools(std::vector<Tool>{{"f", nlohmann::ordered_json{{"properties", {{"a", {{"type", "string"}}}, {"b", {{"type", "integer"}}}}}}},
                                 {"g", nullptr}});
}

struct Said {
  std::string content, reasoning, calls;
  bool operator==(const Said&) const = default;
};

struct Step {
  std::string text;
  bool mark;
};

Said read(const OutputFormat& format, bool in_reasoning, bool cut, const std::vector<Step>& steps, bool in_pieces) {
  const auto parser = make_output_parser(format, tools(), in_reasoning);
  Said said;
  size_t given = 0;
  const auto add = [&](const std::vector<OutputPiece>& pieces) {
    for (const OutputPiece& p : pieces) {
      if (p.end < p.begin || p.end > given) std::abort();
      if (p.kind == OutputPiece::Kind::content) said.content += p.text;
      if (p.kind == OutputPiece::Kind::reasoning) said.reasoning += p.text;
      if (p.kind == OutputPiece::Kind::call) said.calls += p.call.id + "|" + p.call.name + "|" + p.call.arguments + "\n";
    }
  };
  for (const Step& step : steps) {
    if (step.mark) {
      add(parser->mark(step.text));
      continue;
    }
    for (size_t i = 0; i < step.text.size(); i += in_pieces ? 1 : step.text.size()) {
      const std::string piece = in_pieces ? step.text.substr(i, 1) : step.text;
      given += piece.size();
      add(parser->push(piece));
    }
  }
  add(parser->finish(cut));
  if (parser->decided() != given) std::abort();
  return said;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3) return 0;
  OutputFormat format;
  format.tools = &tool_formats()[data[0] % tool_formats().size()];
  format.reasoning = &reasoning_formats()[data[1] % reasoning_formats().size()];
  const bool in_reasoning = (data[1] & 0x40) != 0, cut = (data[1] & 0x80) != 0, tokens = (data[2] & 1) != 0;
  if (tokens) format.is_token = [](std::string_view) { return true; };
  // Marks are spelled out between bytes that no text has.
  std::vector<Step> steps;
  bool mark = false;
  for (size_t i = 3; i < size; ++i) {
    const char c = static_cast<char>(data[i]);
    if (data[i] == 1 && tokens) {
      mark = !mark;
      steps.push_back({"", mark});
      continue;
    }
    if (data[i] >= 0xfe) continue;  // no text has these
    if (steps.empty()) steps.push_back({"", false});
    steps.back().text += c;
  }
  if (!(read(format, in_reasoning, cut, steps, true) == read(format, in_reasoning, cut, steps, false))) std::abort();
  return 0;
}
