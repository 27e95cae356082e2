// The tensors of a model in safetensors files: plain f32, f16 and bf16, and modules quantised by MLX (affine, mxfp4),
// whose packed layout is the canonical one already. Owns its sources; const methods may be called from several threads.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "formats/byte_source.h"
#include "formats/quantization_config.h"
#include "formats/safetensors_header.h"
#include "formats/tensor_source.h"

namespace verbund::formats {

class SafetensorsSource final : public TensorSource {
 public:
  // Tensor -> number of the file that must hold it (an index's weight_map); may be empty.
  using Expected = std::map<std::string, size_t>;

  // `folder` is for messages; `config` is config.json (its quantization is all that is looked at). Throws data_loss and unimplemented as
  // the header and quantization_config.h do, and when a module's parts contradict the config: never a guess.
  SafetensorsSource(std::string folder, std::vector<std::unique_ptr<ByteSource>> files, const nlohmann::json& config,
                    const Expected& expected = {});

  std::span<const TensorInfo> tensors() const override { return infos_; }
  const TensorInfo* find(std::string_view name) const override;
  void read(std::string_view name, Range rows, Range cols, WeightMatrix& into) const override;
  std::string path() const override { return folder_; }
  uint64_t bytes_on_disk() const;

 private:
  struct Part {
    size_t file = 0;
    uint64_t offset = 0;
  };
  struct Place {
    Part codes, scales, biases;
  };
  struct Held {
    size_t file;
    SafetensorsEntry entry;
  };
  using Entries = std::unordered_map<std::string, Held>;

  Entries collect(std::vector<std::string>& order, const Expected& expected) const;
  void add_plain(const Held& held);
  void add_module(const std::string& module, const Entries& entries, const QuantizationConfig& quantization);
  void read_part(const Part& part, size_t row_bytes, Range rows, Range bytes, std::vector<std::byte>& into) const;
  void check_finite(const TensorInfo& info, const WeightMatrix& m, Range rows) const;

  std::string folder_;
  std::vector<std::unique_ptr<ByteSource>> files_;
  std::vector<TensorInfo> infos_;
  std::vector<Place> places_;                             // beside infos_
  std::unordered_map<std::string_view, size_t> by_name_;  // views into infos_
};

}  // namespace verbund::formats
