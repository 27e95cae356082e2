#include "text/output_parser.h"

#include <algorithm>

#include "text/harmony.h"
#include "text/output_buffer.h"

namespace verbund::text {
namespace {

using Kind = OutputPiece::Kind;

constexpr std::string_view kBlank = " \t\r\n";
// Sections that turned out to be none; after so many the rest of the answer is taken as it comes, which bounds the work.
constexpr size_t kRejectedMax = 64;

class MarkedParser : public OutputParser {
 public:
  MarkedParser(const OutputFormat& format, Tools tools, bool in_reasoning) : tools_(std::move(tools)) {
    const auto spelled = [&](std::string_view mark) {
      return format.is_token && format.is_token(mark) ? OutputBuffer::token(mark) : std::string(mark);
    };
    if (format.reasoning) {
      reasoning_open_ = spelled(format.reasoning->open) + std::string(format.reasoning->open_tail);
      reasoning_close_ = spelled(format.reasoning->close);
      if (in_reasoning) state_ = State::reasoning, skip_blank_ = true;
    }
    if (!format.tools || tools_.empty()) return;
    tool_format_ = format.tools;
    for (const ToolSection& s : tool_format_->sections)
      sections_.push_back({spelled(s.open), s.close.empty() ? std::string() : spelled(s.close), std::string(s.open), s.keep});
  }

  std::vector<OutputPiece> push(std::string_view text) override {
    buffer_.push(text);
    return drain(false);
  }
  std::vector<OutputPiece> mark(std::string_view token) override {
    buffer_.mark(token);
    return drain(false);
  }
  std::vector<OutputPiece> finish(bool cut) override {
    cut_ = cut;
    return drain(true);
  }
  size_t decided() const override { return buffer_.offset(); }

 private:
  enum class State { content, reasoning, section };
  struct Section {
    std::string open, close, plain;
    size_t keep;
  };
  struct Match {
    size_t at = std::string_view::npos, length = 0;
    const Section* section = nullptr;  // null: reasoning opens or closes, or nothing is found
    bool found() const { return at != std::string_view::npos; }
  };

  std::vector<OutputPiece> drain(bool end) {
    std::vector<OutputPiece> pieces;
    bool again = true;
    while (again) {
      switch (state_) {
        case State::content: again = read_content(end, pieces); break;
        case State::reasoning: again = read_reasoning(end, pieces); break;
        case State::section: again = read_section(end, pieces); break;
      }
    }
    return pieces;
  }

  void emit(Kind kind, size_t n, std::vector<OutputPiece>& pieces) {
    if (n == 0) return;
    const size_t begin = buffer_.offset();
    std::string text = buffer_.take(n);
    if (text.empty()) return;
    if (kind == Kind::content) said_ = true;
    if (!pieces.empty() && pieces.back().kind == kind && pieces.back().end == begin) {
      pieces.back().text += text;
      pieces.back().end = buffer_.offset();
      return;
    }
    pieces.push_back({kind, std::move(text), {}, begin, buffer_.offset()});
  }

  // The first of the marks that matter in this state, and at one place the longest.
  Match find(bool in_reasoning) const {
    const std::string_view text = buffer_.bytes();
    Match best;
    const auto consider = [&](const std::string& mark, const Section* section) {
      if (mark.empty()) return;
      const size_t at = text.substr(0, best.found() ? best.at + mark.size() : text.size()).find(mark);
      if (at == std::string_view::npos || at > best.at || (at == best.at && mark.size() <= best.length)) return;
      best = {at, mark.size(), section};
    };
    consider(in_reasoning ? reasoning_close_ : reasoning_open_, nullptr);
    if (rejected_ < kRejectedMax)
      for (const Section& s : sections_) consider(s.open, &s);
    return best;
  }

  // Bytes at the end that may become a mark of this state.
  size_t held(bool in_reasoning) const {
    const std::string_view text = buffer_.bytes();
    size_t most = 0;
    const auto consider = [&](const std::string& mark) {
      for (size_t n = std::min(mark.size() - (mark.empty() ? 0 : 1), text.size()); n > most; --n)
        if (text.ends_with(std::string_view(mark).substr(0, n))) {
          most = n;
          break;
        }
    };
    consider(in_reasoning ? reasoning_close_ : reasoning_open_);
    if (rejected_ < kRejectedMax)
      for (const Section& s : sections_) consider(s.open);
    return most;
  }

  size_t blank_prefix() const { return std::min(buffer_.bytes().size(), buffer_.bytes().find_first_not_of(kBlank)); }

  // Reasoning in plain text opens only an answer; a token may open it anywhere.
  bool opens_reasoning(const Match& match) const {
    return !said_ && buffer_.bytes().substr(0, match.at).find_first_not_of(kBlank) == std::string_view::npos;
  }

  bool read_content(bool end, std::vector<OutputPiece>& pieces) {
    if (skip_blank_) {
      buffer_.take(blank_prefix());
      skip_blank_ = buffer_.bytes().empty();
    }
    if (tool_format_ && tool_format_->whole_answer != 0 && !said_ && !called_ && rejected_ == 0) {
      const size_t first = blank_prefix();
      if (first == buffer_.bytes().size() && !end) return false;
      if (first < buffer_.bytes().size() && buffer_.bytes()[first] == tool_format_->whole_answer) {
        whole_ = {"", "", "", 0};
        return open_section(whole_, 0, Kind::content);
      }
    }
    const Match match = find(false);
    if (match.found() && !match.section && reasoning_open_[0] != OutputBuffer::kTokenBegin && !opens_reasoning(match)) {
      emit(Kind::content, match.at + match.length, pieces);
      return true;
    }
    if (match.found()) {
      // Blanks between calls, and before the first thing of an answer, are nobody's.
      const bool gap = (called_ || !said_) && buffer_.bytes().substr(0, match.at).find_first_not_of(kBlank) == std::string_view::npos;
      if (gap)
        buffer_.take(match.at);
      else
        emit(Kind::content, match.at, pieces), called_ = false;
      if (match.section) return open_section(*match.section, match.length, Kind::content);
      buffer_.take(match.length);
      state_ = State::reasoning;
      skip_blank_ = true;
      return true;
    }
    size_t n = buffer_.bytes().size() - (end ? 0 : held(false));
    if (called_ || !said_) {  // blanks wait for what comes behind them
      const bool blank = buffer_.bytes().substr(0, n).find_first_not_of(kBlank) == std::string_view::npos;
      if (blank && end && called_) buffer_.take(n);
      if (blank && !end) return false;
    }
    if (n > 0) called_ = false;
    emit(Kind::content, std::min(n, buffer_.bytes().size()), pieces);
    return false;
  }

  bool read_reasoning(bool end, std::vector<OutputPiece>& pieces) {
    if (skip_blank_) {
      buffer_.take(blank_prefix());
      skip_blank_ = buffer_.bytes().empty();
    }
    const Match match = find(true);
    const std::string_view text = buffer_.bytes();
    if (match.found()) {
      const size_t last = match.at == 0 ? std::string_view::npos : text.find_last_not_of(kBlank, match.at - 1);
      const size_t said = last == std::string_view::npos ? 0 : last + 1;
      emit(Kind::reasoning, said, pieces);
      if (match.section) return open_section(*match.section, match.at - said + match.length, Kind::reasoning);
      buffer_.take(match.at - said + match.length);
      state_ = State::content;
      skip_blank_ = true;
      return true;
    }
    size_t n = text.size() - (end ? 0 : held(true));
    if (!end) {  // blanks before the end mark are nobody's
      const size_t last = n == 0 ? std::string_view::npos : text.find_last_not_of(kBlank, n - 1);
      n = last == std::string_view::npos ? 0 : last + 1;
    }
    emit(Kind::reasoning, n, pieces);
    return false;
  }

  // At the front of the buffer are `length` bytes: perhaps blanks, and the section's mark.
  bool open_section(const Section& section, size_t length, Kind kind) {
    section_ = &section;
    around_ = kind;
    state_ = State::section;
    opened_ = length;
    searched_ = length;
    return true;
  }

  // The section lies in the buffer until it is decided.
  bool read_section(bool end, std::vector<OutputPiece>& pieces) {
    const std::string_view text = buffer_.bytes();
    const bool plain = section_->open.empty() || section_->open[0] != OutputBuffer::kTokenBegin;
    if (plain && tool_format_->begins && !begins_like_a_call(text)) return reject(pieces);
    size_t close = std::string_view::npos;
    if (!section_->close.empty()) {
      close = text.find(section_->close, searched_);
      searched_ = std::max(opened_, text.size() - std::min(text.size(), section_->close.size()));
    }
    if (close == std::string_view::npos && !end) return false;
    const size_t stop = std::min(close, text.size());
    std::vector<ParsedCall> calls;
    const std::string inner =
        section_->plain.substr(section_->plain.size() - section_->keep) + OutputBuffer::with_tokens(text.substr(opened_, stop - opened_));
    const bool whole = tool_format_->parse(inner, tools_, calls);
    // Cut by the limit: calls that are whole, and the rest is dropped. A model that ends without the end mark has said all.
    const bool unfinished = close == std::string_view::npos && cut_;
    if (!whole && !(unfinished && looks_like_calls(text))) return reject(pieces);
    const size_t begin = buffer_.offset();
    buffer_.take(close == std::string_view::npos ? text.size() : close + section_->close.size());
    for (ParsedCall& call : calls) pieces.push_back({Kind::call, {}, std::move(call), begin, buffer_.offset()});
    called_ = true;
    said_ = true;
    state_ = State::content;
    skip_blank_ = false;
    return true;
  }

  bool begins_like_a_call(std::string_view text) const {
    return tool_format_->begins(section_->plain.substr(section_->plain.size() - section_->keep) +
                                OutputBuffer::with_tokens(text.substr(opened_, 256)));
  }
  // A section that a limit has cut is a call that was being written, unless it is plain text and begins like none.
  bool looks_like_calls(std::string_view text) const {
    return !section_->open.empty() && (!tool_format_->begins || begins_like_a_call(text));
  }

  // The mark was text: it and what follows it are looked at again without it.
  bool reject(std::vector<OutputPiece>& pieces) {
    ++rejected_;
    state_ = around_ == Kind::reasoning ? State::reasoning : State::content;
    called_ = false;
    // Of a whole answer there is nothing to step over but its first byte.
    emit(around_, section_->open.empty() ? blank_prefix() + 1 : opened_, pieces);
    if (around_ == Kind::content) said_ = true;
    return true;
  }

  Tools tools_;
  const ToolFormat* tool_format_ = nullptr;
  std::string reasoning_open_, reasoning_close_;  // as they lie in the buffer
  std::vector<Section> sections_;
  Section whole_;
  OutputBuffer buffer_;
  State state_ = State::content;
  const Section* section_ = nullptr;
  Kind around_ = Kind::content;  // what the section's text is if it holds no calls
  size_t opened_ = 0, searched_ = 0;
  size_t rejected_ = 0;
  bool said_ = false, called_ = false;  // content that is not blank has come; a call was the last thing
  bool skip_blank_ = false, cut_ = false;
};

// Nothing to look for: text as it comes.
class PlainParser : public OutputParser {
 public:
  std::vector<OutputPiece> push(std::string_view text) override {
    if (text.empty()) return {};
    const size_t begin = offset_;
    offset_ += text.size();
    return {{Kind::content, std::string(text), {}, begin, offset_}};
  }
  std::vector<OutputPiece> mark(std::string_view) override { return {}; }
  std::vector<OutputPiece> finish(bool) override { return {}; }
  size_t decided() const override { return offset_; }

 private:
  size_t offset_ = 0;
};

}  // namespace

std::unique_ptr<OutputParser> make_output_parser(const OutputFormat& format, Tools tools, bool in_reasoning) {
  if (format.tools && format.tools->harmony) return make_harmony_parser(format, std::move(tools));
  if (!format.reasoning && (!format.tools || tools.empty())) return std::make_unique<PlainParser>();
  return std::make_unique<MarkedParser>(format, std::move(tools), in_reasoning);
}

}  // namespace verbund::text
