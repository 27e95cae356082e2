// The one error type of the program (docs/DESIGN.md section 4.5).
//
// An Error says what happened, where, and what to do next, and is classified twice: by a canonical code (which maps to
// exit codes and HTTP statuses in one table) and by what is lost (which tells the caller what to rebuild).
// The function that first knows creates it; callers add context() or pass it on. Library exceptions become an Error at
// one border. Asserts are for our own mistakes only, never for what a peer, user, file or the system can cause.
#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace verbund {

enum class Code {
  invalid_argument,
  not_found,
  unavailable,
  deadline_exceeded,
  resource_exhausted,
  data_loss,
  permission_denied,
  unimplemented,
  cancelled,
  internal
};

enum class Lost { request, peer, instance, process };

std::string_view to_string(Code code);
std::string_view to_string(Lost lost);
Code code_from_string(std::string_view text);  // unknown text -> internal
Lost lost_from_string(std::string_view text);  // unknown text -> instance

struct CodeMapping {
  int exit_code;
  int http_status;
};
CodeMapping mapping(Code code);

class Error : public std::exception {
 public:
  struct Parts {
    Code code = Code::internal;
    Lost lost = Lost::request;
    std::string what;   // what failed, with names and numbers
    std::string where;  // node, rank, tensor, file, operation; may be empty
    std::string hint;   // what to do next; may be empty
  };

  explicit Error(Parts parts);
  Error(Code code, std::string what, std::string where = {}, std::string hint = {})
      : Error(Parts{code, Lost::request, std::move(what), std::move(where), std::move(hint)}) {}

  const char* what() const noexcept override { return line_.c_str(); }  // "what (where); hint"
  Code code() const { return parts_.code; }
  Lost lost() const { return parts_.lost; }
  const Parts& parts() const { return parts_; }

  // The same error seen from one level up: `where` is put in front of the place known so far.
  Error within(std::string_view where) const;

 private:
  Parts parts_;
  std::string line_;
};

// Runs inside a catch block: the current exception as an Error (std::bad_alloc -> resource_exhausted, others -> internal).
Error current_error(std::string_view where = {});

}  // namespace verbund
