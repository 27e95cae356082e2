// MlxMesh: mesh::Mesh over MLX groups.
//
// Each operation first gathers a header (operation, sequence number, length) from every rank; ranks that diverge learn it
// there, before any payload of the wrong size is awaited. That costs one small exchange per operation, which MLX's own
// latency dwarfs (docs/DESIGN.md section 7: about 100 us an evaluation). The sums of a step of the MLX backend are nodes of
// its graph and share one header.
//
// A ring has no subgroups and reaches neighbours only. Both are had by further rings: at the start every rank reserves one
// port for each rank that may become its left neighbour, and the table of all ports goes to everybody; from then on any
// set of ranks can form a ring without asking the others. A ring costs 32 MiB (kMlxRingBytes), so pairs are made on first use.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <numeric>
#include <string>

#include "base/bytes.h"
#include "compute/mlx/graph_mesh.h"
#include "compute/mlx/mlx_mesh.h"
#include "compute/mlx/ring.h"

namespace verbund::compute::mlx_impl {
namespace {

enum class Op : int64_t { all_reduce_i64 = 1, all_reduce_f32, all_gather, broadcast, send, barrier, sums };

const char* name_of(int64_t op) {
  static constexpr const char* kNames[] = {"all_reduce of int64", "all_reduce of f32", "all_gather", "broadcast", "send", "barrier",
                                           "the sums of a step"};
  return op >= 1 && op <= 7 ? kNames[op - 1] : "an unknown operation";
}

using Header = std::array<int64_t, 4>;  // Op, sequence number, length, mesh (of those that share a group)

std::string text_of(const Header& h) {
  return std::string(name_of(h[0])) + " number " + std::to_string(h[1]) + ", length " + std::to_string(h[2]) + ", mesh " +
         std::to_string(h[3]);
}

mx::array bytes_in(std::span<const std::byte> data) {
  mx::array a = make_array({static_cast<int>(data.size())}, mx::uint8);
  std::memcpy(a.data<std::byte>(), data.data(), data.size());
  return a;
}

void copy_out(mx::array a, void* into, size_t bytes) {
  mx::eval(a);
  std::memcpy(into, a.data<std::byte>(), bytes);
}

// What a mesh and its subgroups share: the peers' endpoints, the rings and the one thread that guards them.
struct Fabric {
  struct Traffic {
    uint64_t sent = 0, received = 0;
  };
  std::string group;                   // "ring", ...
  int rank = 0, size = 1;              // in the whole mesh
  std::vector<std::string> addresses;  // ring: by rank
  std::vector<ReservedPort> reserved;  // ring: ours, by left neighbour
  std::vector<int64_t> ports;          // ring: [rank * size + left neighbour]
  Watchdog dog;
  std::map<int, std::shared_ptr<Channel>> pairs;  // by peer
  size_t rings = 0;
  std::map<int, Traffic> traffic;  // by peer, of all meshes; payload, not what the ring's route makes of it

  // The ring of these ranks of the whole mesh (ascending, ours among them).
  std::shared_ptr<Channel> open(const std::vector<int>& members, const Deadline& deadline) {
    std::vector<std::string> nodes;
    int mine = 0;
    for (size_t i = 0; i < members.size(); ++i) {
      const int member = members[i], left = members[(i + members.size() - 1) % members.size()];
      const auto port = ports[static_cast<size_t>(member) * static_cast<size_t>(size) + static_cast<size_t>(left)];
      nodes.push_back(addresses[static_cast<size_t>(member)] + ":" + std::to_string(port));
      if (member == rank) mine = static_cast<int>(i);
    }
    ++rings;
    return open_ring(nodes, mine, dog, deadline);
  }
};

class MlxMesh final : public mesh::Mesh, public GraphMesh {
 public:
  MlxMesh(std::shared_ptr<Fabric> fabric, std::vector<int> members, std::shared_ptr<Channel> channel, int64_t id = 0)
      : fabric_(std::move(fabric)), members_(std::move(members)), channel_(std::move(channel)), id_(id) {
    rank_ = static_cast<int>(std::find(members_.begin(), members_.end(), fabric_->rank) - members_.begin());
    sent_.resize(members_.size());
    received_.resize(members_.size());
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }

  void all_reduce(std::span<int64_t> data, const Deadline& deadline) override {
    collective(Op::all_reduce_i64, data.size(), deadline, [&] {
      if (data.size_bytes() > mesh::kOneShotBytesMax) return sum_in_ring(data, mx::int64);
      sum_gathered(data);
    });
  }

  void all_reduce(std::span<float> data, const Deadline& deadline) override {
    collective(Op::all_reduce_f32, data.size(), deadline, [&] { sum_gathered(data); });  // MLX's own sum has no fixed order
  }

  void all_gather(std::span<const std::byte> mine, std::span<const size_t> sizes, std::span<std::byte> all,
                  const Deadline& deadline) override {
    size_t total = 0, widest = 0;
    for (const size_t s : sizes) total += s, widest = std::max(widest, s);
    if (sizes.size() != members_.size() || mine.size() != sizes[static_cast<size_t>(rank_)] || all.size() != total)
      throw Error(Code::invalid_argument, "sizes do not fit the buffers", place("all_gather"));
    const auto checked = static_cast<int64_t>(checksum(std::as_bytes(sizes)) >> 1);
    collective(Op::all_gather, static_cast<size_t>(checked), deadline, [&] {
      if (widest == 0) return;
      std::vector<std::byte> padded(mine.begin(), mine.end());
      padded.resize(widest);
      std::vector<std::byte> gathered(widest * members_.size());
      gather(padded, gathered);
      std::byte* to = all.data();
      for (size_t r = 0; r < sizes.size(); to += sizes[r], ++r) std::memcpy(to, gathered.data() + r * widest, sizes[r]);
    });
  }

  void broadcast(std::span<std::byte> data, int root, const Deadline& deadline) override {
    if (root < 0 || root >= size()) throw Error(Code::invalid_argument, "no rank " + std::to_string(root), place("broadcast"));
    // The root is part of what must agree.
    collective(Op::broadcast, data.size() * members_.size() + static_cast<size_t>(root), deadline, [&] {
      if (data.empty()) return;
      if (rank_ != root) std::memset(data.data(), 0, data.size());
      sum_in_ring(data, mx::uint8);  // everybody else adds zeros
    });
  }

  void send(std::span<const std::byte> data, int to, const Deadline& deadline) override {
    const size_t peer = peer_index(to, "send");
    guard("send to rank " + std::to_string(to), deadline, [&] {
      const auto [channel, index] = channel_to(to, deadline);
      const Header header{static_cast<int64_t>(Op::send), sent_[peer]++, static_cast<int64_t>(data.size()), id_};
      send_bytes(*channel, index, std::as_bytes(std::span(header)));
      if (!data.empty()) send_bytes(*channel, index, data);
      traffic_with(peer).sent += data.size();
    });
  }

  void recv(std::span<std::byte> data, int from, const Deadline& deadline) override {
    const size_t peer = peer_index(from, "recv");
    guard("recv from rank " + std::to_string(from), deadline, [&] {
      const auto [channel, index] = channel_to(from, deadline);
      const Header wanted{static_cast<int64_t>(Op::send), received_[peer]++, static_cast<int64_t>(data.size()), id_};
      Header got{};
      recv_bytes(*channel, index, std::as_writable_bytes(std::span(got)));
      if (got != wanted) diverged(from, got, wanted);
      if (!data.empty()) recv_bytes(*channel, index, data);
      traffic_with(peer).received += data.size();
    });
  }

  void barrier(const Deadline& deadline) override {
    collective(Op::barrier, 0, deadline, [] {});
  }

  mx::array sum_later(const mx::array& x) override {
    later_sizes_.push_back(x.nbytes());
    return mx::distributed::all_sum(x, channel_->group());
  }

  // One exchange of headers for the whole step: the number of its sums and their sizes, in order.
  void evaluate_sums(const std::function<void()>& evaluate, const Deadline& deadline) override {
    const std::vector<size_t> sizes = std::exchange(later_sizes_, {});
    collective(Op::sums, checksum(std::as_bytes(std::span(sizes))) >> 1, deadline, evaluate);
    count_traffic(std::accumulate(sizes.begin(), sizes.end(), size_t{0}));
  }

  std::unique_ptr<Mesh> subgroup(std::span<const int> ranks) override {
    std::vector<int> members;
    for (const int r : ranks) {
      if (r < 0 || r >= size() || (!members.empty() && members_[static_cast<size_t>(r)] <= members.back()))
        throw Error(Code::invalid_argument, "ranks of a subgroup must exist and ascend", place("subgroup"));
      members.push_back(members_[static_cast<size_t>(r)]);
    }
    if (std::find(members.begin(), members.end(), fabric_->rank) == members.end())
      throw Error(Code::invalid_argument, "a subgroup must hold the rank that makes it", place("subgroup"));
    if (members.size() == 1) return mesh::make_solo_mesh();
    if (members == members_) return std::make_unique<MlxMesh>(fabric_, std::move(members), channel_, ++twins_ * kTwinStep + id_);
    const Deadline deadline = Deadline::after(kSubgroupWait);
    std::shared_ptr<Channel> channel;
    guard("subgroup of " + std::to_string(members.size()), deadline, [&] { channel = open_subgroup(members, deadline); });
    auto made = std::make_unique<MlxMesh>(fabric_, std::move(members), std::move(channel));
    made->barrier(deadline);  // nobody reuses a port of the table before everybody has let go of it
    return made;
  }

  void cancel(const std::string& reason) override {
    fabric_->dog.kill({Code::cancelled, Lost::instance, "cancelled: " + reason, place("mesh"), {}});
  }

  std::vector<LinkInfo> links() const override {
    std::vector<LinkInfo> links;
    for (size_t i = 0; i < members_.size(); ++i)
      if (static_cast<int>(i) != rank_) links.push_back({static_cast<int>(i), "mlx", traffic_with(i).sent, traffic_with(i).received});
    return links;
  }

  uint64_t buffer_bytes() const override { return fabric_->rings * kMlxRingBytes; }

 private:
  static constexpr std::chrono::seconds kSubgroupWait{60};  // MLX itself gives up connecting after 31 s

  static constexpr int64_t kTwinStep = 1 << 16;

  std::string place(const std::string& operation) const {
    return operation + ", rank " + std::to_string(rank_) + " of " + std::to_string(size()) + ", mlx " + fabric_->group;
  }

  // Every operation passes here: alive before, watched during, and one error afterwards for everything that went wrong.
  template <class F>
  void guard(const std::string& operation, const Deadline& deadline, F&& body) {
    fabric_->dog.throw_if_dead();
    const Watchdog::Watch watch(fabric_->dog, place(operation), deadline);
    try {
      body();
    } catch (const Error& e) { fabric_->dog.kill(e.parts()); } catch (...) {
      // A ring fails when a peer is gone, and also when the watchdog has shut it down: then the first reason stays.
      const Error e = error_of_mlx(operation);
      fabric_->dog.kill({Code::unavailable, Lost::instance, e.parts().what, place(operation), "a rank has ended; see its log"});
    }
    fabric_->dog.throw_if_dead();
  }

  template <class F>
  void collective(Op op, size_t length, const Deadline& deadline, F&& body) {
    guard(name_of(static_cast<int64_t>(op)), deadline, [&] {
      agree({static_cast<int64_t>(op), sequence_++, static_cast<int64_t>(length), id_});
      body();
    });
  }

  void agree(const Header& mine) {
    std::vector<Header> all(members_.size());
    gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
    for (size_t r = 0; r < all.size(); ++r)
      if (all[r] != mine) diverged(static_cast<int>(r), all[r], mine);
  }

  [[noreturn]] void diverged(int peer, const Header& theirs, const Header& mine) const {
    throw Error(
        Error::Parts{Code::data_loss, Lost::instance,
                     "ranks diverged: rank " + std::to_string(peer) + " is at " + text_of(theirs) + "; this rank is at " + text_of(mine),
                     place("mesh"), "this is a fault of the program; please report it with the logs of all ranks"});
  }

  void gather(std::span<const std::byte> mine, std::span<std::byte> all) {
    copy_out(mx::distributed::all_gather(bytes_in(mine), channel_->group(), mx::Device::cpu), all.data(), all.size());
    count_traffic(mine.size());
  }

  Fabric::Traffic& traffic_with(size_t peer) const { return fabric_->traffic[members_[peer]]; }

  // Of an operation in which every rank sends as much to everybody.
  void count_traffic(size_t bytes) {
    for (size_t r = 0; r < members_.size(); ++r) {
      if (static_cast<int>(r) == rank_) continue;
      traffic_with(r).sent += bytes;
      traffic_with(r).received += bytes;
    }
  }

  template <class T>
  void sum_gathered(std::span<T> data) {
    if (data.empty()) return;
    std::vector<T> all(data.size() * members_.size());
    gather(std::as_bytes(data), std::as_writable_bytes(std::span(all)));
    std::copy_n(all.begin(), data.size(), data.begin());
    for (size_t r = 1; r < members_.size(); ++r)
      for (size_t i = 0; i < data.size(); ++i) data[i] += all[r * data.size() + i];
  }

  template <class T>
  void sum_in_ring(std::span<T> data, mx::Dtype type) {
    mx::array a = make_array({static_cast<int>(data.size())}, type);
    std::memcpy(a.data<std::byte>(), data.data(), data.size_bytes());
    copy_out(mx::distributed::all_sum(a, channel_->group(), mx::Device::cpu), data.data(), data.size_bytes());
    count_traffic(data.size_bytes());
  }

  size_t peer_index(int peer, const char* operation) const {
    if (peer < 0 || peer >= size() || peer == rank_)
      throw Error(Code::invalid_argument, "no peer " + std::to_string(peer), place(operation));
    return static_cast<size_t>(peer);
  }

  // The group through which `peer` is reached, and its rank there.
  std::pair<std::shared_ptr<Channel>, int> channel_to(int peer, const Deadline& deadline) {
    const bool neighbour = peer == (rank_ + 1) % size() || rank_ == (peer + 1) % size();
    if (neighbour || fabric_->group != "ring") return {channel_, peer};
    const int other = members_[static_cast<size_t>(peer)], mine = fabric_->rank;
    auto& pair = fabric_->pairs[other];
    if (!pair) pair = fabric_->open({std::min(mine, other), std::max(mine, other)}, deadline);
    return {pair, other < mine ? 0 : 1};
  }

  void send_bytes(const Channel& channel, int to, std::span<const std::byte> data) {
    mx::eval(mx::distributed::send(bytes_in(data), to, channel.group(), mx::Device::cpu));
  }

  void recv_bytes(const Channel& channel, int from, std::span<std::byte> data) {
    copy_out(mx::distributed::recv({static_cast<int>(data.size())}, mx::uint8, from, channel.group(), mx::Device::cpu), data.data(),
             data.size());
  }

  // Launcher groups are split by MLX, which involves every rank of this mesh: all must make a subgroup at this point.
  std::shared_ptr<Channel> open_subgroup(const std::vector<int>& members, const Deadline& deadline) {
    if (fabric_->group == "ring") return fabric_->open(members, deadline);
    const auto place = std::find(members.begin(), members.end(), fabric_->rank) - members.begin();
    return std::make_shared<Channel>(channel_->group().split(members[0], static_cast<int>(place)), std::vector<int>{}, fabric_->dog);
  }

  std::shared_ptr<Fabric> fabric_;
  std::vector<int> members_;  // ranks of the whole mesh, ascending
  std::shared_ptr<Channel> channel_;
  int rank_ = 0;
  int64_t id_;  // 0, or that of a subgroup of all, which shares its parent's group
  int64_t twins_ = 0;
  int64_t sequence_ = 0;
  std::vector<int64_t> sent_, received_;  // messages per peer
  std::vector<size_t> later_sizes_;       // of the sums asked for and not evaluated, in bytes
};

void reserve_table(Fabric& fabric, MlxMesh& mesh, const Deadline& deadline) {
  const auto size = static_cast<size_t>(fabric.size);
  std::vector<int64_t> mine(size, 0);
  for (size_t left = 0; left < size; ++left) {
    fabric.reserved.push_back(reserve_port(fabric.addresses[static_cast<size_t>(fabric.rank)]));
    mine[left] = fabric.reserved.back().port;
  }
  fabric.ports.resize(size * size);
  const std::vector<size_t> sizes(size, size * sizeof(int64_t));
  mesh.all_gather(std::as_bytes(std::span(mine)), sizes, std::as_writable_bytes(std::span(fabric.ports)), deadline);
}

std::unique_ptr<mesh::Mesh> open_ring_mesh(const MlxMeshOptions& options, const Deadline& deadline) {
  const int size = static_cast<int>(options.endpoints.size());
  if (size < 1 || options.rank < 0 || options.rank >= size)
    throw Error(Code::invalid_argument, "rank " + std::to_string(options.rank) + " of " + std::to_string(size) + " endpoints", "mlx ring");
  if (size == 1) return mesh::make_solo_mesh();
  auto fabric = std::make_shared<Fabric>();
  fabric->group = "ring";
  fabric->rank = options.rank;
  fabric->size = size;
  std::vector<std::string> nodes;
  std::vector<int> members;
  for (const auto& text : options.endpoints) {
    const Endpoint endpoint = parse_endpoint(text);
    fabric->addresses.push_back(endpoint.address);
    nodes.push_back(endpoint.text());
    members.push_back(static_cast<int>(members.size()));
  }
  fabric->rings = 1;
  auto made = std::make_unique<MlxMesh>(fabric, std::move(members), open_ring(nodes, options.rank, fabric->dog, deadline));
  reserve_table(*fabric, *made, deadline);
  return made;
}

std::unique_ptr<mesh::Mesh> open_named_mesh(const MlxMeshOptions& options, const Deadline& deadline) {
  auto fabric = std::make_shared<Fabric>();
  auto channel = open_named(options.group, fabric->dog, deadline);
  fabric->group = options.group;
  fabric->rank = channel->group().rank();
  fabric->size = channel->group().size();
  if (fabric->rank != options.rank)
    throw Error(Code::invalid_argument,
                "the launcher says rank " + std::to_string(fabric->rank) + ", wanted " + std::to_string(options.rank),
                "mlx " + options.group);
  if (fabric->size == 1) return mesh::make_solo_mesh();
  std::vector<int> members;
  for (int r = 0; r < fabric->size; ++r) members.push_back(r);
  return std::make_unique<MlxMesh>(fabric, std::move(members), std::move(channel));
}

}  // namespace

std::unique_ptr<mesh::Mesh> make_mesh(const MlxMeshOptions& options, const Deadline& deadline) {
  return guarded("opening a group",
                 [&] { return options.group == "ring" ? open_ring_mesh(options, deadline) : open_named_mesh(options, deadline); });
}

}  // namespace verbund::compute::mlx_impl
