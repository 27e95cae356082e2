// What travels from the head to the sampler. Each rank of the last stage holds the logits of some columns (token ids) of every
// sampled row. Where the sampling settings allow it, only the best candidates of a row leave its rank; the best of all are among
// the best of each, and ids do not repeat, so rank 0 draws the same token from them as from the whole row.
//
// A rank's piece, rows in plan order, native byte order, no padding:
//   of a whole row: f32 [columns]
//   of a row of k candidates: Candidate [min(k, columns with a token)], unordered; every one is the first logit of them that
//   is not usable, if there is one, so that rank 0 can refuse the row with the same words as a whole one
//
// Belongs to the rank loop's thread.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "engine/candidates.h"
#include "engine/step_plan.h"

namespace verbund::engine {

// One of the two is empty.
struct SampledRow {
  std::span<const float> logits;          // [vocabulary]
  std::span<const Candidate> candidates;  // the best of every rank, in no order
};

// A rank that sends its piece; rank 0; rank 0 where it has all columns itself and nothing needs to be copied.
enum class HeadRole { sends, gathers, alone };

class HeadRows {
 public:
  // pieces: the columns of each rank of the last stage, ascending. rows_max: sampled rows of a step.
  HeadRows(HeadRole role, std::vector<Range> pieces, size_t rows_max);
  // What the object holds: all of it from the start.
  static uint64_t bytes_max(HeadRole role, const std::vector<Range>& pieces, size_t rows_max);
  uint64_t bytes() const;

  void begin(const StepPlan& plan);  // the rows that the plan wants; those of the step before are gone
  size_t piece_bytes(Range columns) const;
  static size_t piece_bytes_max(Range columns, size_t rows_max);
  // logits: [sampled rows, columns]; piece: piece_bytes(columns).
  void pack(std::span<const float> logits, Range columns, std::span<std::byte> piece);

  // Rank 0: every piece once, its own as logits, which must stay until the rows have been used.
  // Throws data_loss if a candidate is not of these columns.
  void add(std::span<const float> logits, Range columns);
  void add(std::span<const std::byte> piece, Range columns);
  std::span<const SampledRow> rows() const { return rows_; }

 private:
  Range with_token(Range columns) const { return {std::min(columns.begin, ids_), std::min(columns.end, ids_)}; }
  size_t candidates(uint32_t wanted, Range columns) const { return std::min<size_t>(wanted, with_token(columns).size()); }
  size_t candidates_before(uint32_t wanted, size_t column) const;
  void select(std::span<const float> row, Range columns, std::span<std::byte> into);
  std::span<Candidate> place(size_t row, Range columns);

  HeadRole role_;
  std::vector<Range> pieces_;
  size_t vocabulary_;
  size_t ids_ = 0;                // of this step: ids below have a token
  std::vector<uint32_t> wanted_;  // candidates of each sampled row; 0: the whole row
  std::vector<uint64_t> keys_;    // selection
  // Rank 0.
  std::vector<SampledRow> rows_;
  std::vector<float> whole_;           // [whole rows, vocabulary], unless alone
  std::vector<Candidate> candidates_;  // of the rows one after another, in each those of the pieces in order
};

}  // namespace verbund::engine
