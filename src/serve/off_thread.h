// Runs a function on a pool and resumes the coroutine in its own executor with the result; exceptions pass through.
#pragma once

#include "serve/http.h"

#include <boost/asio/async_result.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <functional>
#include <memory>
#include <optional>

namespace verbund::serve {

// The coroutine must not be destroyed while this waits: connections live until their handler returns.
template <class T>
awaitable<T> off_thread(boost::asio::thread_pool& pool, boost::asio::any_io_executor executor, std::function<T()> work) {
  struct State {
    std::optional<T> result;
    std::exception_ptr problem;
  };
  auto state = std::make_shared<State>();
  auto run = [&pool, executor, state, work = std::move(work)](auto handler) mutable {
    auto shared = std::make_shared<decltype(handler)>(std::move(handler));
    boost::asio::post(pool, [executor, state, shared, work = std::move(work)] {
      try {
        state->result.emplace(work());
      } catch (...) { state->problem = std::current_exception(); }
      boost::asio::post(executor, [shared] { (*shared)(); });
    });
  };
  co_await boost::asio::async_initiate<decltype(boost::asio::use_awaitable), void()>(std::move(run), boost::asio::use_awaitable);
  if (state->problem) std::rethrow_exception(state->problem);
  co_return std::move(*state->result);
}

}  // namespace verbund::serve
