// The contract of Mesh, for every transport and number of ranks.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "mesh/mesh_ranks.h"

namespace verbund::mesh::testing {
namespace {

using ::testing::HasSubstr;

std::vector<int64_t> random_i64(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int64_t> v(count);
  for (auto& x : v) x = static_cast<int64_t>(random()) >> 8;
  return v;
}

std::vector<float> random_f32(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> v(count);
  // Wide exponents, so that another order of summation gives other bits.
  for (auto& x : v) x = std::ldexp(static_cast<float>(random() % 2000000) - 1e6f, static_cast<int>(random() % 40) - 20);
  return v;
}

template <class T, class Make>
std::vector<T> sum_in_rank_order(int size, size_t count, uint64_t seed, Make make) {
  std::vector<T> sum = make(count, seed * 100);
  for (int r = 1; r < size; ++r) {
    const auto v = make(count, seed * 100 + static_cast<uint64_t>(r));
    for (size_t i = 0; i < count; ++i) sum[i] = sum[i] + v[i];
  }
  return sum;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

struct Case {
  Channel channel;
  int size;
};

class Contract : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (const auto lacking = lacking_for(GetParam().channel, false); !lacking.empty()) GTEST_SKIP() << lacking;
  }
  World world(uint64_t jitter = 0) const { return {GetParam().channel, GetParam().size, jitter, -1}; }
  int size() const { return GetParam().size; }
};

INSTANTIATE_TEST_SUITE_P(, Contract,
                         ::testing::Values(Case{kShm, 1}, Case{kShm, 2}, Case{kShm, 3}, Case{kShm, 4}, Case{kShm, 5}, Case{kTcp, 1},
                                           Case{kTcp, 2}, Case{kTcp, 3}, Case{kTcp, 4}, Case{kTcp, 5}, Case{kUc, 2}, Case{kUc, 3},
                                           Case{kUc, 5}, Case{kRc, 2}, Case{kRc, 3}, Case{kRc, 5}),
                         [](const auto& info) { return to_string(info.param.channel) + std::to_string(info.param.size); });

// Around both algorithms' border, around the ring's size, and with parts that do not divide.
const size_t kCounts[] = {0, 1, 7, 576, 4095, 4096, 4097, 8191, 8192, 8193, 33000, 131072 + 5};

TEST_P(Contract, AllReduceInt64) {
  expect_all(world(), [&](Mesh& mesh) {
    for (size_t count : kCounts) {
      auto data = random_i64(count, count * 100 + static_cast<uint64_t>(mesh.rank()));
      mesh.all_reduce(std::span(data), soon());
      EXPECT_TRUE(same_bits(data, sum_in_rank_order<int64_t>(size(), count, count, random_i64))) << count;
    }
  });
}

TEST_P(Contract, AllReduceInt64Wraps) {
  expect_all(world(), [&](Mesh& mesh) {
    std::vector<int64_t> data(5, std::numeric_limits<int64_t>::max());
    mesh.all_reduce(std::span(data), soon());
    EXPECT_EQ(data[4], static_cast<int64_t>(static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) * static_cast<uint64_t>(size())));
  });
}

TEST_P(Contract, AllReduceF32AddsInRankOrderByBothAlgorithms) {
  expect_all(world(), [&](Mesh& mesh) {
    for (size_t count : kCounts) {
      auto data = random_f32(count, count * 100 + static_cast<uint64_t>(mesh.rank()));
      mesh.all_reduce(std::span(data), soon());
      EXPECT_TRUE(same_bits(data, sum_in_rank_order<float>(size(), count, count, random_f32))) << count;
    }
  });
}

TEST_P(Contract, AllGatherUnequalAndEmpty) {
  expect_all(world(), [&](Mesh& mesh) {
    for (size_t scale : {size_t(0), size_t(1), size_t(100), size_t(200'000)}) {
      std::vector<size_t> sizes;
      for (int r = 0; r < size(); ++r) sizes.push_back(static_cast<size_t>((r * 7 + 3) % 5) * scale);
      std::vector<std::byte> mine(sizes[static_cast<size_t>(mesh.rank())], std::byte(mesh.rank() + 1));
      std::vector<std::byte> all(std::accumulate(sizes.begin(), sizes.end(), size_t(0)));
      mesh.all_gather(mine, sizes, all, soon());
      std::vector<std::byte> expected;
      for (int r = 0; r < size(); ++r) expected.insert(expected.end(), sizes[static_cast<size_t>(r)], std::byte(r + 1));
      EXPECT_EQ(all, expected);
    }
  });
}

TEST_P(Contract, AllGatherInPlace) {
  expect_all(world(), [&](Mesh& mesh) {
    std::vector<size_t> sizes(static_cast<size_t>(size()), 4);
    std::vector<int> all(static_cast<size_t>(size()), -1);
    all[static_cast<size_t>(mesh.rank())] = mesh.rank() * 10;
    mesh.all_gather(std::as_bytes(std::span(all)).subspan(static_cast<size_t>(mesh.rank()) * 4, 4), sizes,
                    std::as_writable_bytes(std::span(all)), soon());
    for (int r = 0; r < size(); ++r) EXPECT_EQ(all[static_cast<size_t>(r)], r * 10);
  });
}

TEST_P(Contract, BroadcastFromEachRoot) {
  expect_all(world(), [&](Mesh& mesh) {
    for (int root = 0; root < size(); ++root)
      for (size_t count : {size_t(0), size_t(3), size_t(5000), size_t(100'000)}) {
        const auto expected = random_i64(count, count + static_cast<uint64_t>(root));
        auto data = mesh.rank() == root ? expected : std::vector<int64_t>(count);
        mesh.broadcast(std::as_writable_bytes(std::span(data)), root, soon());
        EXPECT_EQ(data, expected);
      }
  });
}

TEST_P(Contract, SendAndRecvAroundTheRing) {
  if (size() == 1) GTEST_SKIP() << "needs a peer";
  expect_all(world(), [&](Mesh& mesh) {
    const int to = (mesh.rank() + 1) % size(), from = (mesh.rank() + size() - 1) % size();
    for (size_t count : {size_t(0), size_t(1), size_t(500), size_t(40'000)}) {
      auto data = random_i64(count, static_cast<uint64_t>(mesh.rank()));
      std::vector<int64_t> got(count);
      // Even ranks first send; where two neighbours both do, the channel must take the message or the other one be in recv.
      if (mesh.rank() % 2 == 1) mesh.recv(std::as_writable_bytes(std::span(got)), from, soon());
      mesh.send(std::as_bytes(std::span(data)), to, soon());
      if (mesh.rank() % 2 == 0) mesh.recv(std::as_writable_bytes(std::span(got)), from, soon());
      EXPECT_EQ(got, random_i64(count, static_cast<uint64_t>(from)));
    }
  });
}

TEST_P(Contract, BarrierHoldsEveryoneBack) {
  std::atomic<int> before{0};
  expect_all(world(), [&](Mesh& mesh) {
    for (int round = 1; round <= 20; ++round) {
      if (round == 3 && mesh.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ++before;
      mesh.barrier(soon());
      EXPECT_GE(before.load(), round * size());
      mesh.barrier(soon());
    }
  });
}

TEST_P(Contract, SubgroupsNestedAndMixedWithTheWhole) {
  expect_all(world(), [&](Mesh& mesh) {
    std::vector<int> even, odd;
    for (int r = 0; r < size(); ++r) (r % 2 ? odd : even).push_back(r);
    const auto& mine = mesh.rank() % 2 ? odd : even;
    auto half = mesh.subgroup(mine);
    EXPECT_EQ(half->size(), static_cast<int>(mine.size()));
    EXPECT_EQ(mine[static_cast<size_t>(half->rank())], mesh.rank());

    std::vector<int> last{half->size() - 1};
    if (half->size() > 1) last.insert(last.begin(), half->size() - 2);
    std::unique_ptr<Mesh> pair;
    if (std::find(last.begin(), last.end(), half->rank()) != last.end()) pair = half->subgroup(last);
    auto everyone = std::vector<int>(static_cast<size_t>(size()));
    std::iota(everyone.begin(), everyone.end(), 0);
    auto twin = mesh.subgroup(everyone);

    for (int round = 0; round < 5; ++round) {
      for (size_t count : {size_t(3), size_t(10'000)}) {
        std::vector<int64_t> data(count, mesh.rank() + 1);
        half->all_reduce(std::span(data), soon());
        int64_t expected = 0;
        for (int r : mine) expected += r + 1;
        EXPECT_EQ(data.back(), expected);
        mesh.all_reduce(std::span(data), soon());
        if (pair) {
          std::vector<float> f(count, 0.5f);
          pair->all_reduce(std::span(f), soon());
          EXPECT_EQ(f[0], 0.5f * static_cast<float>(last.size()));
        }
        twin->barrier(soon());
      }
    }
  });
}

TEST_P(Contract, RandomOperationsUnderJitterGiveTheSameBits) {
  for (uint64_t seed : {uint64_t(1)}) {
    expect_all(world(seed), [&](Mesh& mesh) {
      std::mt19937_64 random(seed);  // the same on every rank
      for (int i = 0; i < 12; ++i) {
        const size_t bytes = i % 3 == 0 ? random() % (1 << 20) : random() % 40'000;
        const uint64_t contents = random() % 1000;
        switch (random() % 4) {
          case 0: {
            auto data = random_i64(bytes / 8, contents * 100 + static_cast<uint64_t>(mesh.rank()));
            mesh.all_reduce(std::span(data), soon());
            EXPECT_TRUE(same_bits(data, sum_in_rank_order<int64_t>(size(), bytes / 8, contents, random_i64)));
            break;
          }
          case 1: {
            auto data = random_f32(bytes / 4, contents * 100 + static_cast<uint64_t>(mesh.rank()));
            mesh.all_reduce(std::span(data), soon());
            EXPECT_TRUE(same_bits(data, sum_in_rank_order<float>(size(), bytes / 4, contents, random_f32)));
            break;
          }
          case 2: {
            const int root = static_cast<int>(contents % static_cast<uint64_t>(size()));
            const auto expected = random_i64(bytes / 8, contents);
            auto data = mesh.rank() == root ? expected : std::vector<int64_t>(bytes / 8);
            mesh.broadcast(std::as_writable_bytes(std::span(data)), root, soon());
            EXPECT_EQ(data, expected);
            break;
          }
          case 3: {
            std::vector<size_t> sizes;
            for (int r = 0; r < size(); ++r) sizes.push_back((contents * static_cast<size_t>(r + 1)) % 97 * 8);
            std::vector<std::byte> all(std::accumulate(sizes.begin(), sizes.end(), size_t(0)));
            const auto mine = random_i64(sizes[static_cast<size_t>(mesh.rank())] / 8, static_cast<uint64_t>(mesh.rank()));
            mesh.all_gather(std::as_bytes(std::span(mine)), sizes, all, soon());
            size_t offset = 0;
            for (int r = 0; r < size(); ++r) {
              const auto theirs = random_i64(sizes[static_cast<size_t>(r)] / 8, static_cast<uint64_t>(r));
              EXPECT_TRUE(theirs.empty() || std::memcmp(all.data() + offset, theirs.data(), theirs.size() * 8) == 0);
              offset += sizes[static_cast<size_t>(r)];
            }
            break;
          }
        }
      }
    });
  }
}

TEST_P(Contract, LinksAreCounted) {
  expect_all(world(), [&](Mesh& mesh) {
    std::vector<int64_t> data(100);
    mesh.all_reduce(std::span(data), soon());
    const auto links = mesh.links();
    ASSERT_EQ(links.size(), static_cast<size_t>(size() - 1));
    for (const auto& link : links) {
      EXPECT_NE(link.peer, mesh.rank());
      EXPECT_EQ(link.transport, to_string(GetParam().channel.transport));
      EXPECT_EQ(link.bytes_sent, 800u);
      EXPECT_EQ(link.bytes_received, 800u);
    }
    EXPECT_GE(mesh.buffer_bytes(), static_cast<uint64_t>(size() - 1) * 64 * 1024);
    EXPECT_LE(mesh.buffer_bytes(), static_cast<uint64_t>(size() - 1) * 1024 * 1024);
  });
}

TEST_P(Contract, WrongArgumentsAreRefusedAndHarmless) {
  expect_all(world(), [&](Mesh& mesh) {
    std::vector<std::byte> bytes(8);
    const auto code_of = [](auto&& call) {
      try {
        call();
      } catch (const Error& e) { return e.code(); }
      return Code::internal;
    };
    const std::vector<size_t> sizes(static_cast<size_t>(size()), 8), huge(static_cast<size_t>(size()), ~size_t(0));
    std::vector<size_t> too_many(static_cast<size_t>(size() + 1), 8);
    EXPECT_EQ(code_of([&] { mesh.send(bytes, size(), soon()); }), Code::invalid_argument);
    EXPECT_EQ(code_of([&] { mesh.send(bytes, mesh.rank(), soon()); }), Code::invalid_argument);
    EXPECT_EQ(code_of([&] { mesh.recv(bytes, -1, soon()); }), Code::invalid_argument);
    EXPECT_EQ(code_of([&] { mesh.broadcast(bytes, size(), soon()); }), Code::invalid_argument);
    EXPECT_EQ(code_of([&] { mesh.all_gather(bytes, too_many, bytes, soon()); }), Code::invalid_argument);
    EXPECT_EQ(code_of([&] { mesh.all_gather(bytes, huge, bytes, soon()); }), Code::invalid_argument);
    if (size() > 1) {
      EXPECT_EQ(code_of([&] { mesh.all_gather(bytes, sizes, bytes, soon()); }), Code::invalid_argument);
    }
    const std::vector<int> out_of_range{size()}, without_me{(mesh.rank() + 1) % size()}, descending{1, 0};
    EXPECT_EQ(code_of([&] { mesh.subgroup(out_of_range); }), Code::invalid_argument);
    if (size() > 1) {
      EXPECT_EQ(code_of([&] { mesh.subgroup(without_me); }), Code::invalid_argument);
      EXPECT_EQ(code_of([&] { mesh.subgroup(descending); }), Code::invalid_argument);
    }
    mesh.barrier(soon());  // still alive
  });
}

TEST_P(Contract, DeadlineNamesOperationRankAndTime) {
  if (size() == 1) GTEST_SKIP() << "needs a peer";
  const auto outcomes = run_threads(world(), [&](Mesh& mesh) {
    mesh.barrier(soon());
    std::vector<int64_t> data(576);
    if (mesh.rank() == size() - 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      return;
    }
    mesh.all_reduce(std::span(data), soon(0.1));
  });
  for (int r = 0; r + 1 < size(); ++r) {
    const auto& outcome = outcomes[static_cast<size_t>(r)];
    EXPECT_TRUE(outcome.failed);
    EXPECT_EQ(outcome.code, Code::deadline_exceeded) << outcome.what;
    EXPECT_THAT(outcome.what, HasSubstr("all_reduce #1 of 4608 bytes"));
    EXPECT_THAT(outcome.what, HasSubstr("for rank " + std::to_string(size() - 1)));
    EXPECT_THAT(outcome.what, ::testing::ContainsRegex("waited 0\\.[0-9]+ s"));
    EXPECT_LT(outcome.seconds, 5);
  }
}

TEST_P(Contract, CancelFromAnotherThreadEndsAWaitAtOnceAndForGood) {
  if (size() == 1) GTEST_SKIP() << "never waits";
  const auto outcomes = run_threads(world(), [&](Mesh& mesh) {
    mesh.barrier(soon());
    if (mesh.rank() != 0) {
      std::byte byte{};
      try {
        mesh.recv({&byte, 1}, 0, soon(5));
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), Code::unavailable);
        EXPECT_THAT(e.what(), HasSubstr("rank 0 gave up: cancelled: the user pressed a key"));
        throw;
      }
      return;
    }
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      mesh.cancel("the user pressed a key");
    });
    const std::vector<int> both{0, 1};
    auto group = mesh.subgroup(both);
    const auto begun = std::chrono::steady_clock::now();
    try {
      std::byte byte{};
      group->recv({&byte, 1}, 1, soon(5));
      ADD_FAILURE() << "not cancelled";
    } catch (const Error& e) { EXPECT_EQ(e.code(), Code::cancelled); }
    EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::milliseconds(1000));
    other.join();
    mesh.barrier(soon(5));
  });
  for (const auto& outcome : outcomes) EXPECT_TRUE(outcome.failed);
  EXPECT_EQ(outcomes[0].code, Code::cancelled) << outcomes[0].what;
}

struct Divergence {
  const char* name;
  std::function<void(Mesh&)> others, odd_one;  // the last rank is the odd one
  const char *others_at, *odd_one_at;
};

TEST_P(Contract, DivergedRanksAllSaySo) {
  if (size() == 1) GTEST_SKIP() << "needs a peer";
  const auto reduce = [](size_t count) {
    return [count](Mesh& mesh) {
      std::vector<int64_t> v(count);
      mesh.all_reduce(std::span(v), soon(5));
    };
  };
  const auto broadcast = [](Mesh& mesh) {
    std::vector<std::byte> v(64);
    mesh.broadcast(v, 0, soon(5));  // the odd one is the last rank: it receives, so it finds out here
  };
  const Divergence cases[] = {
      {"skipped",
       [&](Mesh& mesh) {
         reduce(576)(mesh);
         reduce(100)(mesh);
       },
       reduce(100), "all_reduce #1 of 4608 bytes", "all_reduce #1 of 800 bytes"},
      {"another operation", reduce(576), broadcast, "all_reduce #1 of 4608 bytes", "broadcast #1 of 64 bytes"},
      {"another length", reduce(576), reduce(575), "all_reduce #1 of 4608 bytes", "all_reduce #1 of 4600 bytes"},
      {"another algorithm", reduce(10), reduce(10'000), "all_reduce #1 of 80 bytes", "all_reduce #1 of 80000 bytes"},
      {"another type", reduce(4),
       [](Mesh& mesh) {
         std::vector<float> v(8);
         mesh.all_reduce(std::span(v), soon(5));
       },
       "all_reduce #1 of 32 bytes", "all_reduce (f32) #1 of 32 bytes"},
  };
  for (const auto& c : cases) {
    const auto outcomes = run_threads(world(), [&](Mesh& mesh) {
      mesh.barrier(soon());
      const bool odd = mesh.rank() == size() - 1;
      try {
        (odd ? c.odd_one : c.others)(mesh);
        mesh.barrier(soon(5));  // a broadcast's root waits for nobody
      } catch (const Error&) {
        EXPECT_THROW(mesh.barrier(soon(5)), Error);  // dead
        throw;
      }
    });
    for (size_t r = 0; r < outcomes.size(); ++r) {
      const auto& outcome = outcomes[r];
      EXPECT_TRUE(outcome.failed) << c.name;
      EXPECT_EQ(outcome.code, Code::data_loss) << c.name << ", rank " << r << ": " << outcome.what;
      EXPECT_THAT(outcome.what, HasSubstr("ranks diverged: rank ")) << c.name;
      EXPECT_LT(outcome.seconds, 4) << c.name;
    }
    EXPECT_THAT(outcomes[0].what, HasSubstr(c.others_at)) << c.name;
    EXPECT_THAT(outcomes[0].what, HasSubstr(c.odd_one_at)) << c.name;
  }
}

TEST_P(Contract, FramesOfASubgroupAreNotTakenForTheWhole) {
  if (size() != 2) GTEST_SKIP() << "one size is enough";
  const auto outcomes = run_threads(world(), [&](Mesh& mesh) {
    const std::vector<int> both{0, 1};
    auto group = mesh.subgroup(both);
    std::vector<int64_t> data(4);
    (mesh.rank() == 0 ? *group : mesh).all_reduce(std::span(data), soon(5));
  });
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome.code, Code::data_loss);
    EXPECT_THAT(outcome.what, HasSubstr("of another group"));
  }
}

TEST_P(Contract, TwentyMeshesLeaveNothingBehind) {
  const auto once = [&] {
    expect_all(world(), [](Mesh& mesh) {
      std::vector<int64_t> data(1000, 1);
      mesh.all_reduce(std::span(data), soon());
    });
  };
  once();
  const int descriptors = open_descriptors(), threads = running_threads();
  for (int i = 0; i < 20; ++i) once();
  EXPECT_EQ(open_descriptors(), descriptors);
  // A thread that was joined may be listed for a moment longer.
  for (const Deadline patience = soon(5); running_threads() != threads && !patience.expired();) std::this_thread::yield();
  EXPECT_EQ(running_threads(), threads);
}

TEST(SoloMesh, EveryOperationReturnsAtOnce) {
  auto mesh = make_solo_mesh();
  EXPECT_EQ(mesh->rank(), 0);
  EXPECT_EQ(mesh->size(), 1);
  std::vector<int64_t> data{1, 2, 3};
  const Deadline past = Deadline::after({});
  mesh->all_reduce(std::span(data), past);
  EXPECT_EQ(data, (std::vector<int64_t>{1, 2, 3}));
  std::vector<float> f(100'000, 1.5f);
  mesh->all_reduce(std::span(f), past);
  EXPECT_EQ(f[99'999], 1.5f);
  mesh->broadcast(std::as_writable_bytes(std::span(data)), 0, past);
  mesh->barrier(past);
  const std::vector<size_t> sizes{24};
  std::vector<int64_t> all(3);
  mesh->all_gather(std::as_bytes(std::span(data)), sizes, std::as_writable_bytes(std::span(all)), past);
  EXPECT_EQ(all, data);
  EXPECT_TRUE(mesh->links().empty());
  EXPECT_EQ(mesh->buffer_bytes(), 0u);
  mesh->cancel("enough");
  EXPECT_THROW(mesh->barrier(soon()), Error);
}

}  // namespace
}  // namespace verbund::mesh::testing
