// Who may ask: API keys, and the rules that keep web pages out of a server on this machine (api.md section 1.5).
// I/O thread only.
#pragma once

#include <string>
#include <vector>

#include "serve/http.h"
#include "serve/key_file.h"

namespace verbund::serve {

struct AccessConfig {
  std::string key_file;
  bool loopback = true;              // the listener
  std::vector<std::string> hosts;    // further names this server is called by
  std::vector<std::string> origins;  // web pages that may ask
};

class Access {
 public:
  explicit Access(AccessConfig config);

  bool has_keys() { return keys_.empty() == false; }
  // Throws unauthorized or forbidden. Sets request.trusted (a key was shown, or none is needed). Returns headers for the answer.
  Headers admit(HttpRequest& request);

 private:
  void check_host(std::string_view host) const;
  Headers check_origin(const HttpRequest& request) const;

  AccessConfig config_;
  KeyRing keys_;
  std::string host_name_;
};

}  // namespace verbund::serve
