#include "cli/link_measure.h"

#include <algorithm>
#include <array>
#include <chrono>

namespace verbund::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kStreamBytes = 32u << 20;  // of one stream: long against its start
constexpr int kStreams = 5;

Deadline per_call() { return Deadline::after(std::chrono::seconds(30)); }

double us_since(Clock::time_point begun) { return std::chrono::duration<double, std::micro>(Clock::now() - begun).count(); }

int repeats_of(uint64_t bytes, int repeat) {
  return static_cast<int>(std::max<uint64_t>(50, static_cast<uint64_t>(repeat) / (1 + bytes / 65536)));
}

// Microseconds of each call, sorted; some calls before are not counted.
template <class Call>
std::vector<double> timed(int repeat, Call&& call) {
  for (int i = 0; i < std::max(10, repeat / 10); ++i) call();
  std::vector<double> us(static_cast<size_t>(repeat));
  for (double& value : us) {
    const auto begun = Clock::now();
    call();
    value = us_since(begun);
  }
  std::sort(us.begin(), us.end());
  return us;
}

double at_share(const std::vector<double>& sorted, double share) {
  return sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1))];
}

LinkRow measure_pair(mesh::Mesh& mesh, int low, int high, uint64_t bytes, int repeat) {
  std::vector<std::byte> buffer(bytes);
  const bool first = mesh.rank() == low;
  const int peer = first ? high : low;
  const std::vector<double> us = timed(repeats_of(bytes, repeat), [&] {
    if (first) mesh.send(buffer, peer, per_call());
    mesh.recv(buffer, peer, per_call());
    if (!first) mesh.send(buffer, peer, per_call());
  });
  const auto messages = static_cast<int>(std::clamp<uint64_t>(kStreamBytes / bytes, 8, 4096));
  const std::vector<double> streams = timed(kStreams, [&] {
    for (int i = 0; i < messages; ++i) first ? mesh.send(buffer, peer, per_call()) : mesh.recv(buffer, peer, per_call());
    std::byte done{};
    first ? mesh.recv({&done, 1}, peer, per_call()) : mesh.send({&done, 1}, peer, per_call());
  });
  return {bytes, at_share(us, 0.5) / 2, at_share(us, 0.99) / 2, static_cast<double>(bytes) * messages / at_share(streams, 0.5) / 1e3};
}

LinkRow measure_all_reduce(mesh::Mesh& mesh, uint64_t bytes, int repeat) {
  std::vector<int64_t> data(bytes / sizeof(int64_t), 1);
  const std::vector<double> us = timed(repeats_of(bytes, repeat), [&] { mesh.all_reduce(std::span(data), per_call()); });
  return {bytes, at_share(us, 0.5), at_share(us, 0.99), static_cast<double>(bytes) / at_share(us, 0.5) / 1e3};
}

// What rank `root` knows, for all.
template <class T>
T shared(mesh::Mesh& mesh, T value, int root) {
  mesh.broadcast(std::as_writable_bytes(std::span(&value, 1)), root, per_call());
  return value;
}

// What carries the link between two ranks.
std::string transport_of(mesh::Mesh& mesh, int low, int high) {
  std::array<char, 32> name{};
  for (const mesh::Mesh::LinkInfo& link : mesh.links())
    if (mesh.rank() == low && link.peer == high)
      std::copy_n(link.transport.begin(), std::min(link.transport.size(), name.size() - 1), name.begin());
  return shared(mesh, name, low).data();
}

}  // namespace

MeshFigures measure_links(mesh::Mesh& mesh, const LinkMeasurement& what) {
  MeshFigures figures;
  figures.ranks = mesh.size();
  for (int low = 0; what.pairs && low < mesh.size(); ++low)
    for (int high = low + 1; high < mesh.size(); ++high) {
      PairFigures pair{low, high, transport_of(mesh, low, high), {}};
      for (const uint64_t bytes : what.sizes) {
        LinkRow row{};
        if (mesh.rank() == low || mesh.rank() == high) row = measure_pair(mesh, low, high, bytes, what.repeat);
        pair.rows.push_back(shared(mesh, row, low));
      }
      figures.pairs.push_back(std::move(pair));
    }
  for (const uint64_t bytes : what.sizes) figures.all_reduce.push_back(shared(mesh, measure_all_reduce(mesh, bytes, what.repeat), 0));
  return figures;
}

}  // namespace verbund::cli
