// What the program shows to a person: errors, a progress line, aligned tables. Colours and moving lines appear only on a
// terminal, and never on standard output, which carries the answer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"

namespace verbund::cli {

bool stderr_is_terminal();
std::string dim(const std::string& text);  // on a terminal; else unchanged
std::string bold(const std::string& text);

// "verbund: what (where)" and, on a second line, the hint.
void print_error(const Error& error);

// "loading  [######------]  48 %  47.1 of 98.3 MiB"; drawn on standard error if it is a terminal, erased by the destructor.
class ProgressLine {
 public:
  explicit ProgressLine(std::string label) : label_(std::move(label)), shown_(stderr_is_terminal()) {}
  ~ProgressLine() { clear(); }
  void update(uint64_t done, uint64_t total);
  void clear();

 private:
  std::string label_;
  bool shown_, drawn_ = false;
  int percent_ = -1;
};

// Columns as wide as their widest cell; numbers to the right (all but the first `left` columns).
std::string table(const std::vector<std::vector<std::string>>& rows, size_t left);

std::string fixed(double value, int digits);
std::string milliseconds(double seconds);  // "35 ms", "1.20 s"

}  // namespace verbund::cli
