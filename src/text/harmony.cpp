#include "text/harmony.h"

#include <algorithm>
#include <array>

#include "text/output_buffer.h"
#include "text/payload_text.h"

namespace verbund::text {
namespace {

using Kind = OutputPiece::Kind;

enum Mark : size_t { start, channel, message, constrain, end, ret, call, marks };
constexpr std::array<std::string_view, marks> kMarks{"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>",
                                                     "<|end|>",   "<|return|>",  "<|call|>"};
constexpr std::string_view kFunctions = "functions.";

bool is_recipient(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
}

// The word after `key`, wherever it stands in the header.
std::string_view word_after(std::string_view header, std::string_view key) {
  const size_t at = header.find(key);
  if (at == std::string_view::npos) return {};
  header.remove_prefix(at + key.size());
  const auto end = std::find_if_not(header.begin(), header.end(), is_recipient);
  return header.substr(0, static_cast<size_t>(end - header.begin()));
}

class HarmonyParser : public OutputParser {
 public:
  HarmonyParser(const OutputFormat& format, Tools tools) : tools_(std::move(tools)) {
    for (size_t i = 0; i < marks; ++i)
      marks_[i] = format.is_token && format.is_token(kMarks[i]) ? OutputBuffer::token(kMarks[i]) : std::string(kMarks[i]);
  }

  std::vector<OutputPiece> push(std::string_view text) override {
    buffer_.push(text);
    return drain(false, false);
  }
  std::vector<OutputPiece> mark(std::string_view token) override {
    buffer_.mark(token);
    return drain(false, false);
  }
  std::vector<OutputPiece> finish(bool cut) override { return drain(true, cut); }
  size_t decided() const override { return buffer_.offset() - header_.size() - arguments_.size(); }

 private:
  // The prompt ends within the header of the first message.
  enum class State { header, content, reasoning, arguments, between };

  std::vector<OutputPiece> drain(bool at_end, bool cut) {
    std::vector<OutputPiece> pieces;
    for (;;) {
      const std::string_view text = buffer_.bytes();
      size_t at = std::string_view::npos, which = marks;
      for (size_t i = 0; i < marks; ++i)
        if (const size_t found = text.substr(0, at == std::string_view::npos ? at : at + marks_[i].size()).find(marks_[i]); found < at)
          at = found, which = i;
      if (at == std::string_view::npos) break;
      take_text(at, pieces);
      take_mark(static_cast<Mark>(which), pieces);
    }
    take_text(buffer_.bytes().size() - (at_end ? 0 : held()), pieces);
    if (!at_end) return pieces;
    if (state_ == State::arguments && cut)
      arguments_.clear();
    else
      end_message(pieces);
    if (state_ == State::header) give_up_header(pieces);
    return pieces;
  }

  size_t held() const {
    const std::string_view text = buffer_.bytes();
    size_t most = 0;
    for (const std::string& mark : marks_)
      for (size_t n = std::min(mark.size() - 1, text.size()); n > most; --n)
        if (text.ends_with(std::string_view(mark).substr(0, n))) most = n;
    return most;
  }

  void take_text(size_t n, std::vector<OutputPiece>& pieces) {
    if (n == 0) return;
    const size_t begin = buffer_.offset();
    std::string text = buffer_.take(n);
    switch (state_) {
      case State::header: header_ += text; break;
      case State::arguments: arguments_ += text; break;
      case State::reasoning: add(Kind::reasoning, std::move(text), begin, pieces); break;
      case State::content:
      case State::between: add(Kind::content, std::move(text), begin, pieces); break;
    }
  }

  static void add(Kind kind, std::string text, size_t begin, std::vector<OutputPiece>& pieces) {
    if (text.empty()) return;
    const size_t end = begin + text.size();
    if (!pieces.empty() && pieces.back().kind == kind && pieces.back().end == begin)
      pieces.back().text += text, pieces.back().end = end;
    else
      pieces.push_back({kind, std::move(text), {}, begin, end});
  }

  void take_mark(Mark mark, std::vector<OutputPiece>& pieces) {
    buffer_.take(marks_[mark].size());
    switch (mark) {
      case Mark::channel:
      case Mark::constrain:
        if (state_ != State::header) end_message(pieces), state_ = State::header;  // a model that forgot to begin a message
        header_marks_ += header_.substr(marked_) + std::string(kMarks[mark]);
        marked_ = header_.size();
        break;
      case Mark::message:
        end_message(pieces);
        begin_message();
        break;
      default:
        if (state_ == State::header) give_up_header(pieces);
        end_message(pieces);
        state_ = mark == Mark::start ? State::header : State::between;
    }
  }

  void begin_message() {
    const std::string header = header_marks_ + header_.substr(marked_);
    clear_header();
    const std::string_view channel = word_after(header, kMarks[Mark::channel]), recipient = word_after(header, "to=");
    if (recipient.starts_with(kFunctions) && tools_.find(recipient.substr(kFunctions.size()))) {
      function_ = recipient.substr(kFunctions.size());
      state_ = State::arguments;
    } else if (channel == "analysis" || (!recipient.empty() && recipient != "user" && !recipient.starts_with(kFunctions))) {
      state_ = State::reasoning;
    } else {
      state_ = State::content;
    }
  }

  // A header without a message: what was text in it is said, but for the role that begins one.
  void give_up_header(std::vector<OutputPiece>& pieces) {
    const std::string text = header_ == "assistant" ? "" : header_;
    const size_t begin = buffer_.offset() - header_.size();
    if (header_marks_.empty()) add(Kind::content, text, begin, pieces);
    clear_header();
  }
  void clear_header() {
    header_.clear();
    header_marks_.clear();
    marked_ = 0;
  }

  void end_message(std::vector<OutputPiece>& pieces) {
    if (state_ != State::arguments) return;
    const size_t begin = buffer_.offset() - arguments_.size();
    std::vector<ParsedCall> calls;
    const std::string arguments = std::exchange(arguments_, {});
    if (payload::add_call({}, function_, std::string_view(arguments), tools_, calls))
      pieces.push_back({Kind::call, {}, std::move(calls.front()), begin, begin + arguments.size()});
    else
      add(Kind::content, arguments, begin, pieces);
    state_ = State::between;
  }

  Tools tools_;
  std::array<std::string, marks> marks_;
  OutputBuffer buffer_;
  State state_ = State::header;
  std::string header_;        // its text
  std::string header_marks_;  // the same with marks, up to `marked_` of header_
  size_t marked_ = 0;
  std::string function_, arguments_;
};

}  // namespace

std::unique_ptr<OutputParser> make_harmony_parser(const OutputFormat& format, Tools tools) {
  return std::make_unique<HarmonyParser>(format, std::move(tools));
}

}  // namespace verbund::text
