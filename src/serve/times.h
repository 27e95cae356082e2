// Points in time as APIs write them. Any thread.
#pragma once

#include <cstdint>
#include <string>

namespace verbund::serve {

std::string rfc3339(int64_t unix_seconds);  // "2026-12-01T10:00:00Z"
std::string rfc3339_now();                  // with microseconds

}  // namespace verbund::serve
