// Ends text at the first stop string, while it streams. The result does not depend on how the text is cut into pieces:
// the stop string that is complete first (by bytes) wins, of two that end together the longer one, and neither it nor
// anything after it is returned. What may still become a stop string is held back.
// Pieces and stop strings are valid UTF-8; so is everything returned. One stream, one thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace verbund::engine {

class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);  // none may be empty (Request::validate)

  std::string push(std::string_view piece);  // text that is certain now; may be empty
  std::string flush();                       // the text has ended: what was held back
  bool stopped() const { return stopped_; }
  const std::string& matched() const { return matched_; }  // the stop string, once stopped

 private:
  std::vector<std::string> stops_;
  std::string held_, matched_;
  bool stopped_ = false;
};

}  // namespace verbund::engine
