// The tensors of a GGUF model, one file or several shards, translated to the codings of weight.h while they are read.
// Owns its sources; const methods may be called from several threads.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "formats/gguf_header.h"
#include "formats/tensor_source.h"

namespace verbund::formats {

class GgufSource final : public TensorSource {
 public:
  // The files of one model, in shard order; the first has the metadata. Throws what parse_gguf_header throws, and
  // data_loss if the shards do not belong together.
  explicit GgufSource(std::vector<std::unique_ptr<ByteSource>> files);

  std::span<const TensorInfo> tensors() const override { return infos_; }
  const TensorInfo* find(std::string_view name) const override;
  void read(std::string_view name, Range rows, Range cols, WeightMatrix& into) const override;
  void read_stored(std::string_view name, Range rows, Range cols, StoredRows& into) const override;
  std::string path() const override { return files_.front()->path(); }

  nlohmann::json take_metadata() { return std::move(metadata_); }  // of the first file
  uint64_t bytes_on_disk() const;

 private:
  struct Place {
    size_t file;
    const GgufType* type;
    uint64_t offset;
  };

  void add_file(size_t index);
  void check_split(size_t index, const nlohmann::json& metadata) const;
  void read_blocks(const TensorInfo& info, const Place& place, Range rows, Range cols, WeightMatrix& into) const;

  std::vector<std::unique_ptr<ByteSource>> files_;
  nlohmann::json metadata_;
  std::vector<TensorInfo> infos_;
  std::vector<Place> places_;                             // beside infos_
  std::unordered_map<std::string_view, size_t> by_name_;  // views into infos_
};

// The files that belong to `path`: itself, or all shards when it is named name-00001-of-0000n.gguf. Throws not_found
// naming a missing shard and invalid_argument for a shard that is not the first.
std::vector<std::string> gguf_shards(const std::string& path);

}  // namespace verbund::formats
