// The one forward pass, for every dense family: this rank's share of a decoder on its backend.
//
// Owns the rank's weights, norms, rope table and KV cache; borrows files (while constructing) and backend. One thread.
// A step's rows are the tokens of its segments in order. In a pipeline the first stage embeds and each later one takes
// the hidden rows of the stage before; the last one yields logits of the sampled rows for this rank's vocabulary range.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/trace.h"
#include "compute/backend.h"
#include "formats/model_files.h"
#include "mesh/mesh.h"
#include "model/decoder_spec.h"
#include "model/shares.h"

namespace verbund::model {

struct ShardWeight;

struct DecoderOptions {
  size_t context = 0;    // positions a sequence may have
  size_t kv_blocks = 0;  // blocks of compute::kKvBlock positions in the cache
  compute::KvType kv_type = compute::KvType::f16;
  size_t step_rows_max = 0;   // tokens of the largest step
  size_t logit_rows_max = 0;  // rows whose logits a step may want
};

// Bytes of a rank, known before anything is allocated (docs/DESIGN.md section 4.3).
struct DecoderBytes {
  uint64_t weights = 0, kv = 0, activations = 0, tables = 0;
  uint64_t outputs = 0;       // StepOutput, and the backend's own copy of the logits
  uint64_t load_scratch = 0;  // only while loading, before activations are in use
};
DecoderBytes decoder_bytes(const formats::ModelFiles& files, const DecoderSpec& spec, const Units& units, const RankShard& shard,
                           const compute::Backend& backend, const DecoderOptions& options);

class Decoder {
 public:
  using Progress = std::function<void(uint64_t bytes_done)>;  // of decoder_bytes().weights; called while loading

  Decoder(const formats::ModelFiles& files, const DecoderSpec& spec, const Units& units, const RankShard& shard, compute::Backend& backend,
          const DecoderOptions& options, const Progress& progress);
  ~Decoder();

  struct StepInput {
    std::span<const int32_t> tokens;  // one a row
    std::span<const compute::Segment> segments;
    std::span<const uint32_t> sampled_rows;  // rows whose logits are wanted
    std::span<const float> hidden;           // [rows, hidden] from the stage before; first stage: empty
  };
  struct StepOutput {
    std::vector<float> hidden;  // not the last stage: [rows, hidden] for the next
    std::vector<float> logits;  // last stage: [sampled_rows, vocabulary range of this rank]
  };
  // `tp` is the mesh of this rank's stage; each wait in it gets `wait`. The output's vectors are written anew, in the memory they have.
  void forward(const StepInput& input, mesh::Mesh& tp, std::chrono::nanoseconds wait, Trace* trace, StepOutput& output);

  uint64_t weight_bytes() const;
  uint64_t kv_bytes() const;

 private:
  struct Layer;
  void place(const ShardWeight& w, std::unique_ptr<compute::Weight> weight);
  compute::Tensor embed(const StepInput& input, mesh::Mesh& tp, std::chrono::nanoseconds wait, Trace* trace);
  compute::Tensor attention_block(const Layer& layer, const compute::Tensor& h, const StepInput& input, mesh::Mesh& tp,
                                  std::chrono::nanoseconds wait, Trace* trace);
  compute::Tensor mlp_block(const Layer& layer, const compute::Tensor& h, mesh::Mesh& tp, std::chrono::nanoseconds wait, Trace* trace);

  const DecoderSpec spec_;
  const RankShard shard_;
  compute::Backend& backend_;
  std::unique_ptr<compute::Weight> embedding_, head_;
  std::unique_ptr<compute::Vector> final_norm_;
  std::vector<Layer> layers_;
  compute::RopeTable rope_;
  std::unique_ptr<compute::KvCache> kv_;
};

}  // namespace verbund::model
