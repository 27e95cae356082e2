#include "support.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <random>

namespace {
thread_local size_t largest = 0;
}  // namespace

void* operator new(size_t bytes) {
  largest = std::max(largest, bytes);
  if (void* p = std::malloc(bytes ? bytes : 1)) return p;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  largest = std::max(largest, bytes);
  return std::malloc(bytes ? bytes : 1);
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace verbund::formats {

void reset_allocation_probe() { largest = 0; }
size_t largest_allocation() { return largest; }

void expect_slices(const TensorSource& source, std::string_view name, const std::vector<float>& whole, int tries) {
  const TensorInfo& info = source.require(name);
  const size_t step = info.format.coding == Coding::dense ? 1 : std::max(32, info.format.group);
  std::mt19937 random(static_cast<unsigned>(std::hash<std::string_view>{}(name)));
  const auto range = [&](size_t size) {
    const size_t a = random() % (size + 1), b = random() % (size + 1);
    return Range{std::min(a, b), std::max(a, b)};
  };
  for (int i = 0; i < tries; ++i) {
    const Range rows = range(info.rows()), units = range(info.cols() / step), cols{units.begin * step, units.end * step};
    const std::vector<float> part = read_values(source, name, rows, cols);
    std::vector<float> expected;
    for (size_t r = rows.begin; r < rows.end; ++r)
      expected.insert(expected.end(), whole.begin() + static_cast<ptrdiff_t>(r * info.cols() + cols.begin),
                      whole.begin() + static_cast<ptrdiff_t>(r * info.cols() + cols.end));
    ASSERT_EQ(part, expected) << name << " rows " << rows.begin << ".." << rows.end << " columns " << cols.begin << ".." << cols.end;
  }
}

}  // namespace verbund::formats
