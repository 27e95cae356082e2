// Which handler answers a method and path. Filled at the start, then only read.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "serve/http.h"

namespace verbund::serve {

using Handler = std::function<awaitable<void>(Exchange&)>;

class Router {
 public:
  // pattern: a path; a final "/*" takes the rest of the path, slashes too, as the request's parameter. HEAD goes to GET.
  void add(std::string method, std::string pattern, Dialect dialect, Handler handler);

  static Dialect dialect_of(std::string_view path);  // by prefix
  // Sets request.dialect and request.parameter. Throws not_found or method_not_allowed (with `allow`) in the dialect of the
  // path's prefix, which is set in any case. OpenAI's routes also match without their "/v1".
  const Handler& find(HttpRequest& request, std::string& allow) const;

 private:
  struct Route {
    std::string method, pattern;
    Dialect dialect;
    Handler handler;
  };
  const Handler* match(HttpRequest& request, const std::string& path, std::string& allow) const;
  std::vector<Route> routes_;
};

}  // namespace verbund::serve
