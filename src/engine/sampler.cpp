#include "engine/sampler.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <string>

#include "base/error.h"
#include "compute/numerics.h"
#include "engine/philox.h"

namespace verbund::engine {
namespace {

constexpr float kExcluded = -std::numeric_limits<float>::infinity();
constexpr size_t kLanes = 8;  // fixed trip count: the compiler may vectorise at -O2, the operations stay the same

// exp(x) for x <= 0, in f64 without libm, the same bits on every machine: x = n ln 2 + r, Taylor to r^11 (|r| <= 0.35,
// relative error below 1e-14). Inline and without tables, because a whole vocabulary passes through it for one token
// (a draw from all of 49152 takes 0.4 ms). Below -700 the weight is exactly 0.
inline double exp_nonpositive(double x) {
  constexpr double kLog2E = 1.44269504088896338700e+00, kLn2High = 6.93147180369123816490e-01, kLn2Low = 1.90821492927058770002e-10;
  constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer kept in the low bits
  const double clamped = x < -700.0 ? -700.0 : x;
  const double shifted = clamped * kLog2E + kMagic;
  const double n = shifted - kMagic;
  const double r = (clamped - n * kLn2High) - n * kLn2Low;
  double p = 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  const double power = std::bit_cast<double>((std::bit_cast<uint64_t>(shifted) + 1023) << 52);  // 2^n
  return x < -700.0 ? 0.0 : p * power;
}

// Maximum by lanes, then its first place: ties go to the lowest id.
size_t argmax(std::span<const float> values) {
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, kExcluded);
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes)
    for (size_t j = 0; j < kLanes; ++j) lanes[j] = values[i + j] > lanes[j] ? values[i + j] : lanes[j];
  for (; i < values.size(); ++i) lanes[0] = std::max(lanes[0], values[i]);
  const float best = *std::max_element(lanes, lanes + kLanes);
  return static_cast<size_t>(std::find(values.begin(), values.end(), best) - values.begin());
}

// Penalties of any finite size stay inside f32, so that no later difference is inf - inf.
float limited(float logit) { return std::clamp(logit, -FLT_MAX, FLT_MAX); }

}  // namespace

uint32_t candidates_needed(const SamplingParams& params, size_t tokenizer_size) {
  if (params.needs_history() || !params.logit_bias.empty()) return 0;
  if (params.greedy()) return 1;
  const bool few = params.top_k > 0 && params.top_k <= kCandidatesMax && static_cast<size_t>(params.top_k) < tokenizer_size;
  return few ? static_cast<uint32_t>(params.top_k) : 0;
}

void TokenHistory::add_prompt(std::span<const int32_t> ids) {
  for (int32_t id : ids) entry(id);
}

void TokenHistory::add_output(int32_t id) { ++entry(id).output_count; }

TokenHistory::Entry& TokenHistory::entry(int32_t id) {
  const auto [it, added] = index_.try_emplace(id, entries_.size());
  if (added) entries_.push_back({id, 0});
  return entries_[it->second];
}

Sampler::Sampler(size_t vocabulary, size_t tokenizer_size)
    : vocabulary_(vocabulary), tokenizer_size_(std::min(vocabulary, tokenizer_size)) {
  logits_.reserve(tokenizer_size_);
  ids_.reserve(tokenizer_size_);
  weights_.reserve(tokenizer_size_);
  keys_.reserve(tokenizer_size_);
}

int32_t Sampler::sample(std::span<const float> logits, const SamplingParams& params, const TokenHistory& history, uint64_t position,
                        std::span<const uint32_t> allowed) {
  load(logits, allowed);
  add_bias(params);
  penalise(params, history);
  const auto k = static_cast<size_t>(params.top_k);
  if (params.greedy() || (k > 0 && k < tokenizer_size_)) {
    select_best(logits_, 0, params.greedy() ? 1 : k, keys_);
    keep_keys();
  } else {
    keep_all();
  }
  return choose(params, position);
}

int32_t Sampler::sample(std::span<const Candidate> candidates, const SamplingParams& params, uint64_t position) {
  const uint32_t needed = candidates_needed(params, tokenizer_size_);
  if (needed == 0 || candidates.size() < needed || candidates.size() > tokenizer_size_)
    throw Error(Code::internal, std::to_string(candidates.size()) + " candidates where " + std::to_string(needed) + " are needed",
                "sampler");
  const Candidate* unusable = nullptr;  // the lowest id, as in a whole row
  keys_.clear();
  for (const Candidate& c : candidates)
    if (usable(c.logit))
      keys_.push_back(key_of(c.logit, c.id));
    else if (!unusable || c.id < unusable->id)
      unusable = &c;
  if (unusable) refuse(*unusable);
  keep_best(keys_, needed);
  keep_keys();
  return choose(params, position);
}

// From the tokens that are left and their logits.
int32_t Sampler::choose(const SamplingParams& params, uint64_t position) {
  const size_t best = argmax(logits_);
  if (logits_[best] == kExcluded)
    throw Error(Code::invalid_argument, "no token is allowed at position " + std::to_string(position), "sampler");
  if (params.greedy()) return ids_[best];
  if (!params.seed) throw Error(Code::invalid_argument, "seed is not set", "sampler");
  weigh(logits_[best], params.temperature);
  cut_top_p(params.top_p);
  cut_min_p(params.min_p);
  return draw(uniform(*params.seed, position, params.choice, Purpose::sample));
}

void Sampler::load(std::span<const float> logits, std::span<const uint32_t> allowed) {
  if (logits.size() != vocabulary_)
    throw Error(Code::internal, "a row of " + std::to_string(logits.size()) + " logits for a vocabulary of " + std::to_string(vocabulary_),
                "sampler");
  if (!allowed.empty() && allowed.size() * 32 < tokenizer_size_)
    throw Error(Code::internal, "a mask of " + std::to_string(allowed.size() * 32) + " tokens for " + std::to_string(tokenizer_size_),
                "sampler");
  const auto row = logits.first(tokenizer_size_);
  check_logits(row);
  logits_.assign(row.begin(), row.end());
  if (allowed.empty()) return;
  for (size_t i = 0; i < tokenizer_size_; ++i)
    if (!(allowed[i / 32] >> (i % 32) & 1)) logits_[i] = kExcluded;
}

void Sampler::add_bias(const SamplingParams& params) {
  for (const auto& [id, bias] : params.logit_bias) {
    if (id < 0 || static_cast<size_t>(id) >= tokenizer_size_ || logits_[id] == kExcluded) continue;
    logits_[id] = limited(logits_[id] + bias);
  }
}

void Sampler::penalise(const SamplingParams& params, const TokenHistory& history) {
  if (!params.needs_history()) return;
  for (const auto& [id, count] : history.entries()) {
    if (id < 0 || static_cast<size_t>(id) >= tokenizer_size_ || logits_[id] == kExcluded) continue;
    float l = logits_[id];
    if (params.repetition_penalty != 1) l = limited(l < 0 ? l * params.repetition_penalty : l / params.repetition_penalty);
    if (count > 0) l = limited(limited(l - limited(params.frequency_penalty * static_cast<float>(count))) - params.presence_penalty);
    logits_[id] = l;
  }
}

// All of the row (excluded ones get weight 0).
void Sampler::keep_all() {
  ids_.resize(tokenizer_size_);
  std::iota(ids_.begin(), ids_.end(), 0);
}

// The tokens of keys_, in ascending order.
void Sampler::keep_keys() {
  std::sort(keys_.begin(), keys_.end(), [](uint64_t a, uint64_t b) { return id_of(a) < id_of(b); });
  ids_.resize(keys_.size());
  logits_.resize(keys_.size());
  for (size_t i = 0; i < keys_.size(); ++i) ids_[i] = id_of(keys_[i]), logits_[i] = logit_of(keys_[i]);
}

void Sampler::weigh(float best_logit, float temperature) {
  const double best = best_logit, t = temperature;
  weights_.resize(ids_.size());
  for (size_t i = 0; i < ids_.size(); ++i) weights_[i] = exp_nonpositive((static_cast<double>(logits_[i]) - best) / t);
}

// Keeps the shortest descending prefix whose cumulative probability reaches p, at least one token.
void Sampler::cut_top_p(double p) {
  if (p >= 1) return;
  const double total = std::accumulate(weights_.begin(), weights_.end(), 0.0);
  // All weights below `least` together are less than 1 - p of the total, so the prefix ends before them and they need
  // no sorting. Should rounding disagree at the very edge, everything is sorted.
  const double least = (1 - p) * total / static_cast<double>(weights_.size());
  auto last = end_of_prefix(p * total, least);
  if (!last) last = end_of_prefix(p * total, 0);
  if (!last) return;
  size_t kept = 0;
  for (size_t i = 0; i < ids_.size(); ++i) {
    if (key_of(logits_[i], static_cast<int32_t>(i)) < *last) continue;
    ids_[kept] = ids_[i];
    weights_[kept++] = weights_[i];
  }
  ids_.resize(kept);
  weights_.resize(kept);
}

// Key (by place in ids_, which ascend) of the candidate at which the cumulative weight, best first, reaches the target.
std::optional<uint64_t> Sampler::end_of_prefix(double target, double least) {
  keys_.clear();
  for (size_t i = 0; i < ids_.size(); ++i)
    if (weights_[i] >= least) keys_.push_back(key_of(logits_[i], static_cast<int32_t>(i)));
  // Sorted part by part, each four times the last: the prefix is mostly short.
  double sum = 0;
  size_t part = 256;
  for (auto first = keys_.begin(); first != keys_.end(); part *= 4) {
    const auto last = first + std::min(static_cast<ptrdiff_t>(part), keys_.end() - first);
    if (last != keys_.end()) std::nth_element(first, last, keys_.end(), std::greater<>());
    std::sort(first, last, std::greater<>());
    for (; first != last; ++first) {
      sum += weights_[static_cast<size_t>(id_of(*first))];
      if (sum >= target) return *first;
    }
  }
  return std::nullopt;
}

// The best token's weight is exactly 1, so min_p is the smallest weight to keep.
void Sampler::cut_min_p(double min_p) {
  if (min_p <= 0) return;
  size_t kept = 0;
  for (size_t i = 0; i < ids_.size(); ++i) {
    if (weights_[i] < min_p) continue;
    ids_[kept] = ids_[i];
    weights_[kept++] = weights_[i];
  }
  ids_.resize(kept);
  weights_.resize(kept);
}

// First id whose cumulative weight exceeds u of the sum. u <= 1 - 2^-53 makes u * sum < sum, so there is one.
int32_t Sampler::draw(double u) {
  std::partial_sum(weights_.begin(), weights_.end(), weights_.begin());
  const auto at = std::upper_bound(weights_.begin(), weights_.end(), u * weights_.back());
  return ids_[static_cast<size_t>(at - weights_.begin())];
}

Logprobs Sampler::logprobs(std::span<const float> logits, int32_t chosen, size_t top_n) {
  load(logits, {});
  if (chosen < 0 || static_cast<size_t>(chosen) >= tokenizer_size_)
    throw Error(Code::internal, "log-probability of token id " + std::to_string(chosen) + " of " + std::to_string(tokenizer_size_),
                "sampler");
  const double best = logits_[argmax(logits_)];
  double sum = 0;
  for (float l : logits_) sum += exp_nonpositive(static_cast<double>(l) - best);
  const double log_sum = best + compute::exact_log(sum);
  const auto logprob = [&](int32_t id) { return static_cast<float>(static_cast<double>(logits_[id]) - log_sum); };

  Logprobs result{.chosen = logprob(chosen), .top = {}};
  if (top_n == 0) return result;
  select_best(logits_, 0, std::min(top_n, tokenizer_size_), keys_);
  std::sort(keys_.begin(), keys_.end(), std::greater<>());
  for (uint64_t key : keys_) result.top.push_back({id_of(key), logprob(id_of(key))});
  return result;
}

uint64_t Sampler::bytes() const {
  return logits_.capacity() * sizeof(float) + ids_.capacity() * sizeof(int32_t) + weights_.capacity() * sizeof(double) +
         keys_.capacity() * sizeof(uint64_t);
}

}  // namespace verbund::engine
