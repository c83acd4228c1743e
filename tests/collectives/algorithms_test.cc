// Every algorithm in the simulator: every size from 1 to 17, several lanes, counts and roots, eager
// and rendezvous, in place and not, in random interleavings.

#include <algorithm>
#include <bit>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

#include "collectives/catalog.h"
#include "tests/support/simulator.h"

namespace entrain {
namespace {

using Data = std::vector<std::vector<Cell>>;

size_t At(int64_t index) {
  return static_cast<size_t>(index);
}

struct Case {
  const Algorithm* algorithm = nullptr;
  Spec spec;
  std::vector<int> hosts;
  Layout layout;
};

std::string Describe(const Case& c, const Simulation& simulation) {
  return absl::StrCat(c.algorithm->name, " ", NameOf(c.algorithm->kind), ", ", c.spec.size,
                      " ranks, ", c.spec.lanes, " lanes, ", c.layout.first.back(),
                      " elements, root ", c.spec.root, ", hosts ", absl::StrJoin(c.hosts, " "),
                      ", seed ", simulation.seed,
                      simulation.rendezvous ? ", rendezvous" : ", eager",
                      simulation.in_place ? ", in place" : ", out of place");
}

std::vector<Schedule> BuildAll(const Case& c) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < c.spec.size; ++rank) {
    Spec spec = c.spec;
    spec.rank = rank;
    schedules.push_back(c.algorithm->build(spec, c.hosts));
    const absl::Status status = Validate(schedules.back());
    EXPECT_TRUE(status.ok()) << status << "\n" << ToString(schedules.back());
  }
  return schedules;
}

// The elements that belong to a rank's part in reduce_scatter and all_gather.
bool IsOwn(const Case& c, int rank, int64_t element) {
  const int64_t first = c.layout.first[At(rank * c.spec.lanes)];
  return element >= first && element < c.layout.first[At((rank + 1) * c.spec.lanes)];
}

bool HasInput(const Case& c, int rank, int64_t element) {
  switch (c.spec.kind) {
    case CallKind::kBroadcast:
      return rank == c.spec.root;
    case CallKind::kAllGather:
      return IsOwn(c, rank, element);
    default:
      return true;
  }
}

bool HasOutput(const Case& c, int rank, int64_t element, bool in_place) {
  if (c.spec.kind == CallKind::kReduceScatter) {
    return IsOwn(c, rank, element);
  }
  return c.spec.kind != CallKind::kBroadcast || rank != c.spec.root || in_place;
}

using Value = int64_t (*)(int rank, int64_t element);

int64_t IntegerValue(int rank, int64_t element) {
  return (rank + 1) * 1000003 + element * 7919 + (rank * element) % 101;
}

Data MakeInput(const Case& c, Value value) {
  Data data(At(c.spec.size));
  for (int rank = 0; rank < c.spec.size; ++rank) {
    for (int64_t e = 0; e < c.layout.first.back(); ++e) {
      const bool set = HasInput(c, rank, e);
      data[At(rank)].push_back({set ? value(rank, e) : -1, set});
    }
  }
  return data;
}

// What an element of the result is when contributions are combined in rank order.
int64_t Expected(const Case& c, const Simulation& simulation, Value value, int64_t element) {
  if (c.spec.kind == CallKind::kBroadcast) {
    return value(c.spec.root, element);
  }
  std::vector<int64_t> values;
  for (int rank = 0; rank < c.spec.size; ++rank) {
    if (c.spec.kind != CallKind::kAllGather) {
      values.push_back(value(rank, element));
    } else if (IsOwn(c, rank, element)) {
      return value(rank, element);
    }
  }
  // A single rank's result is its input: there is nothing to combine, hence nothing to complete.
  return values.size() == 1 ? values[0] : simulation.complete(simulation.combine(values));
}

// Runs the case and compares every element of every rank's memory.
::testing::AssertionResult Check(const Case& c, const std::vector<Schedule>& schedules,
                                 const Simulation& simulation, Value value) {
  const Data input = MakeInput(c, value);
  Data data = input;
  const absl::Status status = Simulate(schedules, c.layout, simulation, &data);
  if (!status.ok()) {
    return ::testing::AssertionFailure() << Describe(c, simulation) << ": " << status;
  }
  for (int64_t e = 0; e < c.layout.first.back(); ++e) {
    const int64_t expected = Expected(c, simulation, value, e);
    for (int rank = 0; rank < c.spec.size; ++rank) {
      const Cell& cell = data[At(rank)][At(e)];
      Cell wanted{expected, true};
      if (!HasOutput(c, rank, e, simulation.in_place)) {
        wanted = simulation.in_place ? input[At(rank)][At(e)] : Cell();
      }
      if (cell.set != wanted.set || (cell.set && cell.value != wanted.value)) {
        return ::testing::AssertionFailure()
               << Describe(c, simulation) << ": element " << e << " on rank " << rank << " is "
               << (cell.set ? absl::StrCat(cell.value) : "unset") << " instead of " << wanted.value
               << "\n"
               << ToString(schedules[At(rank)]);
      }
    }
  }
  return ::testing::AssertionSuccess();
}

int64_t Sum(absl::Span<const int64_t> values) {
  int64_t sum = 0;
  for (const int64_t value : values) {
    sum += value;
  }
  return sum;
}

// Maps x -> a x + b modulo 2^32, a in the high half; combined they are done one after another.
// Associative, and the order matters.
int64_t Chain(absl::Span<const int64_t> maps) {
  uint32_t a = 1, b = 0;
  for (const int64_t map : maps) {
    const auto next_a = static_cast<uint32_t>(static_cast<uint64_t>(map) >> 32);
    a *= next_a;
    b = b * next_a + static_cast<uint32_t>(map);
  }
  return static_cast<int64_t>((uint64_t{a} << 32) | b);
}

int64_t MapValue(int rank, int64_t element) {
  return static_cast<int64_t>((static_cast<uint64_t>(2 * rank + 3) << 32) |
                              static_cast<uint64_t>(element * 31 + rank * 7 + 1));
}

int64_t SumFloats(absl::Span<const int64_t> values) {
  float sum = std::bit_cast<float>(static_cast<uint32_t>(values[0]));
  for (size_t i = 1; i < values.size(); ++i) {
    sum += std::bit_cast<float>(static_cast<uint32_t>(values[i]));
  }
  return std::bit_cast<uint32_t>(sum);
}

// Of very different sizes, so that another order of summation gives other bits.
int64_t FloatValue(int rank, int64_t element) {
  std::mt19937 random(static_cast<uint32_t>(rank * 100003 + element));
  const auto mantissa = static_cast<float>(random() % 1000003) + 0.37F;
  return std::bit_cast<uint32_t>(mantissa * static_cast<float>(1U << (random() % 20)));
}

// Hosts to try with n ranks. Algorithms that ignore hosts get one host.
std::vector<std::vector<int>> HostMaps(const Algorithm& algorithm, int n) {
  if (absl::string_view(algorithm.name) != "composed") {
    return {std::vector<int>(At(n), 0)};
  }
  std::vector<std::vector<int>> maps(6);
  for (int r = 0; r < n; ++r) {
    maps[0].push_back(r < (n + 1) / 2 ? 4 : 2);                  // halves; the numbers say nothing
    maps[1].push_back(r % 2);                                    // dealt out
    maps[2].push_back(r == n - 1 ? 1 : 0);                       // one alone
    maps[3].push_back(r < 1 ? 0 : r < 4 ? 1 : 2 + (r - 4) / 5);  // 1, 3, 5, 5, ...
    maps[4].push_back((r * r + 1) % 5);                          // mixed
    maps[5].push_back(r / 2);                                    // pairs
  }
  std::vector<std::vector<int>> fitting;
  for (const std::vector<int>& hosts : maps) {
    if (algorithm.fits({algorithm.kind, 0, n, 0, 1}, hosts)) {
      fitting.push_back(hosts);
    }
  }
  return fitting;
}

std::vector<int> Roots(const Algorithm& algorithm, int n) {
  if (algorithm.kind != CallKind::kBroadcast) {
    return {0};
  }
  std::vector<int> roots = {0, n / 2, n - 1};
  roots.erase(std::unique(roots.begin(), roots.end()), roots.end());
  return roots;
}

// Calls `body` with each size, host map, root and number of lanes; the layout is left to it.
template <typename Body>
void ForEachShape(const Algorithm& algorithm, std::vector<int> lane_counts, const Body& body) {
  for (int n = 1; n <= 17; ++n) {
    for (const std::vector<int>& hosts : HostMaps(algorithm, n)) {
      for (const int root : Roots(algorithm, n)) {
        for (const int lanes : lane_counts) {
          Case c{&algorithm, {algorithm.kind, 0, n, root, lanes}, hosts, {}};
          body(c);
          if (::testing::Test::HasFailure()) {
            return;
          }
        }
      }
    }
  }
}

class AlgorithmTest : public ::testing::TestWithParam<Algorithm> {};
class OrderedAlgorithmTest : public AlgorithmTest {};    // those that say so, and combine
class AllReduceAlgorithmTest : public AlgorithmTest {};  // the same elements on all ranks

TEST_P(AlgorithmTest, GivesEveryRankItsResult) {
  Simulation simulation;
  simulation.combine = Sum;
  simulation.complete = [](int64_t value) { return value * 3 + 1; };  // exactly once
  ForEachShape(GetParam(), {1, 2, 3}, [&](Case& c) {
    const std::vector<Schedule> schedules = BuildAll(c);
    for (const int64_t count : {0, 1, 13, 1001}) {
      c.layout = UniformLayout(c.spec, count);
      for (int mode = 0; mode < 4; ++mode) {
        simulation.rendezvous = (mode & 1) != 0;
        simulation.in_place = (mode & 2) != 0;
        ++simulation.seed;
        // The long ones take the time: in one of the four modes, in turn.
        if (count < 1000 || mode == (c.spec.size + c.spec.lanes) % 4) {
          ASSERT_TRUE(Check(c, schedules, simulation, IntegerValue));
        }
      }
    }
  });
}

TEST_P(AlgorithmTest, ServesUnevenParts) {
  std::mt19937 random(7);
  Simulation simulation;
  simulation.combine = Sum;
  ForEachShape(GetParam(), {1, 3}, [&](Case& c) {
    const std::vector<Schedule> schedules = BuildAll(c);
    for (int repeat = 0; repeat < 4; ++repeat) {
      c.layout.first = {0};
      for (int b = 0; b < BlockCount(c.spec); ++b) {
        c.layout.first.push_back(c.layout.first.back() + random() % 4);
      }
      simulation.seed = random();
      simulation.rendezvous = (repeat & 1) != 0;
      simulation.in_place = (repeat & 2) != 0;
      ASSERT_TRUE(Check(c, schedules, simulation, IntegerValue));
    }
  });
}

// Hence ranks that called something else are found out.
TEST_P(AlgorithmTest, WaitsForEveryRank) {
  Simulation simulation;
  simulation.combine = Sum;
  ForEachShape(GetParam(), {1, 2}, [&](Case& c) {
    c.layout = UniformLayout(c.spec, 3);
    const std::vector<Schedule> schedules = BuildAll(c);
    for (int absent = 0; absent < c.spec.size; ++absent) {
      std::vector<Schedule> others = schedules;
      others[At(absent)].lanes.clear();
      ++simulation.seed;
      Data data = MakeInput(c, IntegerValue);
      const std::string found(Simulate(others, c.layout, simulation, &data).message());
      for (int rank = 0; rank < c.spec.size; ++rank) {
        // A broadcast's leaves need the ranks above them only.
        const bool waits = c.spec.kind != CallKind::kBroadcast || rank == c.spec.root;
        if (waits && rank != absent) {
          ASSERT_TRUE(absl::StrContains(found, absl::StrCat("rank ", rank, " lane 0 ")))
              << Describe(c, simulation) << ", without rank " << absent << ": " << found;
        }
      }
    }
  });
}

TEST_P(OrderedAlgorithmTest, CombinesInRankOrder) {
  Simulation simulation;
  simulation.combine = Chain;
  ForEachShape(GetParam(), {1, 2}, [&](Case& c) {
    c.layout = UniformLayout(c.spec, 5);
    ++simulation.seed;
    ASSERT_TRUE(Check(c, BuildAll(c), simulation, MapValue));
  });
}

TEST_P(AllReduceAlgorithmTest, GivesAllRanksTheSameBitsEveryTime) {
  Simulation simulation;
  simulation.combine = SumFloats;
  ForEachShape(GetParam(), {1, 2}, [&](Case& c) {
    const std::vector<Schedule> schedules = BuildAll(c);
    c.layout = UniformLayout(c.spec, 37);
    Data first;
    for (int repeat = 0; repeat < 3; ++repeat) {
      ++simulation.seed;
      simulation.in_place = repeat == 1;
      Data data = MakeInput(c, FloatValue);
      ASSERT_TRUE(Simulate(schedules, c.layout, simulation, &data).ok());
      first = repeat == 0 ? data : first;
      for (size_t e = 0; e < data[0].size(); ++e) {
        for (const std::vector<Cell>& of_rank : data) {
          ASSERT_EQ(of_rank[e].value, first[0][e].value) << Describe(c, simulation);
        }
      }
    }
  });
}

std::string NameOfTest(const ::testing::TestParamInfo<Algorithm>& test) {
  return absl::StrCat(test.param.name, "_", NameOf(test.param.kind));
}

std::vector<Algorithm> Where(bool (*wanted)(const Algorithm&)) {
  std::vector<Algorithm> algorithms;
  std::copy_if(Catalog().begin(), Catalog().end(), std::back_inserter(algorithms), wanted);
  return algorithms;
}

bool Any(const Algorithm&) {
  return true;
}
bool IsAllReduce(const Algorithm& algorithm) {
  return algorithm.kind == CallKind::kAllReduce;
}
bool CombinesInOrder(const Algorithm& algorithm) {
  return algorithm.in_rank_order &&
         (IsAllReduce(algorithm) || algorithm.kind == CallKind::kReduceScatter);
}

INSTANTIATE_TEST_SUITE_P(Catalog, AlgorithmTest, ::testing::ValuesIn(Where(Any)), NameOfTest);
INSTANTIATE_TEST_SUITE_P(Catalog, OrderedAlgorithmTest, ::testing::ValuesIn(Where(CombinesInOrder)),
                         NameOfTest);
INSTANTIATE_TEST_SUITE_P(Catalog, AllReduceAlgorithmTest, ::testing::ValuesIn(Where(IsAllReduce)),
                         NameOfTest);

}  // namespace
}  // namespace entrain
