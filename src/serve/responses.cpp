// POST /v1/responses and what belongs to stored ones.
#include "serve/answer.h"
#include "serve/off_thread.h"
#include "serve/prepare.h"
#include "serve/responses_writer.h"
#include "serve/routes.h"

namespace verbund::serve {
namespace {

using Store = std::shared_ptr<ResponseStore>;

Translated translate(const ServedModel& model, const HttpRequest& request, const Store& store) {
  ResponsesRequest r = read_responses(model, *store, parse_body(request.body));
  ResponsesWriter::Done done = [](const std::string&, const Json&) {};
  if (r.store) done = [store, input = r.input](const std::string& id, const Json& response) { store->put(id, {response, input}); };
  auto writer = std::make_unique<ResponsesWriter>(model, r, std::move(done));
  return {std::move(r.generate), std::move(writer)};
}

StoredResponse stored(const Store& store, const std::string& id) {
  auto found = store->get(id);
  if (!found) throw ApiError(Fault::not_found, "there is no stored response '" + id + "'");
  return std::move(*found);
}

// GET /v1/responses/ID and /v1/responses/ID/input_items
Response get(const Store& store, std::string id) {
  constexpr std::string_view kItems = "/input_items";
  if (!id.ends_with(kItems)) return json_response(stored(store, id).response);
  id.resize(id.size() - kItems.size());
  Json items = stored(store, id).input;
  for (size_t i = 0; i < items.size(); ++i)
    if (items[i].is_object() && !items[i].contains("id")) items[i]["id"] = "item_" + std::to_string(i) + "_" + id;
  const auto id_of = [](const Json& item) { return item.is_object() ? item.value("id", "") : std::string(); };
  return json_response({{"object", "list"},
                        {"data", items},
                        {"first_id", items.empty() ? "" : id_of(items.front())},
                        {"last_id", items.empty() ? "" : id_of(items.back())},
                        {"has_more", false}});
}

Response erase(const Store& store, const std::string& id) {
  if (!store->erase(id)) throw ApiError(Fault::not_found, "there is no stored response '" + id + "'");
  return json_response({{"id", id}, {"object", "response"}, {"deleted", true}});
}

awaitable<void> input_tokens(Exchange& exchange, Service& service, Store store) {
  const HttpRequest& request = exchange.request();
  std::function<size_t()> work = [&service, &request, store] {
    const ResponsesRequest r = read_responses(service.model(), *store, parse_body(request.body));
    return encode(service.model(), r.generate.prompts.front()).size();
  };
  const size_t tokens = co_await off_thread<size_t>(service.work(), exchange.executor(), std::move(work));
  Response response = json_response({{"object", "response.input_tokens"}, {"input_tokens", tokens}});
  co_await exchange.send(std::move(response));
}

}  // namespace

void add_responses_routes(Router& router, Service& service) {
  const auto store = std::make_shared<ResponseStore>();
  const Translate translate_body = [store](const ServedModel& model, const HttpRequest& request) {
    return translate(model, request, store);
  };
  router.add("POST", "/v1/responses", Dialect::responses,
             [&service, translate_body](Exchange& e) -> awaitable<void> { co_await answer(e, service, translate_body); });
  router.add("POST", "/v1/responses/input_tokens", Dialect::responses,
             [&service, store](Exchange& e) -> awaitable<void> { co_await input_tokens(e, service, store); });
  router.add("GET", "/v1/responses/*", Dialect::responses,
             [store](Exchange& e) -> awaitable<void> { co_await e.send(get(store, e.request().parameter)); });
  router.add("DELETE", "/v1/responses/*", Dialect::responses,
             [store](Exchange& e) -> awaitable<void> { co_await e.send(erase(store, e.request().parameter)); });
  // Only running responses can be cancelled, and one runs only while its client listens: who closes the stream cancels it.
  router.add("POST", "/v1/responses/*", Dialect::responses, [](Exchange& e) -> awaitable<void> {
    throw ApiError(Fault::not_found, "there is no running response '" + e.request().parameter + "'");
    co_return;
  });
}

}  // namespace verbund::serve
