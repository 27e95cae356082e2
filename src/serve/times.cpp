#include "serve/times.h"

#include <chrono>
#include <cstdio>
#include <ctime>

namespace verbund::serve {
namespace {

std::string seconds_text(int64_t seconds) {
  const std::time_t time = seconds;
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  char text[32];
  return std::string(text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts));
}

}  // namespace

std::string rfc3339(int64_t unix_seconds) { return seconds_text(unix_seconds) + "Z"; }

std::string rfc3339_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const int64_t us = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  char fraction[16];
  std::snprintf(fraction, sizeof fraction, ".%06dZ", static_cast<int>(us % 1'000'000));
  return seconds_text(us / 1'000'000) + fraction;
}

}  // namespace verbund::serve
