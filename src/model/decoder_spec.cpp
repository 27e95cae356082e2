#include "model/decoder_spec.h"

#include "base/error.h"

namespace verbund::model {
namespace {

// Caps far above any known model: they keep products of sizes inside 64 bits and refuse nonsense early.
constexpr size_t kDimensionMax = size_t(1) << 24;
constexpr size_t kLayersMax = 4096;

void require(bool ok, const std::string& what) {
  if (!ok)
    throw Error(Code::invalid_argument, "the model's description makes no sense: " + what, {}, "check config.json or the GGUF metadata");
}

void check_size(const char* name, size_t value) {
  require(value > 0 && value <= kDimensionMax, std::string(name) + " is " + std::to_string(value));
}

}  // namespace

void DecoderSpec::validate() const {
  check_size("vocabulary size", vocabulary);
  check_size("hidden size", hidden);
  check_size("number of heads", heads);
  check_size("number of KV heads", kv_heads);
  check_size("head dimension", head_dim);
  check_size("MLP size", mlp);
  check_size("context length", context_max);
  require(!layers.empty() && layers.size() <= kLayersMax, "number of layers is " + std::to_string(layers.size()));
  require(heads % kv_heads == 0, std::to_string(heads) + " heads cannot share " + std::to_string(kv_heads) + " KV heads evenly");
  require(heads * head_dim <= kDimensionMax, "heads x head dimension is " + std::to_string(heads * head_dim));
  require(rope.dims % 2 == 0 && rope.dims <= head_dim,
          "rotated dimensions " + std::to_string(rope.dims) + " of a head of " + std::to_string(head_dim));
  require(rope.theta > 1 && rope.theta < 1e15, "rope theta " + std::to_string(rope.theta));
  require(rope.factor > 0 && rope.factor < 1e6, "rope factor " + std::to_string(rope.factor));
  require(rope.freq_divisors.empty() || rope.freq_divisors.size() == rope.dims / 2,
          "rope_freqs has " + std::to_string(rope.freq_divisors.size()) + " entries");
  require(norm_eps > 0 && norm_eps < 1, "norm epsilon " + std::to_string(norm_eps));
}

}  // namespace verbund::model
