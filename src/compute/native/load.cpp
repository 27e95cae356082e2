// Weights in. All weights that are loaded together lie one behind the other in one stretch of memory, which is cut into
// windows. A thread takes one window after the other: it reads the rows of each block that begins there in bands that
// stay in its L2 and packs them straight into their place. So each byte of the file is copied once by the system and read
// once, each page of the weights is first touched by the thread that fills it, and nobody waits before the end.
#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "compute/native/backend.h"
#include "compute/native/load_plan.h"
#include "compute/native/pack.h"

namespace verbund::compute::native {
namespace {

// A window is whole huge pages if there is enough to do for all threads: two threads that touch a page first would both clear it.
constexpr uint64_t kWindowMax = uint64_t{2} << 20, kWindowLeast = uint64_t{64} << 10;
constexpr uint64_t kWindowsPerThread = 8;
// What a band reads at a time, and where sixteen rows alone are so much that they are cut into columns.
constexpr size_t kBandBytes = size_t{128} << 10, kWideBytes = size_t{1} << 20;
constexpr size_t kColumnStep = 1024;  // a multiple of every group and block, and of kPairBlock
// A wide band, what lies between its rows, and a source's own scratch.
constexpr uint64_t kScratchBytes = kWideBytes + 2 * formats::kReadScratch;

uint64_t window_bytes(uint64_t total, unsigned threads) {
  return std::clamp(round_up(total / (threads * kWindowsPerThread), kWindowLeast), kWindowLeast, kWindowMax);
}

// A piece in the stretch of memory.
struct Place {
  const PieceShape* shape;
  const std::vector<LoadRun>* runs;
  uint64_t offset;
};

struct Scratch {
  formats::StoredRows band;
  formats::WeightMatrix part;
  formats::CodeTile tile;
};

class Loader {
 public:
  Loader(const formats::TensorSource& source, std::span<const LoadPlan> plans, std::byte* memory) : source_(source), memory_(memory) {
    for (const LoadPlan& plan : plans)
      for (size_t p = 0; p < plan.pieces.size(); ++p) {
        places_.push_back({&plan.pieces[p], &plan.runs[p], total_});
        total_ += plan.pieces[p].bytes();
      }
  }

  void run(ThreadPool& threads, const LoadProgress& progress) {
    const uint64_t size = window_bytes(total_, threads.threads());
    const uint64_t shift = reinterpret_cast<uintptr_t>(memory_) % size;  // windows end on borders of pages
    const uint64_t windows = ceil_div(total_ + shift, size);
    const std::thread::id caller = std::this_thread::get_id();
    std::atomic<uint64_t> next = 0, done = 0;
    threads.parallel_for(std::min<uint64_t>(threads.threads(), windows), [&](size_t) {
      const auto scratch = std::make_unique<Scratch>();
      for (uint64_t i; (i = next++) < windows;) {
        const uint64_t begin = i == 0 ? 0 : i * size - shift, end = std::min((i + 1) * size - shift, total_);
        try {
          load_window(begin, end, *scratch);
        } catch (...) {
          next = windows;  // the others need not go on
          throw;
        }
        const uint64_t bytes = done += end - begin;
        if (progress && std::this_thread::get_id() == caller) progress(bytes);
      }
    });
    reconsider_pages(memory_, total_);
    if (progress) progress(total_);
  }

 private:
  // The blocks that begin in bytes [begin, end).
  void load_window(uint64_t begin, uint64_t end, Scratch& scratch) const {
    auto place = std::upper_bound(places_.begin(), places_.end(), begin, [](uint64_t at, const Place& p) { return at < p.offset; });
    if (place != places_.begin()) --place;
    for (; place != places_.end() && place->offset < end; ++place) {
      const PieceShape& shape = *place->shape;
      const size_t first = begin <= place->offset ? 0 : ceil_div(begin - place->offset, shape.block_bytes);
      const size_t last = std::min<uint64_t>(shape.blocks(), ceil_div(end - place->offset, shape.block_bytes));
      if (first >= last) continue;
      touch_fresh(memory_ + place->offset + first * shape.block_bytes, (last - first) * shape.block_bytes);
      load_rows(*place, {first * kBlockRows, std::min(last * kBlockRows, shape.rows)}, scratch);
    }
  }

  void load_rows(const Place& place, Range rows, Scratch& scratch) const {
    const PieceShape& shape = *place.shape;
    const size_t row_bytes = std::max<size_t>(1, shape.format.bytes(1, shape.cols));
    const size_t band = std::max(kBlockRows, kBandBytes / row_bytes / kBlockRows * kBlockRows);
    for (size_t row = rows.begin; row < rows.end;) {
      const LoadRun& run = run_at(*place.runs, row);
      size_t end = std::min({row + band, rows.end, run.end()});
      if (end == run.end() && end != shape.rows) end = end / kBlockRows * kBlockRows;
      const bool alone = end > row;  // else the block's rows come from several parts
      if (!alone) end = std::min(row + kBlockRows, shape.rows);
      const size_t step = row_bytes * kBlockRows <= kWideBytes ? std::max<size_t>(1, shape.cols) : kColumnStep;
      for (size_t col = 0; col < shape.cols; col += step)
        load_band(place, alone ? &run : nullptr, {row, end}, {col, std::min(col + step, shape.cols)}, scratch);
      row = end;
    }
  }

  static const LoadRun& run_at(const std::vector<LoadRun>& runs, size_t row) {
    return *(std::upper_bound(runs.begin(), runs.end(), row, [](size_t r, const LoadRun& run) { return r < run.first; }) - 1);
  }

  void load_band(const Place& place, const LoadRun* run, Range rows, Range cols, Scratch& scratch) const {
    if (run)
      source_.read_stored(run->part->name, rows_of(*run, rows), cols_of(*run, cols), scratch.band);
    else
      gather(place, rows, cols, scratch);
    if (pack(*place.shape, memory_ + place.offset, scratch.band, rows.begin, cols.begin, scratch.tile)) return;
    source_.read(run->part->name, rows_of(*run, rows), cols_of(*run, cols), scratch.part);  // throws, and says where
    throw Error(Code::data_loss, "a scale is not finite", run->part->name);
  }

  // Rows of several parts, one behind the other.
  void gather(const Place& place, Range rows, Range cols, Scratch& scratch) const {
    formats::WeightMatrix& all = scratch.band.matrix;
    formats::WeightMatrix& part = scratch.part;
    all.resize(place.shape->format, 0, cols.size());
    for (const LoadRun& run : *place.runs) {
      const Range here{std::max(rows.begin, run.first), std::min(rows.end, run.end())};
      if (here.begin >= here.end) continue;
      source_.read(run.part->name, rows_of(run, here), cols_of(run, cols), part);
      all.rows += part.rows;
      all.codes.insert(all.codes.end(), part.codes.begin(), part.codes.end());
      all.scales.insert(all.scales.end(), part.scales.begin(), part.scales.end());
      all.biases.insert(all.biases.end(), part.biases.begin(), part.biases.end());
    }
    scratch.band.blocks = nullptr;
    scratch.band.rows = rows.size();
    scratch.band.cols = cols.size();
  }

  static Range rows_of(const LoadRun& run, Range rows) {
    return {run.part->rows.begin + rows.begin - run.first, run.part->rows.begin + rows.end - run.first};
  }
  static Range cols_of(const LoadRun& run, Range cols) { return {run.part->cols.begin + cols.begin, run.part->cols.begin + cols.end}; }

  const formats::TensorSource& source_;
  std::byte* memory_;
  std::vector<Place> places_;  // by offset
  uint64_t total_ = 0;
};

std::unique_ptr<PackedWeight> make_weight(const LoadPlan& plan, size_t unit, std::shared_ptr<std::byte> memory) {
  auto weight = std::make_unique<PackedWeight>();
  weight->rows = plan.rows;
  weight->cols = plan.cols;
  weight->bytes = plan.bytes;
  weight->unit = unit;
  weight->memory = std::move(memory);
  const std::byte* at = weight->memory.get();
  for (const PieceShape& shape : plan.pieces) {
    Piece piece;
    static_cast<PieceShape&>(piece) = shape;
    piece.data = at;
    weight->pieces.push_back(piece);
    at += shape.bytes();
  }
  return weight;
}

}  // namespace

uint64_t NativeBackend::weight_bytes(const formats::TensorSource& source, std::span<const WeightPart> parts) const {
  return make_load_plan(source, parts, fast_dense_).bytes;
}

uint64_t NativeBackend::load_scratch_bytes() const { return threads_.threads() * kScratchBytes; }

std::vector<std::unique_ptr<Weight>> NativeBackend::load_all(const formats::TensorSource& source, std::span<const WeightRequest> requests,
                                                             const LoadProgress& progress) {
  std::vector<LoadPlan> plans;
  uint64_t total = 0;
  for (const WeightRequest& request : requests) {
    plans.push_back(make_load_plan(source, request.parts, fast_dense_));
    if (request.unit != 0) check_unit(plans.back(), source, request.parts, request.unit);
    total += plans.back().bytes;
  }
  const std::shared_ptr<std::byte> memory = arena_.take(total);
  Loader(source, plans, memory.get()).run(threads_, progress);
  pages_.join_later(memory, total);
  std::vector<std::unique_ptr<Weight>> weights;
  uint64_t at = 0;
  for (size_t i = 0; i < plans.size(); at += plans[i++].bytes)
    weights.push_back(make_weight(plans[i], requests[i].unit, {memory, memory.get() + at}));
  return weights;
}

std::unique_ptr<Weight> NativeBackend::load(const formats::TensorSource& source, std::span<const WeightPart> parts, size_t unit) {
  const WeightRequest request{{parts.begin(), parts.end()}, unit};
  return std::move(load_all(source, {&request, 1}, {}).front());
}

}  // namespace verbund::compute::native
