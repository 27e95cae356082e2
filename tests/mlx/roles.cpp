#include "mlx/roles.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <thread>

#include "base/error.h"
#include "compute/backend.h"
#include "compute/memory_source.h"
#include "compute/mlx_module.h"
#include "mesh/mesh.h"
#include "mlx/module_functions.h"

namespace verbund::test {
namespace {

using compute::make_mlx_mesh;
using compute::testing::MemorySource;
using compute::testing::random_matrix;
using compute::testing::random_values;
using mesh::Mesh;
using namespace std::chrono_literals;

[[noreturn]] void fail(int line, const std::string& what) { throw std::runtime_error("line " + std::to_string(line) + ": " + what); }
#define CHECK(condition) \
  if (!(condition)) fail(__LINE__, #condition)

Deadline in(std::chrono::milliseconds wait) { return Deadline::after(wait); }

std::unique_ptr<Mesh> join(int rank, const std::vector<std::string>& endpoints) {
  return make_mlx_mesh({"ring", rank, endpoints}, in(20s));
}

double seconds_of(const std::function<void()>& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

template <class F>
Error error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) { return e; }
  throw std::runtime_error("no error where one was expected");
}

void reduces(Mesh& m) {
  const auto n = static_cast<int64_t>(m.size());
  for (const size_t count : {size_t{0}, size_t{1}, size_t{3}, size_t{1000}, size_t{100'000}}) {
    std::vector<int64_t> data(count);
    for (size_t i = 0; i < count; ++i) data[i] = (int64_t{1} << 40) * (m.rank() + 1) - int64_t(i);
    m.all_reduce(std::span(data), in(5s));
    for (size_t i = 0; i < count; ++i) CHECK(data[i] == (int64_t{1} << 40) * n * (n + 1) / 2 - n * int64_t(i));
  }
  // Ascending rank order: 1e8 + 1 + 1 ... rounds differently from any other order.
  std::vector<float> values(100, m.rank() == 0 ? 1e8f : 3.0f);
  m.all_reduce(std::span(values), in(5s));
  float want = 1e8f;
  for (int r = 1; r < m.size(); ++r) want += 3.0f;
  for (const float v : values) CHECK(v == want);
}

void gathers(Mesh& m) {
  std::vector<size_t> sizes;
  for (int r = 0; r < m.size(); ++r) sizes.push_back(r == 1 ? 0 : size_t(100 * r + 7));
  const std::vector<std::byte> mine(sizes[size_t(m.rank())], std::byte(m.rank() + 1));
  size_t total = 0;
  for (const size_t s : sizes) total += s;
  std::vector<std::byte> all(total);
  m.all_gather(mine, sizes, all, in(5s));
  const std::byte* at = all.data();
  for (int r = 0; r < m.size(); ++r)
    for (size_t i = 0; i < sizes[size_t(r)]; ++i) CHECK(*at++ == std::byte(r + 1));
  for (int root = 0; root < m.size(); ++root) {
    std::vector<std::byte> data(333, std::byte(m.rank() == root ? 200 + root : 9));
    m.broadcast(data, root, in(5s));
    for (const std::byte b : data) CHECK(b == std::byte(200 + root));
  }
  m.barrier(in(5s));
}

// Every ordered pair, in an order that all ranks share.
void messages(Mesh& m) {
  for (int from = 0; from < m.size(); ++from)
    for (int to = 0; to < m.size(); ++to) {
      if (from == to || (m.rank() != from && m.rank() != to)) continue;
      std::vector<std::byte> data(5000, std::byte(10 * from + to));
      if (m.rank() == from) m.send(data, to, in(10s));
      if (m.rank() != to) continue;
      std::vector<std::byte> got(5000);
      m.recv(got, from, in(10s));
      CHECK(got == data);
    }
}

void contract(int rank, const std::vector<std::string>& endpoints) {
  const auto m = join(rank, endpoints);
  CHECK(m->rank() == rank && m->size() == int(endpoints.size()));
  reduces(*m);
  gathers(*m);
  messages(*m);
  CHECK(m->links().size() == endpoints.size() - 1);
  CHECK(m->links()[0].transport == "mlx" && m->links()[0].bytes_sent > 0);
  CHECK(m->buffer_bytes() == compute::kMlxRingBytes);
  std::vector<int> everybody;
  for (int r = 0; r < m->size(); ++r) everybody.push_back(r);
  const auto twin = m->subgroup(everybody);  // shares the ring, not the frames
  const uint64_t sent = m->links()[0].bytes_sent;
  reduces(*twin);
  CHECK(m->links()[0].bytes_sent > sent);  // links are shared, and so is what they count
  gathers(*m);
  messages(*twin);
  CHECK(m->buffer_bytes() == compute::kMlxRingBytes);
  CHECK(error_of([&] { m->send({}, rank, in(1s)); }).code() == Code::invalid_argument);
  m->barrier(in(5s));  // a refused argument has not killed the mesh
}

// Four ranks as two stages of two, as a 2 x 2 placement makes them, and the whole mesh in between.
void subgroups(int rank, const std::vector<std::string>& endpoints) {
  const auto m = join(rank, endpoints);
  const std::vector<int> stage = rank < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3};
  const auto mine = m->subgroup(stage);
  CHECK(mine->size() == 2 && mine->rank() == rank % 2);
  reduces(*mine);
  m->barrier(in(5s));
  const std::vector<int> across = rank % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3};  // no neighbours in the ring
  const auto other = m->subgroup(across);
  std::vector<int64_t> sum{rank};
  other->all_reduce(std::span(sum), in(5s));
  CHECK(sum[0] == across[0] + across[1]);
  gathers(*mine);
  messages(*m);
  reduces(*m);
  const std::vector<int> alone{rank};
  CHECK(m->subgroup(alone)->size() == 1);
  const std::vector<int> foreign{(rank + 1) % 4};
  CHECK(error_of([&] { m->subgroup(foreign); }).code() == Code::invalid_argument);
}

void diverged_operation(int rank, const std::vector<std::string>& endpoints) {
  const auto m = join(rank, endpoints);
  m->barrier(in(5s));
  std::vector<std::byte> data(64);
  const Error e = error_of([&] {
    if (rank == 0)
      m->barrier(in(5s));
    else
      m->broadcast(data, 0, in(5s));
  });
  CHECK(e.code() == Code::data_loss);
  CHECK(std::string(e.what()).find("ranks diverged") != std::string::npos);
  CHECK(error_of([&] { m->barrier(in(5s)); }).code() == Code::data_loss);  // dead from now on
}

// The same operation at the same place, but of another mesh over the same ring.
void diverged_mesh(int rank, const std::vector<std::string>& endpoints) {
  const auto m = join(rank, endpoints);
  const std::vector<int> all{0, 1};
  const auto twin = m->subgroup(all);
  CHECK(error_of([&] { (rank == 0 ? *m : *twin).barrier(in(5s)); }).code() == Code::data_loss);
}

void diverged_length(int rank, const std::vector<std::string>& endpoints) {
  const auto m = join(rank, endpoints);
  std::vector<int64_t> data(rank == 1 ? 11 : 10);
  CHECK(error_of([&] { m->all_reduce(std::span(data), in(5s)); }).code() == Code::data_loss);
}

// Rank 1 does not take part for a while; the others end their waits in time, and the processes end as usual.
void late(int rank, const std::vector<std::string>& endpoints) {
  const auto m = join(rank, endpoints);
  m->barrier(in(5s));
  if (rank == 1) {
    std::this_thread::sleep_for(1200ms);
    const Error e = error_of([&] {
      m->barrier(in(5s));  // may still find what rank 0 sent before it gave up
      m->barrier(in(5s));
    });
    CHECK(e.code() == Code::unavailable && e.lost() == Lost::instance);
    return;
  }
  const double waited = seconds_of([&] {
    const Error e = error_of([&] { m->barrier(in(500ms)); });
    CHECK(e.code() == Code::deadline_exceeded && e.lost() == Lost::instance);
    CHECK(e.parts().where.find("barrier, rank " + std::to_string(rank)) != std::string::npos);
  });
  CHECK(waited > 0.4 && waited < 2);
}

void dies(int rank, const std::vector<std::string>& endpoints) {
  const auto m = join(rank, endpoints);
  m->barrier(in(5s));
  if (rank == 1) _exit(0);
  const double waited = seconds_of([&] {
    std::vector<std::byte> data(8);
    CHECK(error_of([&] { m->recv(data, 1, in(10s)); }).code() == Code::unavailable);
  });
  CHECK(waited < 2);
}

void cancelled(int rank, const std::vector<std::string>& endpoints) {
  const auto m = join(rank, endpoints);
  const std::vector<int> pair{0, 1};
  const auto sub = m->subgroup(pair);
  if (rank == 1) {
    std::this_thread::sleep_for(1s);
    return;
  }
  std::thread other([&] {
    std::this_thread::sleep_for(300ms);
    m->cancel("node b is suspect");
  });
  const double waited = seconds_of([&] {
    const Error e = error_of([&] { sub->barrier(in(30s)); });  // the parent's cancel ends the subgroup's wait
    CHECK(e.code() == Code::cancelled && e.parts().what.find("node b is suspect") != std::string::npos);
  });
  other.join();
  CHECK(waited > 0.2 && waited < 2);
  CHECK(error_of([&] { m->barrier(in(1s)); }).code() == Code::cancelled);
}

void nobody_comes(int rank, const std::vector<std::string>& endpoints) {
  const double waited = seconds_of([&] {
    const Error e = error_of([&] { make_mlx_mesh({"ring", rank, endpoints}, in(500ms)); });
    CHECK(e.code() == Code::deadline_exceeded);
    CHECK(e.parts().where.find("opening an MLX ring of 2") != std::string::npos);
  });
  CHECK(waited < 1.5);
}

// The MLX backend over the MLX mesh: a row-parallel product split over the ranks, and a sharded embedding.
void backend(int rank, const std::vector<std::string>& endpoints) {
  using namespace compute;
  const auto m = join(rank, endpoints);
  const size_t n = endpoints.size(), rows = 3, out = 40, share = 64;
  MemorySource source;
  source.add("w", random_matrix({formats::Coding::affine, formats::DType::f16, 4, 32, 8}, out, share * n, 5));
  const auto x = random_values(rows * share * n, 6), residual = random_values(rows * out, 7);
  std::vector<float> mine;
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < share; ++c) mine.push_back(x[r * share * n + share * size_t(rank) + c]);

  const auto b = make_mlx_backend();
  const WeightPart part{"w", {0, out}, {share * size_t(rank), share * size_t(rank + 1)}};
  const auto w = b->load(source, std::span(&part, 1), 32);
  b->begin_step();
  const Tensor y =
      b->add_reduced(b->from_host(rows, out, residual), b->linear_partial(b->from_host(rows, share, mine), *w), nullptr, *m, in(10s));
  std::vector<float> got(rows * out), weights(share * n);
  b->to_host(y, got);
  for (size_t o = 0; o < out; ++o) {
    formats::dequantise_row(source.matrix("w"), o, weights.data());
    for (size_t r = 0; r < rows; ++r) {
      double want = residual[r * out + o];
      for (size_t c = 0; c < share * n; ++c) want += double(x[r * share * n + c]) * weights[c];
      CHECK(std::abs(got[r * out + o] - want) < 1e-4 * std::max(1.0, std::abs(want)));
    }
  }
  std::vector<std::byte> bits(got.size() * 4 * n);
  m->all_gather(std::as_bytes(std::span(got)), std::vector<size_t>(n, got.size() * 4), bits, in(5s));
  for (size_t r = 1; r < n; ++r)
    CHECK(std::memcmp(bits.data(), bits.data() + r * got.size() * 4, got.size() * 4) == 0);  // ranks agree bit by bit

  source.add("e", random_matrix({formats::Coding::dense, formats::DType::bf16, 0, 0, {}}, 4 * n, 33, 8));
  const WeightPart shard{"e", {4 * size_t(rank), 4 * size_t(rank + 1)}, {0, 33}};
  const auto table = b->load(source, std::span(&shard, 1), 0);
  const std::vector<int32_t> ids{0, int32_t(4 * n) - 1, 5};
  const Tensor whole = b->gather_embedding(b->embed(*table, ids, shard.rows.begin), *m, in(5s));
  std::vector<float> embedded(3 * 33), row(33);
  b->to_host(whole, embedded);
  for (size_t i = 0; i < ids.size(); ++i) {
    formats::dequantise_row(source.matrix("e"), size_t(ids[i]), row.data());
    CHECK(std::memcmp(row.data(), embedded.data() + i * 33, 33 * 4) == 0);
  }

  mine[rank == 1 ? share : 0] = rank == 1 ? 1e12f : mine[0];  // row 1 overflows on rank 1: every rank hears of it
  const Tensor bad =
      b->add_reduced(b->from_host(rows, out, residual), b->linear_partial(b->from_host(rows, share, mine), *w), nullptr, *m, in(10s));
  const Error e = error_of([&] { b->to_host(bad, got); });
  CHECK(e.code() == Code::invalid_argument && e.lost() == Lost::request && e.parts().where == "rows 1");
  m->barrier(in(5s));
}

// Several sums in one step: one evaluation, nothing through the host, whatever a rank has to contribute.
void graph_of_sums(int rank, const std::vector<std::string>& endpoints) {
  using namespace compute;
  const auto m = join(rank, endpoints);
  const size_t rows = 3, cols = 16;
  const bool idle = rank == 1;  // holds no share: zeros, which depend on nothing
  MemorySource source;
  source.add("w", random_matrix({formats::Coding::dense, formats::DType::f32, 0, 0, {}}, cols, cols, 5));
  const auto b = make_mlx_backend();
  const WeightPart part{"w", {0, cols}, {0, cols}};
  const auto w = b->load(source, std::span(&part, 1), cols);
  const auto start = random_values(rows * cols, 6);
  const auto sums = [&](int count, float scale) {
    std::vector<float> first(rows * cols, 0.0f);
    if (rank == 0)
      for (size_t i = 0; i < first.size(); ++i) first[i] = scale * start[i];
    Tensor h = b->gather_embedding(b->from_host(rows, cols, first), *m, in(10s));
    for (int i = 0; i < count; ++i)
      h = b->add_reduced(h, idle ? b->zero_partial(rows, cols) : b->linear_partial(h, *w), nullptr, *m, in(10s));
    return h;
  };
  std::vector<float> got(rows * cols), weights(cols);
  take_counts(*b);
  b->begin_step();
  b->to_host(sums(4, 1.0f), got);
  b->end_step();
  MlxCounts counts = take_counts(*b);
  CHECK(m->links()[0].bytes_sent >= 4 * rows * (cols + 1) * sizeof(int64_t));
  CHECK(counts.evaluations == 1 && counts.host_sums == 0);
  CHECK(counts.nodes["Sum AllReduce"] == 5);

  std::vector<double> want(start.begin(), start.end());
  for (int i = 0; i < 4; ++i) {
    const std::vector<double> h = want;
    for (size_t o = 0; o < cols; ++o) {
      formats::dequantise_row(source.matrix("w"), o, weights.data());
      for (size_t r = 0; r < rows; ++r)
        for (size_t c = 0; c < cols; ++c) want[r * cols + o] += double(m->size() - 1) * h[r * cols + c] * weights[c];
    }
  }
  double largest = 0;
  for (const double v : want) largest = std::max(largest, std::abs(v));
  for (size_t i = 0; i < want.size(); ++i) CHECK(std::abs(got[i] - want[i]) < 1e-5 * largest);
  std::vector<std::byte> bits(got.size() * 4 * endpoints.size());
  m->all_gather(std::as_bytes(std::span(got)), std::vector<size_t>(endpoints.size(), got.size() * 4), bits, in(5s));
  for (size_t r = 1; r < endpoints.size(); ++r) CHECK(std::memcmp(bits.data(), bits.data() + r * got.size() * 4, got.size() * 4) == 0);

  b->begin_step();
  sums(2, 1.0f);  // nobody reads it: every rank evaluates it all the same
  b->end_step();
  CHECK(take_counts(*b).evaluations == 1);
  b->begin_step();
  const Error overflow = error_of([&] { b->to_host(sums(2, 1e9f), got); });
  CHECK(overflow.lost() == Lost::request && overflow.parts().where == "rows 0, 1, 2");
  b->end_step();
  b->begin_step();
  CHECK(error_of([&] { b->to_host(sums(rank == 0 ? 2 : 3, 1.0f), got); }).code() == Code::data_loss);
  b->end_step();
}

// The others wait for the sums of a rank that never gets there.
void late_sums(int rank, const std::vector<std::string>& endpoints) {
  using namespace compute;
  const auto m = join(rank, endpoints);
  const auto b = make_mlx_backend();
  m->barrier(in(5s));
  if (rank == 1) return std::this_thread::sleep_for(1500ms);
  b->begin_step();
  std::vector<float> got(8);
  const Tensor h = b->add_reduced(b->zero_partial(1, 8).sums, b->zero_partial(1, 8), nullptr, *m, in(500ms));
  const double waited = seconds_of([&] {
    const Error e = error_of([&] { b->to_host(h, got); });
    CHECK(e.code() == Code::deadline_exceeded && e.lost() == Lost::instance);
    CHECK(e.parts().where.find("the sums of a step, rank 0") != std::string::npos);
  });
  CHECK(waited > 0.3 && waited < 1.4);
  b->end_step();
}

}  // namespace

int run_role(const std::string& name, int rank, const std::vector<std::string>& endpoints) {
  const std::map<std::string, std::function<void(int, const std::vector<std::string>&)>> roles{{"contract", contract},
                                                                                               {"subgroups", subgroups},
                                                                                               {"diverged_operation", diverged_operation},
                                                                                               {"diverged_length", diverged_length},
                                                                                               {"diverged_mesh", diverged_mesh},
                                                                                               {"late", late},
                                                                                               {"dies", dies},
                                                                                               {"cancelled", cancelled},
                                                                                               {"nobody_comes", nobody_comes},
                                                                                               {"backend", backend},
                                                                                               {"graph_of_sums", graph_of_sums},
                                                                                               {"late_sums", late_sums}};
  try {
    roles.at(name)(rank, endpoints);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "role %s, rank %d: %s\n", name.c_str(), rank, e.what());
    return 1;
  }
}

}  // namespace verbund::test
