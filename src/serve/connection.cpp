#include "serve/connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>
#include <boost/beast/http/string_body.hpp>
#include <charconv>
#include <ctime>
#include <utility>

#include "base/bytes.h"
#include "serve/generate.h"
#include "serve/socket_deadline.h"

namespace verbund::serve {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using Clock = std::chrono::steady_clock;
using boost::system::error_code;

constexpr size_t kReadBytes = 64 << 10;
constexpr size_t kLingerBytes = 1 << 20;  // read and dropped after a refusal, so that the client sees it and no reset
constexpr std::chrono::seconds kLingerWait{2};

bool usable_id(std::string_view id) {
  if (id.empty() || id.size() > 128) return false;
  for (const char c : id)
    if (c < 0x21 || c > 0x7e) return false;
  return true;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  return out;
}

std::string_view view(beast::string_view text) { return {text.data(), text.size()}; }

std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[64];
  return std::string(text, std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &parts));
}

void append_chunk(std::string& out, std::string_view data) {
  char size[20];
  const auto end = std::to_chars(size, size + sizeof size, data.size(), 16).ptr;
  out.append(size, static_cast<size_t>(end - size)).append("\r\n").append(data).append("\r\n");
}

ApiError fault_of(const error_code& problem, bool late, const Limits& limits) {
  if (late) return ApiError(Fault::request_timeout, "the request did not arrive in time");
  if (problem == http::error::header_limit || problem == http::error::buffer_overflow)
    return ApiError(Fault::headers_too_large, "the request's headers are larger than " + format_bytes(limits.header_bytes));
  if (problem == http::error::body_limit)
    return ApiError(Fault::too_large, "the request's body is larger than " + format_bytes(limits.body_bytes));
  return ApiError(Fault::invalid, "this is not a valid HTTP/1.1 request: " + problem.message());
}

}  // namespace

class Connection : public Exchange {
 public:
  Connection(asio::ip::tcp::socket socket, std::shared_ptr<ConnectionContext> context)
      : socket_(std::move(socket)),
        deadline_(socket_),
        context_(std::move(context)),
        limits_(context_->limits),
        buffer_(limits_.header_bytes + kReadBytes) {
    context_->open.insert(this);
  }
  ~Connection() override {
    context_->body_bytes -= body_charged_;
    context_->open.erase(this);
  }

  awaitable<void> run() {
    while (!context_->draining && co_await wait_for_request())
      if (!co_await one_request()) break;
    error_code ignored;
    socket_.shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  }

  bool waiting() const { return waiting_; }
  void close() {
    error_code ignored;
    socket_.close(ignored);
  }

  // ---- Exchange

  const HttpRequest& request() const override { return request_; }
  asio::any_io_executor executor() override { return socket_.get_executor(); }
  bool begun() const override { return begun_; }

  awaitable<void> send(Response response) override {
    std::string text = head(response.status, response.content_type, response.headers);
    text += "Content-Length: " + std::to_string(response.body.size()) + "\r\n\r\n";
    if (request_.method != "HEAD") text += response.body;
    begun_ = true;
    co_await write_all(std::move(text));
  }

  awaitable<void> begin_stream(std::string content_type, Headers headers) override {
    headers.emplace_back("Cache-Control", "no-cache");
    headers.emplace_back("X-Accel-Buffering", "no");
    // HTTP/1.0 knows no chunks: the end of the connection is the end of the stream.
    if (chunked_)
      headers.emplace_back("Transfer-Encoding", "chunked");
    else
      keep_alive_ = false;
    pending_ = head(200, content_type, headers) + "\r\n";
    begun_ = true;
    co_return;
  }

  awaitable<void> write(std::string frames) override {
    std::string text = std::exchange(pending_, {});
    if (chunked_ && !frames.empty())
      append_chunk(text, frames);
    else
      text += frames;
    co_await write_all(std::move(text));
  }

  awaitable<void> end_stream() override {
    std::string text = std::exchange(pending_, {});
    if (chunked_) text += "0\r\n\r\n";
    co_await write_all(std::move(text));
  }

  bool client_gone() override {
    if (gone_) return true;
#ifdef POLLRDHUP
    // Also tells with a pipelined request still unread.
    pollfd p{socket_.native_handle(), POLLRDHUP, 0};
    gone_ = ::poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
#else
    char byte;
    const ssize_t n = ::recv(socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    gone_ = n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
#endif
    return gone_;
  }

 private:
  using Parser = http::request_parser<http::string_body>;

  // The first byte of the next request; false: closed or idle too long.
  awaitable<bool> wait_for_request() {
    if (buffer_.size() > 0) co_return true;
    waiting_ = true;
    deadline_.set_after(limits_.keep_alive);
    error_code problem;
    const size_t n = co_await socket_.async_read_some(buffer_.prepare(4096), asio::redirect_error(asio::use_awaitable, problem));
    buffer_.commit(n);
    waiting_ = false;
    co_return !problem;
  }

  // False: the connection ends.
  awaitable<bool> one_request() {
    request_ = {};
    begun_ = gone_ = false;
    status_ = 0;
    keep_alive_ = chunked_ = true;
    body_read_ = false;
    began_ = Clock::now();
    pending_.clear();
    answer_headers_.clear();
    Parser parser;
    std::optional<ApiError> refusal;
    try {
      const Handler* handler = co_await receive(parser);
      co_await (*handler)(*this);
      if (!begun_) throw ApiError(Fault::internal, "the request was not answered");
    } catch (const ApiError& e) { refusal = e; } catch (const ClientGone&) {
      keep_alive_ = false;
    } catch (...) { refusal = api_error(current_error()); }
    if (refusal) co_await refuse(*refusal);
    context_->body_bytes -= std::exchange(body_charged_, 0);
    if (status_ > 0) context_->log(request_, status_, std::chrono::duration<double>(Clock::now() - began_).count());
    if (!body_read_ && !gone_) co_await linger();
    co_return keep_alive_&& body_read_ && !gone_;
  }

  awaitable<void> refuse(ApiError error) {
    if (begun_) {  // a stream's own errors are the handler's business; this one came too late for it
      keep_alive_ = false;
      co_return;
    }
    if (!body_read_) keep_alive_ = false;
    Response response = error_response(error, request_.dialect, request_.id);
    if (!allow_.empty()) response.headers.emplace_back("Allow", std::exchange(allow_, {}));
    try {
      co_await send(std::move(response));
    } catch (const ClientGone&) { keep_alive_ = false; }
  }

  // Reads one request; checks it before its body is read. Throws what it is refused with.
  awaitable<const Handler*> receive(Parser& parser) {
    request_.id = random_id("req_");
    parser.header_limit(static_cast<uint32_t>(limits_.header_bytes));
    parser.body_limit(limits_.body_bytes);
    deadline_.set_after(limits_.header_wait);
    error_code problem;
    co_await http::async_read_header(socket_, buffer_, parser, asio::redirect_error(asio::use_awaitable, problem));
    if (problem) co_await give_up(problem);

    take_head(parser);
    if (parser.is_done()) body_read_ = true;  // no body follows
    request_.dialect = Router::dialect_of(request_.path);
    answer_headers_ = context_->gatekeeper(request_);
    static const Handler preflight = [](Exchange& e) -> awaitable<void> {
      Response empty;
      empty.status = 204;
      empty.content_type.clear();
      co_await e.send(std::move(empty));
    };
    const Handler& handler = request_.method == "OPTIONS" && !answer_headers_.empty() ? preflight : context_->router.find(request_, allow_);
    if (context_->draining) throw ApiError(Fault::overloaded, "the server is shutting down");
    const std::string_view encoding = request_.header("content-encoding");
    if (!encoding.empty() && encoding != "identity")
      throw ApiError(Fault::unsupported_media, "Content-Encoding " + std::string(encoding) + " is not supported; send the body as it is");
    if (const auto length = parser.content_length()) charge(*length);
    if (lower(request_.header("expect")) == "100-continue" && !body_read_) co_await write_all("HTTP/1.1 100 Continue\r\n\r\n");
    co_await read_body(parser);
    co_return &handler;
  }

  void take_head(Parser& parser) {
    const auto& message = parser.get();
    request_.method = view(message.method_string());
    for (const auto& field : message) request_.headers.emplace_back(lower(view(field.name_string())), std::string(view(field.value())));
    if (const auto id = request_.header("x-request-id"); usable_id(id)) request_.id = id;
    const std::string_view target = view(message.target());
    const size_t question = target.find('?');
    request_.path = collapse_slashes(percent_decoded(target.substr(0, question)));
    if (question != std::string_view::npos) request_.query = target.substr(question + 1);
    keep_alive_ = message.keep_alive();
    chunked_ = message.version() >= 11;
  }

  awaitable<void> read_body(Parser& parser) {
    const auto late = Clock::now() + limits_.body_wait;
    while (!parser.is_done()) {
      deadline_.set(std::min(late, Clock::now() + limits_.body_idle));
      error_code problem;
      co_await http::async_read_some(socket_, buffer_, parser, asio::redirect_error(asio::use_awaitable, problem));
      if (problem) co_await give_up(problem);
      charge(parser.get().body().size());
    }
    body_read_ = true;
    request_.body = std::move(parser.get().body());
  }

  // What all bodies together may take is bounded; a body is charged when its size is known.
  void charge(uint64_t bytes) {
    if (bytes <= body_charged_) return;
    const uint64_t more = bytes - body_charged_;
    if (bytes <= limits_.body_bytes && context_->body_bytes + more > limits_.bodies_bytes) {
      ApiError error(Fault::overloaded, "other requests' bodies take all the memory there is for them");
      error.retry_after_s = 1;
      throw error;
    }
    context_->body_bytes += more;
    body_charged_ = bytes;
  }

  // A request that cannot be read: what the client did decides whether there is anybody to tell.
  awaitable<void> give_up(error_code problem) {
    keep_alive_ = false;
    const bool half = problem == http::error::partial_message;  // it has closed its side in the middle of a request
    const bool closed = problem == http::error::end_of_stream || problem == asio::error::operation_aborted ||
                        problem == asio::error::connection_reset || problem == asio::error::bad_descriptor || half;
    if (closed && !deadline_.expired()) {
      gone_ = true;
      throw ClientGone();
    }
    throw fault_of(problem, deadline_.expired(), limits_);
    co_return;
  }

  std::string head(int status, std::string_view content_type, const Headers& headers) {
    status_ = status;
    const auto reason = http::obsolete_reason(static_cast<http::status>(status));
    std::string text = "HTTP/1.1 " + std::to_string(status) + " " + (status == 529 ? "Overloaded" : std::string(view(reason))) + "\r\n";
    if (context_->draining) keep_alive_ = false;
    text += "Date: " + http_date() + "\r\n";
    if (!content_type.empty()) text += "Content-Type: " + std::string(content_type) + "\r\n";
    text += "x-request-id: " + request_.id + "\r\nrequest-id: " + request_.id + "\r\n";
    for (const auto& [name, value] : answer_headers_) text += name + ": " + value + "\r\n";
    for (const auto& [name, value] : headers) text += name + ": " + value + "\r\n";
    text += keep_alive_ ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
    return text;
  }

  awaitable<void> write_all(std::string text) {
    if (gone_) throw ClientGone();
    deadline_.set_after(limits_.write_stall);
    error_code problem;
    co_await asio::async_write(socket_, asio::buffer(text), asio::redirect_error(asio::use_awaitable, problem));
    if (!problem) co_return;
    gone_ = true;
    keep_alive_ = false;
    throw ClientGone();
  }

  awaitable<void> linger() {
    error_code problem;
    socket_.shutdown(asio::ip::tcp::socket::shutdown_send, problem);
    deadline_.set_after(kLingerWait);
    std::vector<char> dropped(16 << 10);
    for (size_t total = 0; !problem && total < kLingerBytes;)
      total += co_await socket_.async_read_some(asio::buffer(dropped), asio::redirect_error(asio::use_awaitable, problem));
  }

  asio::ip::tcp::socket socket_;
  SocketDeadline deadline_;
  std::shared_ptr<ConnectionContext> context_;
  const Limits& limits_;
  beast::flat_buffer buffer_;
  HttpRequest request_;
  Headers answer_headers_;       // of every answer to this request
  std::string allow_, pending_;  // headers of a stream that wait for its first frame
  Clock::time_point began_;
  uint64_t body_charged_ = 0;
  int status_ = 0;
  bool waiting_ = false, begun_ = false, gone_ = false, keep_alive_ = true, chunked_ = true, body_read_ = false;
};

awaitable<void> serve_connection(asio::ip::tcp::socket socket, std::shared_ptr<ConnectionContext> context) {
  Connection connection(std::move(socket), std::move(context));
  co_await connection.run();
}

void close_idle(ConnectionContext& context) {
  for (Connection* connection : context.open)
    if (connection->waiting()) connection->close();
}

void close_all(ConnectionContext& context) {
  for (Connection* connection : context.open) connection->close();
}

}  // namespace verbund::serve
