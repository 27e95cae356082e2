// The collectives over a Fabric's links: a whole mesh, a subgroup of it, or a mesh of one.
//
// No operation keeps a buffer: vectors go from the caller's memory into the channels and are summed out of them.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "mesh/fabric.h"
#include "mesh/mesh.h"

namespace verbund::mesh {

class GroupMesh : public Mesh {
 public:
  // All ranks of the fabric.
  explicit GroupMesh(std::shared_ptr<Fabric> fabric);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }

  void all_reduce(std::span<int64_t> data, const Deadline& deadline) override;
  void all_reduce(std::span<float> data, const Deadline& deadline) override;
  void all_gather(std::span<const std::byte> mine, std::span<const size_t> sizes, std::span<std::byte> all,
                  const Deadline& deadline) override;
  void broadcast(std::span<std::byte> data, int root, const Deadline& deadline) override;
  void send(std::span<const std::byte> data, int to, const Deadline& deadline) override;
  void recv(std::span<std::byte> data, int from, const Deadline& deadline) override;
  void barrier(const Deadline& deadline) override;

  std::unique_ptr<Mesh> subgroup(std::span<const int> ranks) override;
  void cancel(const std::string& reason) override { fabric_->cancel(reason); }

  std::vector<LinkInfo> links() const override;
  uint64_t buffer_bytes() const override { return fabric_->buffer_bytes(); }

 private:
  GroupMesh(std::shared_ptr<Fabric> fabric, std::vector<int> members, uint32_t id);

  template <class T>
  void reduce(std::span<T> data, Op op, const Deadline& deadline);
  template <class T>
  void reduce_one_shot(std::span<T> data, const FrameHeader& operation, const Deadline& deadline);
  template <class T>
  void reduce_two_shot(std::span<T> data, const FrameHeader& operation, const Deadline& deadline);
  template <class T>
  bool sum_arrived(std::span<T> part, size_t& summed_bytes, size_t bytes_max);

  FrameHeader next(Op op, uint64_t operation_bytes);
  void check_rank(int rank, std::string_view what) const;
  Peer& member(int rank) const { return fabric_->peer(members_[static_cast<size_t>(rank)]); }

  std::shared_ptr<Fabric> fabric_;
  std::vector<int> members_;  // ranks of the fabric, ascending
  int rank_ = 0;              // own place in members_
  uint32_t id_ = 0;
  std::vector<Peer*> peers_;  // the others, ascending
  size_t lower_ = 0;          // how many of peers_ come before this rank
  uint64_t sequence_ = 0;
  std::vector<uint64_t> sent_to_, received_from_;
  std::map<std::vector<int>, uint32_t> subgroups_;  // how often each was made
  std::vector<const std::byte*> windows_;           // scratch of sum_arrived()
  std::vector<char> gathering_out_, gathering_in_;  // scratch of reduce_two_shot(): which peers are past the scatter
};

}  // namespace verbund::mesh
