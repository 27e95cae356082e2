#include "engine/head_rows.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"

namespace verbund::engine {
namespace {

size_t columns_of(const std::vector<Range>& pieces) {
  size_t columns = 0;
  for (const Range& p : pieces) columns += p.size();
  return columns;
}

size_t candidates_max(const std::vector<Range>& pieces) {
  size_t candidates = 0;
  for (const Range& p : pieces) candidates += std::min<size_t>(kCandidatesMax, p.size());
  return candidates;
}

size_t widest(const std::vector<Range>& pieces) {
  size_t columns = 0;
  for (const Range& p : pieces) columns = std::max(columns, p.size());
  return columns;
}

size_t keys_max(const std::vector<Range>& pieces) { return std::min<size_t>(widest(pieces), 2 * kCandidatesMax + kSelectSlack); }

size_t whole_max(HeadRole role, const std::vector<Range>& pieces, size_t rows_max) {
  return role == HeadRole::gathers ? rows_max * columns_of(pieces) : 0;
}

}  // namespace

HeadRows::HeadRows(HeadRole role, std::vector<Range> pieces, size_t rows_max)
    : role_(role), pieces_(std::move(pieces)), vocabulary_(columns_of(pieces_)) {
  wanted_.reserve(rows_max);
  keys_.reserve(keys_max(pieces_));
  if (role == HeadRole::sends) return;
  rows_.reserve(rows_max);
  whole_.reserve(whole_max(role, pieces_, rows_max));
  candidates_.reserve(rows_max * candidates_max(pieces_));
}

uint64_t HeadRows::bytes_max(HeadRole role, const std::vector<Range>& pieces, size_t rows_max) {
  const uint64_t selection = rows_max * sizeof(uint32_t) + keys_max(pieces) * sizeof(uint64_t);
  if (role == HeadRole::sends) return selection;
  return selection + rows_max * (sizeof(SampledRow) + candidates_max(pieces) * sizeof(Candidate)) +
         whole_max(role, pieces, rows_max) * sizeof(float);
}

uint64_t HeadRows::bytes() const {
  return wanted_.capacity() * sizeof(uint32_t) + keys_.capacity() * sizeof(uint64_t) + rows_.capacity() * sizeof(SampledRow) +
         whole_.capacity() * sizeof(float) + candidates_.capacity() * sizeof(Candidate);
}

void HeadRows::begin(const StepPlan& plan) {
  ids_ = plan.ids;
  wanted_.clear();
  for (const PlanSegment& s : plan.segments) wanted_.insert(wanted_.end(), s.sample_rows, s.candidates);
  if (role_ == HeadRole::sends) return;
  size_t whole = 0, candidates = 0;
  for (const uint32_t w : wanted_) w == 0 ? whole += vocabulary_ : candidates += candidates_before(w, vocabulary_);
  if (role_ == HeadRole::gathers) whole_.resize(whole);
  candidates_.resize(candidates);
  rows_.assign(wanted_.size(), {});
  whole = candidates = 0;
  for (size_t r = 0; r < rows_.size(); ++r)
    if (const uint32_t w = wanted_[r]; w == 0) {
      if (role_ == HeadRole::gathers) rows_[r].logits = std::span(whole_).subspan(whole, vocabulary_);
      whole += vocabulary_;
    } else {
      rows_[r].candidates = std::span(candidates_).subspan(candidates, candidates_before(w, vocabulary_));
      candidates += rows_[r].candidates.size();
    }
}

// Of all pieces that begin before the column.
size_t HeadRows::candidates_before(uint32_t wanted, size_t column) const {
  size_t count = 0;
  for (const Range& p : pieces_)
    if (p.begin < column) count += candidates(wanted, p);
  return count;
}

size_t HeadRows::piece_bytes(Range columns) const {
  size_t bytes = 0;
  for (const uint32_t w : wanted_) bytes += w == 0 ? columns.size() * sizeof(float) : candidates(w, columns) * sizeof(Candidate);
  return bytes;
}

size_t HeadRows::piece_bytes_max(Range columns, size_t rows_max) {
  return rows_max * std::max(columns.size() * sizeof(float), std::min<size_t>(kCandidatesMax, columns.size()) * sizeof(Candidate));
}

// As many of the best of these columns as `into` has room for.
void HeadRows::select(std::span<const float> row, Range columns, std::span<std::byte> into) {
  const size_t count = into.size() / sizeof(Candidate);
  if (count == 0) return;
  const auto unusable = select_best(row.first(with_token(columns).size()), static_cast<int32_t>(columns.begin), count, keys_);
  for (size_t i = 0; i < count; ++i) {
    const Candidate c = unusable ? *unusable : Candidate{logit_of(keys_[i]), id_of(keys_[i])};
    std::memcpy(into.data() + i * sizeof c, &c, sizeof c);
  }
}

void HeadRows::pack(std::span<const float> logits, Range columns, std::span<std::byte> piece) {
  for (size_t r = 0; r < wanted_.size(); ++r) {
    const auto row = logits.subspan(r * columns.size(), columns.size());
    const size_t size = wanted_[r] == 0 ? row.size_bytes() : candidates(wanted_[r], columns) * sizeof(Candidate);
    if (wanted_[r] == 0)
      std::memcpy(piece.data(), row.data(), size);
    else
      select(row, columns, piece.first(size));
    piece = piece.subspan(size);
  }
}

// Where the candidates of these columns are in the row.
std::span<Candidate> HeadRows::place(size_t row, Range columns) {
  const auto at = static_cast<size_t>(rows_[row].candidates.data() - candidates_.data()) + candidates_before(wanted_[row], columns.begin);
  return std::span(candidates_).subspan(at, candidates(wanted_[row], columns));
}

void HeadRows::add(std::span<const float> logits, Range columns) {
  for (size_t r = 0; r < wanted_.size(); ++r) {
    const auto row = logits.subspan(r * columns.size(), columns.size());
    if (wanted_[r] > 0)
      select(row, columns, std::as_writable_bytes(place(r, columns)));
    else if (role_ == HeadRole::alone)
      rows_[r].logits = row;
    else
      std::copy(row.begin(), row.end(), whole_.begin() + (rows_[r].logits.data() - whole_.data()) + static_cast<ptrdiff_t>(columns.begin));
  }
}

void HeadRows::add(std::span<const std::byte> piece, Range columns) {
  for (size_t r = 0; r < wanted_.size(); ++r) {
    if (wanted_[r] == 0) {
      const size_t size = columns.size() * sizeof(float), at = static_cast<size_t>(rows_[r].logits.data() - whole_.data()) + columns.begin;
      std::memcpy(whole_.data() + at, piece.data(), size);
      piece = piece.subspan(size);
      continue;
    }
    const std::span<Candidate> into = place(r, columns);
    std::ranges::copy(piece.first(into.size_bytes()), std::as_writable_bytes(into).begin());  // perhaps none: memcpy refuses null
    piece = piece.subspan(into.size_bytes());
    const Range allowed = with_token(columns);
    for (const Candidate& c : into)
      if (c.id < 0 || static_cast<size_t>(c.id) < allowed.begin || static_cast<size_t>(c.id) >= allowed.end)
        throw Error({Code::data_loss, Lost::instance,
                     "ranks diverged: token id " + std::to_string(c.id) + " is a candidate of columns " + std::to_string(allowed.begin) +
                         " to " + std::to_string(allowed.end),
                     "rank 0", ""});
  }
}

}  // namespace verbund::engine
