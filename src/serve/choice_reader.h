// What one choice's engine events mean: pieces of content, reasoning and tool calls with their log-probabilities, and at the end the
// whole result. One per choice; I/O thread.
#pragma once

#include <deque>
#include <span>

#include "engine/instance.h"
#include "engine/stop_strings.h"
#include "serve/generate.h"
#include "text/output_parser.h"

namespace verbund::serve {

// Whether this request's answers are taken apart by the model's output format. Then stop strings are looked for in content only, by the
// reader; otherwise the engine looks for them.
bool parses_output(const ServedModel& model, const GenerateRequest& request);

class ChoiceReader {
 public:
  ChoiceReader(const ServedModel& model, const GenerateRequest& request, uint32_t choice, std::span<const int32_t> prompt);

  std::vector<Delta> push(const engine::InstanceEvent& event);
  bool finished() const { return finished_; }
  // It has ended while the engine goes on: what the engine says from now on is nobody's.
  bool ended_early() const { return ended_early_; }
  const ChoiceResult& result() const { return result_; }
  const nlohmann::json& figures() const { return figures_; }

 private:
  void hold_logprobs(const engine::InstanceEvent& event);
  std::vector<TokenLogprobs> release_logprobs(bool at_end);
  void finish(const engine::InstanceEvent& event);
  std::vector<Delta> read_call();  // of an answer that is one
  std::vector<Delta> push_parsed(const engine::InstanceEvent& event);
  void spoke(const engine::InstanceEvent& event, size_t text_bytes);
  void read_pieces(std::vector<text::OutputPiece> pieces, std::vector<Delta>& deltas);
  void say(std::string text, std::vector<Delta>& deltas);
  void say_call(text::ParsedCall call, std::vector<Delta>& deltas);
  std::vector<TokenLogprobs> release_spoken(bool at_end);
  void end_early(Finish finish);
  std::optional<TokenLogprobs> logprobs_of(const engine::InstanceEvent& event) const;
  TokenInfo info(int32_t id, float logprob) const;

  const ServedModel& model_;
  const GenerateRequest& request_;
  std::span<const int32_t> prompt_;
  ChoiceResult result_;
  nlohmann::json figures_ = nlohmann::json::object();
  bool finished_ = false, ended_early_ = false;
  // A token is reported with the piece that completes its text; one whose text a stop string swallows is not.
  struct Held {
    TokenLogprobs logprobs;
    size_t begin, end;  // bytes of the answer
  };
  std::deque<Held> held_;
  size_t token_bytes_ = 0;

  // Of answers that are taken apart: tokens whose text ends at `end`, until it is known what the text is.
  struct Spoken {
    size_t end = 0;
    uint32_t tokens = 0;
    std::vector<TokenLogprobs> logprobs;
  };
  struct Part {
    size_t begin, end;
    text::OutputPiece::Kind kind;
  };
  std::unique_ptr<text::OutputParser> parser_;
  engine::StopMatcher stop_;
  std::deque<Spoken> spoken_;
  Spoken speaking_;  // tokens without text so far
  std::deque<Part> parts_;
  size_t text_bytes_ = 0;
};

}  // namespace verbund::serve
