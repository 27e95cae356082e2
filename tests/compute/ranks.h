// Runs a function as several ranks, a thread each, over a real mesh.
#pragma once

#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "compute/backend_fixture.h"
#include "mesh/connect.h"

namespace verbund::compute::testing {

inline void run_ranks(int size, const std::function<void(int rank, mesh::Mesh& mesh)>& f) {
  std::vector<mesh::MeshConfig> configs(static_cast<size_t>(size));
  std::vector<std::unique_ptr<mesh::Listener>> listeners;
  std::vector<std::string> endpoints;
  for (int r = 0; r < size; ++r) {
    mesh::MeshConfig& config = configs[static_cast<size_t>(r)];
    config.rank = r;
    config.size = size;
    config.secret = "0123456789abcdef0123456789abcdef";
    config.jitter_seed = 7;
    listeners.push_back(mesh::listen(config));
    endpoints.push_back(listeners.back()->endpoint());
  }
  std::vector<std::exception_ptr> failures(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r)
    threads.emplace_back([&, r] {
      const auto i = static_cast<size_t>(r);
      try {
        const auto mesh = mesh::connect_mesh(configs[i], *listeners[i], endpoints, soon());
        f(r, *mesh);
        mesh->barrier(soon());
      } catch (...) { failures[i] = std::current_exception(); }
    });
  for (std::thread& t : threads) t.join();
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

}  // namespace verbund::compute::testing
