#include "base/error.h"

#include <array>
#include <new>
#include <system_error>

namespace verbund {
namespace {

struct CodeRow {
  Code code;
  std::string_view name;
  CodeMapping to;
};

// Exit codes follow sysexits.h where it has a word; 130 is the shell's for an interrupt.
constexpr std::array<CodeRow, 10> kCodes{{
    {Code::invalid_argument, "invalid_argument", {64, 400}},
    {Code::not_found, "not_found", {66, 404}},
    {Code::unavailable, "unavailable", {69, 503}},
    {Code::deadline_exceeded, "deadline_exceeded", {75, 504}},
    {Code::resource_exhausted, "resource_exhausted", {71, 429}},
    {Code::data_loss, "data_loss", {65, 500}},
    {Code::permission_denied, "permission_denied", {77, 403}},
    {Code::unimplemented, "unimplemented", {78, 501}},
    {Code::cancelled, "cancelled", {130, 499}},
    {Code::internal, "internal", {70, 500}},
}};

constexpr std::array<std::string_view, 4> kLost{"request", "peer", "instance", "process"};

const CodeRow& row(Code code) { return kCodes[static_cast<size_t>(code)]; }

}  // namespace

std::string_view to_string(Code code) { return row(code).name; }
std::string_view to_string(Lost lost) { return kLost[static_cast<size_t>(lost)]; }
CodeMapping mapping(Code code) { return row(code).to; }

Code code_from_string(std::string_view text) {
  for (const CodeRow& r : kCodes)
    if (r.name == text) return r.code;
  return Code::internal;
}

Lost lost_from_string(std::string_view text) {
  for (size_t i = 0; i < kLost.size(); ++i)
    if (kLost[i] == text) return static_cast<Lost>(i);
  return Lost::instance;
}

Error::Error(Parts parts) : parts_(std::move(parts)) {
  line_ = parts_.what;
  if (!parts_.where.empty()) line_ += " (" + parts_.where + ")";
  if (!parts_.hint.empty()) line_ += "; " + parts_.hint;
}

Error Error::within(std::string_view where) const {
  Parts parts = parts_;
  parts.where = parts.where.empty() ? std::string(where) : std::string(where) + ", " + parts.where;
  return Error(std::move(parts));
}

Error current_error(std::string_view where) {
  try {
    throw;
  } catch (const Error& e) { return where.empty() ? e : e.within(where); } catch (const std::bad_alloc&) {
    return Error(Code::resource_exhausted, "out of memory", std::string(where));
  } catch (const std::exception& e) { return Error(Code::internal, e.what(), std::string(where)); } catch (...) {
    return Error(Code::internal, "unknown exception", std::string(where));
  }
}

}  // namespace verbund
