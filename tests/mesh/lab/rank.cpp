// One rank of two on a machine of its own, for scripts/check-rdma: what the unit tests cannot show on one host.
//   rdma_rank RANK OWN_ADDRESS ADDRESS_OF_RANK_0 rc|uc|auto exact|brief|forever [DEADLINE_S]
// exact: two hundred reductions, checked. brief: four. forever: until something ends them; prints what, and after how long.
// Exit status: 0 done, 1 an Error, which is printed; 2 a wrong sum.
#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/unix.h"
#include "mesh/connect.h"
#include "mesh/sockets.h"

namespace verbund::mesh {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr uint16_t kPort = 7700;
constexpr size_t kTextBytes = 128;  // of an endpoint on its way to the other machine

Deadline in(double seconds) { return Deadline::after(std::chrono::duration_cast<std::chrono::nanoseconds>(Seconds(seconds))); }

// The other machine may still be booting.
Fd meet(int rank, const std::string& first) {
  const Address address = tcp_address(first, kPort);
  const Deadline deadline = in(60);
  if (rank == 0) {
    const Fd listener = listen_on(address, 1);
    pollfd p{listener.get(), POLLIN, 0};
    ::poll(&p, 1, deadline.left_ms());
    Fd met(::accept(listener.get(), nullptr, nullptr));
    if (!met.valid()) throw Error(Code::deadline_exceeded, "rank 1 did not come");
    prepare_stream(met, AF_INET);
    return met;
  }
  for (; !deadline.expired(); std::this_thread::sleep_for(std::chrono::milliseconds(100))) {
    Fd met = open_stream(AF_INET);
    if (::connect(met.get(), address.get(), address.length) != 0 && errno != EINPROGRESS) continue;
    pollfd p{met.get(), POLLOUT, 0};
    int error = 1;
    socklen_t length = sizeof error;
    if (::poll(&p, 1, 1000) == 1 && ::getsockopt(met.get(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0) return met;
  }
  throw Error(Code::deadline_exceeded, "rank 0 cannot be reached");
}

std::vector<std::string> exchange(const Fd& met, int rank, std::string mine) {
  std::string theirs(kTextBytes, '\0');
  std::string sent = mine;
  sent.resize(kTextBytes);
  send_exact(met.get(), std::as_bytes(std::span(sent)), in(30), "the other machine");
  recv_exact(met.get(), std::as_writable_bytes(std::span(theirs)), in(30), "the other machine");
  theirs.resize(theirs.find('\0'));
  return rank == 0 ? std::vector{mine, theirs} : std::vector{theirs, mine};
}

bool reduce(Mesh& mesh, size_t count, int64_t round, double deadline_s) {
  std::vector<int64_t> data(count);
  for (size_t i = 0; i < count; ++i) data[i] = static_cast<int64_t>(i) * (mesh.rank() + 1) + round;
  mesh.all_reduce(std::span(data), in(deadline_s));
  for (size_t i = 0; i < count; ++i)
    if (data[i] != static_cast<int64_t>(i) * 3 + 2 * round) return false;
  return true;
}

int run(int argc, char** argv) {
  if (argc < 6) return 64;
  MeshConfig config;
  config.rank = std::atoi(argv[1]);
  config.size = 2;
  config.secret = "0123456789abcdef";
  config.host = argv[2];
  config.transport = Transport::verbs;
  config.verbs = {true, queue_pair_from_string(argv[4]), {}};
  const std::string mode = argv[5];
  const int64_t rounds = mode == "forever" ? INT64_MAX : mode == "brief" ? 2 : 100;
  const double deadline_s = argc > 6 ? std::atof(argv[6]) : 20;

  auto begun = std::chrono::steady_clock::now();
  std::unique_ptr<Mesh> mesh;  // its end is not part of the time
  try {
    const auto listener = listen(config);
    const Fd met = meet(config.rank, argv[3]);
    mesh = connect_mesh(config, *listener, exchange(met, config.rank, listener->endpoint()), in(30));
    fmt::print("rank {}: connected by {}\n", config.rank, mesh->links().front().transport);
    std::fflush(stdout);
    for (int64_t round = 0; round < rounds; ++round) {
      begun = std::chrono::steady_clock::now();
      for (const size_t count : {size_t(576), size_t(20'000)})
        if (!reduce(*mesh, count, round, deadline_s)) {
          fmt::print("rank {}: wrong sum in round {}\n", config.rank, round);
          return 2;
        }
      if (round == 1) {
        fmt::print("rank {}: running\n", config.rank);
        std::fflush(stdout);
      }
    }
    fmt::print("rank {}: all sums right\n", config.rank);
    return 0;
  } catch (const Error& e) {
    fmt::print("rank {}: {} after {:.1f} s: {}\n", config.rank, to_string(e.code()),
               Seconds(std::chrono::steady_clock::now() - begun).count(), e.what());
    return 1;
  }
}

}  // namespace
}  // namespace verbund::mesh

int main(int argc, char** argv) { return verbund::mesh::run(argc, argv); }
