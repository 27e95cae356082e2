// From one row of logits to one token id, by the definitions of the reference (models.md section 6), in this order:
//   ids without a token or not allowed -> -inf; + logit_bias; repetition penalty; frequency and presence penalty;
//   temperature (0: argmax, ties to the lowest id); top_k by (logit descending, id ascending); top_p over the softmax of
//   what is left; min_p relative to the best of the same distribution; draw.
// A token depends only on (logits, parameters, history, seed, position): own exp, f64 sums in ascending id order, so
// every machine, batch and replay gives the same one. Only rank 0 samples.
//
// A Sampler owns scratch and is used by one thread; a TokenHistory belongs to one request.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/candidates.h"
#include "engine/request.h"

namespace verbund::engine {

// Which tokens a request has seen, for the penalties.
class TokenHistory {
 public:
  struct Entry {
    int32_t id;
    uint32_t output_count;
  };
  void add_prompt(std::span<const int32_t> ids);
  void add_output(int32_t id);
  std::span<const Entry> entries() const { return entries_; }  // one a distinct token, in order of first appearance

 private:
  Entry& entry(int32_t id);
  std::vector<Entry> entries_;
  std::unordered_map<int32_t, size_t> index_;
};

// log-softmax of the raw logits, before biases and penalties.
struct TokenLogprob {
  int32_t id;
  float logprob;
};
struct Logprobs {
  float chosen = 0;
  std::vector<TokenLogprob> top;  // descending, ties by ascending id
};

// How many of the best tokens of a row decide what is drawn with these parameters; 0: the whole row may.
uint32_t candidates_needed(const SamplingParams& params, size_t tokenizer_size);

class Sampler {
 public:
  // vocabulary: length of a row of logits; tokenizer_size: ids from here on have no token (padding rows).
  Sampler(size_t vocabulary, size_t tokenizer_size);

  // position: index of the drawn token in the whole sequence. allowed: bit i set = id i may come (grammar), empty = all.
  // Throws invalid_argument if nothing is allowed or the seed is missing, internal if a logit is NaN or +infinity.
  int32_t sample(std::span<const float> logits, const SamplingParams& params, const TokenHistory& history, uint64_t position,
                 std::span<const uint32_t> allowed = {});

  // The same from candidates_needed() or more candidates, among which the best of the row are; their order does not matter.
  int32_t sample(std::span<const Candidate> candidates, const SamplingParams& params, uint64_t position);

  // The chosen token and the top_n best of all (fewer if the tokenizer has fewer).
  Logprobs logprobs(std::span<const float> logits, int32_t chosen, size_t top_n);

  uint64_t bytes() const;  // scratch, allocated once: bytes_max
  static uint64_t bytes_max(size_t tokenizer_size) { return tokenizer_size * (2 * 4 + 2 * 8); }

 private:
  void load(std::span<const float> logits, std::span<const uint32_t> allowed);
  void add_bias(const SamplingParams& params);
  void penalise(const SamplingParams& params, const TokenHistory& history);
  void keep_all();
  void keep_keys();
  int32_t choose(const SamplingParams& params, uint64_t position);
  void weigh(float best_logit, float temperature);
  void cut_top_p(double p);
  std::optional<uint64_t> end_of_prefix(double target, double least);
  void cut_min_p(double min_p);
  int32_t draw(double u);

  size_t vocabulary_;
  size_t tokenizer_size_;
  std::vector<float> logits_;    // edited copy of the row [tokenizer_size], then those of the tokens that are left
  std::vector<int32_t> ids_;     // tokens that are left, ascending
  std::vector<double> weights_;  // theirs: exp((logit - best) / temperature)
  std::vector<uint64_t> keys_;   // selection: greater is better (value, then the lower id)
};

}  // namespace verbund::engine
