#include "cli/terminal.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/bytes.h"

namespace verbund::cli {
namespace {

std::string styled(const char* code, const std::string& text) {
  return stderr_is_terminal() ? std::string("\x1b[") + code + "m" + text + "\x1b[0m" : text;
}

}  // namespace

bool stderr_is_terminal() {
  static const bool terminal = ::isatty(STDERR_FILENO) == 1;
  return terminal;
}

std::string dim(const std::string& text) { return styled("2", text); }
std::string bold(const std::string& text) { return styled("1", text); }

void print_error(const Error& error) {
  const Error::Parts& p = error.parts();
  std::string line = styled("1;31", "verbund:") + " " + p.what;
  if (!p.where.empty()) line += " (" + p.where + ")";
  if (!p.hint.empty()) line += "\n         " + dim(p.hint);
  std::fprintf(stderr, "%s\n", line.c_str());
}

void ProgressLine::update(uint64_t done, uint64_t total) {
  if (!shown_ || total == 0) return;
  const int percent = static_cast<int>(std::min<uint64_t>(100, done * 100 / total));
  if (percent == percent_) return;
  percent_ = percent;
  drawn_ = true;
  constexpr int kWidth = 28;
  std::string bar(static_cast<size_t>(kWidth * percent / 100), '#');
  bar.resize(kWidth, '-');
  std::fprintf(stderr, "\r%s  [%s] %3d %%  %s of %s\x1b[K", label_.c_str(), bar.c_str(), percent, format_bytes(done).c_str(),
               format_bytes(total).c_str());
  std::fflush(stderr);
}

void ProgressLine::clear() {
  if (drawn_) std::fprintf(stderr, "\r\x1b[K");
  drawn_ = false;
}

std::string table(const std::vector<std::vector<std::string>>& rows, size_t left) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line = " ";
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string pad(widths[i] - row[i].size(), ' ');
      line += " " + (i < left ? row[i] + pad : pad + row[i]) + " ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string milliseconds(double seconds) { return seconds < 1 ? fixed(seconds * 1000, 0) + " ms" : fixed(seconds, 2) + " s"; }

}  // namespace verbund::cli
