// An HTTP request as handlers see it, and the exchange in which they answer it. Free of the HTTP library, so that dialects
// compile without it.
//
// Everything here lives in the server's one I/O thread. Handlers are coroutines of that thread and must not block it: what
// takes more than a millisecond goes to the work pool (Server::work).
#pragma once

// Boost 1.74 uses std::exchange there without including it.
#include <utility>

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "serve/api_error.h"

namespace verbund::serve {

template <class T>
using awaitable = boost::asio::awaitable<T>;

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string id;      // x-request-id
  std::string method;  // GET, POST, ...
  std::string path;    // decoded path without query; slashes collapsed
  std::string query;   // without '?'
  Headers headers;     // names in lower case
  std::string body;
  Dialect dialect = Dialect::openai;
  bool trusted = true;    // has shown a key, or none is needed
  std::string route;      // pattern that matched
  std::string parameter;  // what its `*` stands for, as a model id

  std::string_view header(std::string_view name) const;  // empty if there is none
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  Headers headers;
};

Response json_response(const nlohmann::ordered_json& body, int status = 200);
Response error_response(const ApiError& error, Dialect dialect, std::string_view request_id);

// The client has closed, or does not read: nothing can be said to it any more. Thrown by writes; ends the connection.
struct ClientGone : std::exception {
  const char* what() const noexcept override { return "the client is gone"; }
};

// One request and the way to answer it: send() once, or begin_stream(), write() ..., end_stream().
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const HttpRequest& request() const = 0;
  virtual boost::asio::any_io_executor executor() = 0;

  virtual awaitable<void> send(Response response) = 0;
  virtual awaitable<void> begin_stream(std::string content_type, Headers headers) = 0;  // held back until the first write
  virtual awaitable<void> write(std::string frames) = 0;                                // one write of the socket
  virtual awaitable<void> end_stream() = 0;

  virtual bool begun() const = 0;  // the status line is out: errors can only be said in the stream
  virtual bool client_gone() = 0;  // asks the socket; cheap
};

// "a%2Fb" -> "a/b"; what is no valid escape stays as it is.
std::string percent_decoded(std::string_view text);
std::string collapse_slashes(std::string_view path);        // "//v1/models/" -> "/v1/models"
std::string json_text(const nlohmann::ordered_json& json);  // always valid UTF-8

}  // namespace verbund::serve
