// Runs one request of any dialect to its end: translation in the work pool, queue, events to deltas, frames out, keep-alive,
// deadlines, and cancellation when the client goes or does not read.
#pragma once

#include <functional>

#include "serve/generate.h"
#include "serve/http.h"
#include "serve/service.h"

namespace verbund::serve {

struct Translated {
  GenerateRequest request;
  std::unique_ptr<ReplyWriter> writer;
};
// Body to request; in the work pool. Throws ApiError.
using Translate = std::function<Translated(const ServedModel&, const HttpRequest&)>;

awaitable<void> answer(Exchange& exchange, Service& service, Translate translate);

}  // namespace verbund::serve
