#include "mesh/group_mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/bytes.h"
#include "mesh/sum.h"

namespace verbund::mesh {
namespace {

template <class T>
std::span<const std::byte> bytes_of(std::span<T> data) {
  return std::as_bytes(data);
}

FrameHeader part_of(FrameHeader operation, uint8_t phase, uint64_t payload_bytes) {
  operation.phase = phase;
  operation.payload_bytes = payload_bytes;
  return operation;
}

// Moves what has arrived of the peer's frame to its place in `into`.
void take(Peer& peer, std::span<std::byte> into) {
  for (auto window = peer.arrived(); !window.empty(); window = peer.arrived()) {
    std::memcpy(into.data() + peer.received_bytes(), window.data(), window.size());
    peer.consume(window.size());
  }
}

Error wrong_argument(std::string what) { return Error({Code::invalid_argument, Lost::instance, std::move(what), {}, {}}); }

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Part of a vector that rank r of `ranks` sums in a two-shot all-reduce; on cache lines, so the last ones may be empty.
Range owned_part(size_t count, size_t element_bytes, size_t ranks, size_t r) {
  const size_t part = round_up(ceil_div(count, ranks), kLineBytes / element_bytes);
  return {std::min(count, r * part), std::min(count, (r + 1) * part)};
}

}  // namespace

GroupMesh::GroupMesh(std::shared_ptr<Fabric> fabric) : GroupMesh(fabric, all_ranks(fabric->size()), 0) {}

GroupMesh::GroupMesh(std::shared_ptr<Fabric> fabric, std::vector<int> members, uint32_t id)
    : fabric_(std::move(fabric)), members_(std::move(members)), id_(id), sent_to_(members_.size()), received_from_(members_.size()) {
  for (int world_rank : members_)
    if (world_rank != fabric_->rank()) peers_.push_back(&fabric_->peer(world_rank));
  rank_ = static_cast<int>(std::find(members_.begin(), members_.end(), fabric_->rank()) - members_.begin());
  lower_ = static_cast<size_t>(rank_);
  windows_.resize(peers_.size());
  gathering_out_.resize(peers_.size());
  gathering_in_.resize(peers_.size());
}

FrameHeader GroupMesh::next(Op op, uint64_t operation_bytes) {
  return {.op = op, .group = id_, .sequence = sequence_++, .operation_bytes = operation_bytes, .payload_bytes = operation_bytes};
}

void GroupMesh::all_reduce(std::span<int64_t> data, const Deadline& deadline) { reduce(data, Op::all_reduce_i64, deadline); }
void GroupMesh::all_reduce(std::span<float> data, const Deadline& deadline) { reduce(data, Op::all_reduce_f32, deadline); }

template <class T>
void GroupMesh::reduce(std::span<T> data, Op op, const Deadline& deadline) {
  const FrameHeader operation = next(op, data.size_bytes());
  if (data.size_bytes() <= kOneShotBytesMax)
    reduce_one_shot(data, operation, deadline);
  else
    reduce_two_shot(data, operation, deadline);
}

template <class T>
void GroupMesh::reduce_one_shot(std::span<T> data, const FrameHeader& operation, const Deadline& deadline) {
  const auto bytes = bytes_of(data);
  for (Peer* peer : peers_) peer->begin_send(operation), peer->begin_recv(operation);
  size_t summed = 0;
  fabric_->run(operation, peers_, deadline, [&] {
    // The sum goes where the vector was, so no element may be summed before it has gone to every peer.
    size_t sent = bytes.size();
    bool all = true;
    for (Peer* peer : peers_) {
      sent = std::min(sent, peer->push(bytes, bytes.size()));
      all = all && peer->sent();
    }
    return sum_arrived(data, summed, sent) && all;
  });
}

// Sums the elements of `part` that have arrived from all peers, up to bytes_max. True when the whole part is done.
template <class T>
bool GroupMesh::sum_arrived(std::span<T> part, size_t& summed_bytes, size_t bytes_max) {
  for (;;) {
    size_t bytes = bytes_max - summed_bytes;
    for (size_t p = 0; p < peers_.size(); ++p) {
      const auto window = peers_[p]->arrived();
      windows_[p] = window.data();
      bytes = std::min(bytes, window.size());
    }
    bytes -= bytes % sizeof(T);
    if (bytes == 0) break;
    const std::span<const std::byte* const> windows(windows_);
    sum_in_order(part.subspan(summed_bytes / sizeof(T), bytes / sizeof(T)), windows.first(lower_), windows.subspan(lower_));
    for (Peer* peer : peers_) peer->consume(bytes);
    summed_bytes += bytes;
  }
  return std::all_of(peers_.begin(), peers_.end(), [](const Peer* peer) { return peer->received(); });
}

template <class T>
void GroupMesh::reduce_two_shot(std::span<T> data, const FrameHeader& operation, const Deadline& deadline) {
  const auto part = [&](int r) {
    const Range range = owned_part(data.size(), sizeof(T), members_.size(), static_cast<size_t>(r));
    return data.subspan(range.begin, range.size());
  };
  const auto place = [&](size_t p) { return static_cast<int>(p < lower_ ? p : p + 1); };  // of peers_[p] in the group
  const auto mine = part(rank_);
  for (size_t p = 0; p < peers_.size(); ++p) {
    peers_[p]->begin_send(part_of(operation, 1, part(place(p)).size_bytes()));
    peers_[p]->begin_recv(part_of(operation, 1, mine.size_bytes()));
    gathering_out_[p] = gathering_in_[p] = false;
  }
  size_t summed = 0;
  // A part of `data` is overwritten by its sum only after its owner has received ours, so sending from it is safe.
  fabric_->run(operation, peers_, deadline, [&] {
    bool all = true;
    if (summed < mine.size_bytes()) sum_arrived(mine, summed, mine.size_bytes());
    for (size_t p = 0; p < peers_.size(); ++p) {
      Peer& peer = *peers_[p];
      const auto theirs = part(place(p));
      if (!gathering_out_[p]) {
        peer.push(bytes_of(theirs), theirs.size_bytes());
        if (peer.sent()) {
          peer.begin_send(part_of(operation, 2, mine.size_bytes()));
          gathering_out_[p] = true;
        }
      }
      if (gathering_out_[p]) peer.push(bytes_of(mine), summed);
      if (!gathering_in_[p]) {
        // An empty part still has a header. Otherwise only sum_arrived() may look: what a step has seen and left lying wakes nobody.
        if (mine.empty()) peer.arrived();
        if (peer.received()) {
          peer.begin_recv(part_of(operation, 2, theirs.size_bytes()));
          gathering_in_[p] = true;
        }
      }
      if (gathering_in_[p]) take(peer, std::as_writable_bytes(theirs));
      all = all && gathering_out_[p] && gathering_in_[p] && peer.sent() && peer.received();
    }
    return all;
  });
}

void GroupMesh::all_gather(std::span<const std::byte> mine, std::span<const size_t> sizes, std::span<std::byte> all,
                           const Deadline& deadline) {
  if (sizes.size() != members_.size())
    throw wrong_argument(fmt::format("all_gather: {} sizes for {} ranks", sizes.size(), members_.size()));
  uint64_t total = 0;
  for (size_t size : sizes) {
    const auto sum = checked_add(total, size);
    if (!sum) throw wrong_argument("all_gather: the sizes overflow");
    total = *sum;
  }
  if (total != all.size() || sizes[lower_] != mine.size())
    throw wrong_argument(fmt::format("all_gather: sizes say {} bytes in all and {} from rank {}, the buffers have {} and {}", total,
                                     sizes[lower_], rank_, all.size(), mine.size()));

  const FrameHeader operation = next(Op::all_gather, total);
  std::vector<std::span<std::byte>> into;
  size_t offset = 0;
  for (size_t r = 0; r < sizes.size(); offset += sizes[r++]) {
    if (r == lower_) {
      if (!mine.empty()) std::memmove(all.data() + offset, mine.data(), mine.size());
      mine = all.subspan(offset, mine.size());
    } else {
      into.push_back(all.subspan(offset, sizes[r]));
    }
  }
  for (size_t p = 0; p < peers_.size(); ++p) {
    peers_[p]->begin_send(part_of(operation, 0, mine.size()));
    peers_[p]->begin_recv(part_of(operation, 0, into[p].size()));
  }
  fabric_->run(operation, peers_, deadline, [&] {
    bool done = true;
    for (Peer* peer : peers_) peer->push(mine, mine.size());
    for (size_t p = 0; p < peers_.size(); ++p) {
      take(*peers_[p], into[p]);
      done = done && !peers_[p]->busy();
    }
    return done;
  });
}

void GroupMesh::broadcast(std::span<std::byte> data, int root, const Deadline& deadline) {
  check_rank(root, "broadcast from");
  const FrameHeader operation = next(Op::broadcast, data.size());
  if (rank_ == root) {
    for (Peer* peer : peers_) peer->begin_send(operation);
    fabric_->run(operation, peers_, deadline, [&] {
      bool done = true;
      for (Peer* peer : peers_) {
        peer->push(data, data.size());
        done = done && peer->sent();
      }
      return done;
    });
  } else {
    Peer* peer = &member(root);
    peer->begin_recv(operation);
    fabric_->run(operation, {&peer, 1}, deadline, [&] {
      take(*peer, data);
      return peer->received();
    });
  }
}

void GroupMesh::send(std::span<const std::byte> data, int to, const Deadline& deadline) {
  check_rank(to, "send to");
  if (to == rank_) throw wrong_argument(fmt::format("send to rank {}: that is this rank", to));
  const FrameHeader operation{.op = Op::send,
                              .group = id_,
                              .sequence = sent_to_[static_cast<size_t>(to)]++,
                              .operation_bytes = data.size(),
                              .payload_bytes = data.size()};
  Peer* peer = &member(to);
  peer->begin_send(operation);
  fabric_->run(operation, {&peer, 1}, deadline, [&] {
    peer->push(data, data.size());
    return peer->sent();
  });
}

void GroupMesh::recv(std::span<std::byte> data, int from, const Deadline& deadline) {
  check_rank(from, "recv from");
  if (from == rank_) throw wrong_argument(fmt::format("recv from rank {}: that is this rank", from));
  const FrameHeader operation{.op = Op::send,
                              .group = id_,
                              .sequence = received_from_[static_cast<size_t>(from)]++,
                              .operation_bytes = data.size(),
                              .payload_bytes = data.size()};
  Peer* peer = &member(from);
  peer->begin_recv(operation);
  fabric_->run(operation, {&peer, 1}, deadline, [&] {
    take(*peer, data);
    return peer->received();
  });
}

void GroupMesh::barrier(const Deadline& deadline) {
  const FrameHeader operation = next(Op::barrier, 0);
  for (Peer* peer : peers_) peer->begin_send(operation), peer->begin_recv(operation);
  fabric_->run(operation, peers_, deadline, [&] {
    bool done = true;
    for (Peer* peer : peers_) peer->push({}, 0);
    for (Peer* peer : peers_) {
      peer->arrived();
      done = done && !peer->busy();
    }
    return done;
  });
}

std::unique_ptr<Mesh> GroupMesh::subgroup(std::span<const int> ranks) {
  std::vector<int> members;
  for (int rank : ranks) {
    check_rank(rank, "subgroup with");
    members.push_back(members_[static_cast<size_t>(rank)]);
  }
  if (!std::is_sorted(ranks.begin(), ranks.end()) || std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end())
    throw wrong_argument("subgroup: the ranks must ascend");
  if (std::find(ranks.begin(), ranks.end(), rank_) == ranks.end())
    throw wrong_argument(fmt::format("subgroup: rank {} is not among its ranks", rank_));
  // All members come to the same id without talking: it names the parent, the ranks, and how often they met before.
  const uint32_t made_before = subgroups_[members]++;
  uint64_t hash = checksum(std::as_bytes(std::span(members)), 0x9e3779b97f4a7c15ull + id_);
  hash = checksum(std::as_bytes(std::span(&made_before, 1)), hash);
  return std::unique_ptr<Mesh>(new GroupMesh(fabric_, std::move(members), static_cast<uint32_t>(hash ^ hash >> 32) | 1));
}

std::vector<Mesh::LinkInfo> GroupMesh::links() const {
  std::vector<LinkInfo> links;
  for (int r = 0; r < size(); ++r) {
    if (r == rank_) continue;
    const Peer& peer = member(r);
    links.push_back({r, std::string(peer.link().transport()), peer.bytes_sent(), peer.bytes_received(), std::string(peer.link().note())});
  }
  return links;
}

void GroupMesh::check_rank(int rank, std::string_view what) const {
  if (rank < 0 || rank >= size()) throw wrong_argument(fmt::format("{} rank {}: the group has ranks 0 to {}", what, rank, size() - 1));
}

std::unique_ptr<Mesh> make_solo_mesh() {
  std::vector<std::unique_ptr<Link>> none(1);
  return std::make_unique<GroupMesh>(std::make_shared<Fabric>(0, std::move(none), Spin{}));
}

}  // namespace verbund::mesh
