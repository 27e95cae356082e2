// Runs a model in this process on any split: one thread a rank, real links between them, the real decoder. Gives the
// logits of every position, to compare with a reference or with another split.
#pragma once

#include <string>
#include <vector>

#include "formats/model_files.h"
#include "mesh/connect.h"
#include "model/shares.h"

namespace verbund::test {

struct RunSetup {
  model::ParallelConfig parallel;
  std::string isa = "auto";
  unsigned threads = 1;
  size_t chunk = 0;  // 0: all at once
  compute::KvType kv_type = compute::KvType::f16;
  mesh::Transport transport = mesh::Transport::shm;
  uint64_t jitter_seed = 0;
  size_t companions = 0;        // other sequences that share every step
  bool reverse_blocks = false;  // KV blocks in another order
};

// [tokens, vocabulary]
std::vector<float> logits_of(const std::string& path, const std::vector<int32_t>& tokens, const RunSetup& setup);

struct Reference {
  std::vector<int32_t> tokens;
  std::vector<float> logits;  // [tokens, vocabulary]
  size_t vocabulary = 0;
};
Reference read_reference(const std::string& path);  // a safetensors file {input_ids i32 [1,T], logits f32 [1,T,V]}

std::string model_path(const std::string& name);  // in the test data: a folder, or the GGUF file inside it

}  // namespace verbund::test
