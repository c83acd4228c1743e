// Runs every algorithm in the simulator: every size from 1 to 64 and some up to 256; several lanes,
// counts and roots; eager and rendezvous; in place and not; in random interleavings. Also runs
// randomly drawn calls.

#include <algorithm>
#include <bit>
#include <cstdlib>
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
  std::vector<RankLayout> layouts;  // by rank
};

Spec SpecOf(const Case& c, int rank) {
  Spec spec = c.spec;
  spec.rank = rank;
  return spec;
}

void UseLayout(Case* c, const Layout& layout) {
  c->layouts.assign(At(c->spec.size), {layout, layout});
}

std::string Describe(const Case& c, const Simulation& simulation) {
  return absl::StrCat(c.algorithm->name, " ", NameOf(c.algorithm->kind), ", ", c.spec.size,
                      " ranks, ", c.spec.lanes, " lanes, ", c.layouts[0].in.first.back(),
                      " elements on rank 0, root ", c.spec.root, ", hosts ",
                      absl::StrJoin(c.hosts, " "), c.spec.uneven ? ", uneven" : "", ", seed ",
                      simulation.seed, simulation.rendezvous ? ", rendezvous" : ", eager",
                      simulation.in_place ? ", in place" : ", out of place");
}

std::vector<Schedule> BuildAll(const Case& c) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < c.spec.size; ++rank) {
    schedules.push_back(c.algorithm->build(SpecOf(c, rank), c.hosts));
    const absl::Status status = Validate(schedules.back());
    EXPECT_TRUE(status.ok()) << status << "\n" << ToString(schedules.back());
  }
  return schedules;
}

int BlockAt(const Layout& layout, int64_t element) {
  const auto above = std::upper_bound(layout.first.begin(), layout.first.end(), element);
  return static_cast<int>(above - layout.first.begin()) - 1;
}

bool HasInput(const Case& c, int rank, int64_t element) {
  return InputWindow(SpecOf(c, rank)).Has(BlockAt(c.layouts[At(rank)].in, element));
}

bool HasOutput(const Case& c, int rank, int64_t element, bool in_place) {
  if (c.spec.kind == CallKind::kBroadcast && rank == c.spec.root) {
    return in_place;
  }
  if (c.spec.kind == CallKind::kExclusiveScan && rank == 0) {
    return false;
  }
  return OutputWindow(SpecOf(c, rank)).Has(BlockAt(c.layouts[At(rank)].out, element));
}

using Value = int64_t (*)(int rank, int64_t element);

int64_t IntegerValue(int rank, int64_t element) {
  return (rank + 1) * 1000003 + element * 7919 + (rank * element) % 101;
}

Data MakeInput(const Case& c, Value value) {
  Data data(At(c.spec.size));
  for (int rank = 0; rank < c.spec.size; ++rank) {
    for (int64_t e = 0; e < c.layouts[At(rank)].in.first.back(); ++e) {
      const bool set = HasInput(c, rank, e);
      data[At(rank)].push_back({set ? value(rank, e) : -1, set});
    }
  }
  return data;
}

// Returns the value of rank `source` that is `offset` elements behind the first element of its
// block.
int64_t ValueIn(const Case& c, Value value, int source, int block, int64_t offset) {
  return value(source, c.layouts[At(source)].in.first[At(block)] + offset);
}

// Returns the expected element of a rank's result if contributions are combined in rank order.
int64_t Expected(const Case& c, const Simulation& simulation, Value value, int rank,
                 int64_t element) {
  const Layout& layout = c.layouts[At(rank)].out;
  const int block = BlockAt(layout, element);
  const int64_t offset = element - layout.first[At(block)];
  const int part = block / c.spec.lanes;  // if HasParts
  switch (c.spec.kind) {
    case CallKind::kBroadcast:
    case CallKind::kScatter:
      return ValueIn(c, value, c.spec.root, block, offset);
    case CallKind::kAllGather:
    case CallKind::kGather:
      return ValueIn(c, value, part, block, offset);
    case CallKind::kAllToAll:
      return ValueIn(c, value, part, rank * c.spec.lanes + block % c.spec.lanes, offset);
    default:
      break;
  }
  const bool exclusive = c.spec.kind == CallKind::kExclusiveScan;
  const bool prefix = exclusive || c.spec.kind == CallKind::kScan;
  std::vector<int64_t> values;
  for (int source = 0; source < (exclusive ? rank : prefix ? rank + 1 : c.spec.size); ++source) {
    values.push_back(value(source, element));
  }
  if (values.size() <= 1) {
    // There is nothing to combine, so nothing to complete.
    return values.empty() ? 0 : values[0];
  }
  const int64_t combined = simulation.combine(values);
  return prefix ? combined : simulation.complete(combined);
}

// Runs the case and compares every element of every rank's memory.
::testing::AssertionResult Check(const Case& c, const std::vector<Schedule>& schedules,
                                 const Simulation& simulation, Value value) {
  const Data input = MakeInput(c, value);
  Data data = input;
  const absl::Status status = Simulate(schedules, c.layouts, simulation, &data);
  if (!status.ok()) {
    return ::testing::AssertionFailure() << Describe(c, simulation) << ": " << status;
  }
  // For these kinds, all ranks that have an element have the same. Other elements are cheap to
  // compute again.
  const bool alike = c.spec.kind == CallKind::kAllReduce || c.spec.kind == CallKind::kReduce ||
                     c.spec.kind == CallKind::kReduceScatter;
  std::vector<Cell> known(alike ? At(c.layouts[0].out.first.back()) : 0);
  for (int rank = 0; rank < c.spec.size; ++rank) {
    for (int64_t e = 0; e < c.layouts[At(rank)].out.first.back(); ++e) {
      const Cell& cell = data[At(rank)][At(e)];
      Cell wanted = simulation.in_place ? input[At(rank)][At(e)] : Cell();
      if (HasOutput(c, rank, e, simulation.in_place)) {
        if (alike && !known[At(e)].set) {
          known[At(e)] = {Expected(c, simulation, value, rank, e), true};
        }
        wanted = alike ? known[At(e)] : Cell{Expected(c, simulation, value, rank, e), true};
      }
      if (cell.set != wanted.set || (cell.set && cell.value != wanted.value)) {
        return ::testing::AssertionFailure()
               << Describe(c, simulation) << ": element " << e << " on rank " << rank << " is "
               << (cell.set ? absl::StrCat(cell.value) : "unset") << " instead of "
               << (wanted.set ? absl::StrCat(wanted.value) : "unset") << "\n"
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

// Composes maps x -> a x + b modulo 2^32, with a in the high half. This is associative, but the
// order matters.
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

// Values of very different sizes, so that another order of summation gives other bits.
int64_t FloatValue(int rank, int64_t element) {
  std::mt19937 random(static_cast<uint32_t>(rank * 100003 + element));
  const auto mantissa = static_cast<float>(random() % 1000003) + 0.37F;
  return std::bit_cast<uint32_t>(mantissa * static_cast<float>(1U << (random() % 20)));
}

// Returns host maps to test with n ranks. Algorithms that ignore hosts get one host.
std::vector<std::vector<int>> HostMaps(const Algorithm& algorithm, int n) {
  if (absl::string_view(algorithm.name) != "composed") {
    return {std::vector<int>(At(n), 0)};
  }
  std::vector<std::vector<int>> maps(6);
  for (int r = 0; r < n; ++r) {
    maps[0].push_back(r < (n + 1) / 2 ? 4 : 2);  // halves; the numbers are arbitrary
    maps[1].push_back(r % 2);                    // alternating
    maps[2].push_back(r == n - 1 ? 1 : 0);       // one rank alone
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
  if (!HasRoot(algorithm.kind)) {
    return {0};
  }
  std::vector<int> roots = {0, n / 2, n - 1};
  roots.erase(std::unique(roots.begin(), roots.end()), roots.end());
  return roots;
}

// Calls `body` with each size, host map, root and number of lanes. The body chooses the layout.
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

// Returns the schedules of the case, in place or not. An all_to_all has different schedules for
// each.
const std::vector<Schedule>& For(const Simulation& simulation,
                                 const std::vector<Schedule> (&schedules)[2]) {
  return schedules[simulation.in_place ? 1 : 0];
}

class AlgorithmTest : public ::testing::TestWithParam<Algorithm> {};
class OrderedAlgorithmTest : public AlgorithmTest {};    // ordered algorithms that combine
class FixedAlgorithmTest : public AlgorithmTest {};      // fixed-order algorithms that combine
class AllReduceAlgorithmTest : public AlgorithmTest {};  // equal elements on all ranks

// Schedules for both cases: in place and not.
struct Built {
  explicit Built(Case c) {
    for (const bool in_place : {false, true}) {
      c.spec.in_place = in_place;
      schedules[in_place ? 1 : 0] = BuildAll(c);
    }
  }
  std::vector<Schedule> schedules[2];
};

TEST_P(AlgorithmTest, GivesEveryRankItsResult) {
  Simulation simulation;
  simulation.combine = Sum;
  simulation.complete = [](int64_t value) { return value * 3 + 1; };  // exactly once
  ForEachShape(GetParam(), {1, 2, 3}, [&](Case& c) {
    const Built built(c);
    for (const int64_t count : {0, 1, 13, 301}) {
      UseLayout(&c, UniformLayout(c.spec, count));
      for (int mode = 0; mode < 4; ++mode) {
        simulation.rendezvous = (mode & 1) != 0;
        simulation.in_place = (mode & 2) != 0;
        ++simulation.seed;
        // Long counts take much time: each is run in one of the four modes, in turn.
        if (count < 300 || mode == (c.spec.size + c.spec.lanes) % 4) {
          ASSERT_TRUE(Check(c, For(simulation, built.schedules), simulation, IntegerValue));
        }
      }
    }
  });
}

// Numbers of ranks like the numbers of cores of a machine, and some numbers of every size up to
// 256.
TEST_P(AlgorithmTest, ServesManyRanks) {
  std::mt19937 random(11);
  Simulation simulation;
  simulation.combine = Sum;
  std::vector<int> sizes;
  for (int n = 18; n <= 64; ++n) {
    sizes.push_back(n);
  }
  sizes.insert(sizes.end(), {127, 128, 129 + static_cast<int>(random() % 126), 256});
  for (const int n : sizes) {
    const std::vector<std::vector<int>> maps = HostMaps(GetParam(), n);
    if (maps.empty()) {
      continue;
    }
    const int root = HasRoot(GetParam().kind) ? static_cast<int>(random()) % n : 0;
    Case c{&GetParam(),
           {GetParam().kind, 0, n, std::abs(root), n <= 32 ? 1 + n % 2 : 1},
           maps[random() % maps.size()],
           {}};
    c.spec.in_place = simulation.in_place = random() % 2 == 0;
    simulation.rendezvous = random() % 2 == 0;
    simulation.seed = random();
    UseLayout(&c, UniformLayout(c.spec, HasParts(c.spec.kind) ? 1 + n % 2 : n + 3));
    ASSERT_TRUE(Check(c, BuildAll(c), simulation, IntegerValue));
  }
}

// Returns random hosts. Their number is random, too.
std::vector<int> RandomHosts(int n, std::mt19937& random) {
  const auto most = static_cast<int>(1 + random() % static_cast<uint32_t>(n));
  std::vector<int> hosts;
  for (int r = 0; r < n; ++r) {
    hosts.push_back(static_cast<int>(random()) % most);
  }
  if (random() % 2 == 0) {
    std::sort(hosts.begin(), hosts.end());
  }
  return hosts;
}

// Any legal call, drawn at random: --gtest_random_seed=N draws other calls.
TEST_P(AlgorithmTest, ServesWhatIsDrawnAtRandom) {
  const auto seed = static_cast<uint32_t>(GTEST_FLAG_GET(random_seed)) + 2026;
  std::mt19937 random(seed);
  Simulation simulation;
  simulation.combine = Sum;
  simulation.complete = [](int64_t value) { return value * 3 + 1; };
  for (int drawn = 0; drawn < 30; ++drawn) {
    const auto n =
        static_cast<int>(1 + random() % (1u << (1 + random() % 8)));  // small numbers more often
    Case c{&GetParam(), {GetParam().kind, 0, n, 0, 1}, RandomHosts(n, random), {}};
    if (!c.algorithm->fits(c.spec, c.hosts)) {
      continue;
    }
    c.spec.root = HasRoot(c.spec.kind) ? static_cast<int>(random() % static_cast<uint32_t>(n)) : 0;
    c.spec.lanes = static_cast<int>(1 + random() % (n <= 32 ? 4 : 1));
    c.spec.in_place = simulation.in_place = random() % 2 == 0;
    simulation.rendezvous = random() % 2 == 0;
    simulation.seed = random();
    Layout layout = UniformLayout(c.spec, random() % (n <= 32 ? 40 : 3));
    if (c.spec.kind != CallKind::kAllToAll && random() % 2 == 0) {
      for (size_t b = 1; b < layout.first.size(); ++b) {
        layout.first[b] = layout.first[b - 1] + static_cast<int64_t>(random() % 4);
      }
    }
    UseLayout(&c, layout);
    ASSERT_TRUE(Check(c, BuildAll(c), simulation, IntegerValue)) << "drawn from seed " << seed;
  }
}

TEST_P(AlgorithmTest, ServesUnevenParts) {
  const bool even_only = !GetParam().fits({GetParam().kind, 0, 2, 0, 1, /*uneven=*/true}, {{0, 1}});
  if (even_only && GetParam().kind == CallKind::kAllToAll) {
    return;  // the catalog says so; the planner obeys
  }
  std::mt19937 random(7);
  Simulation simulation;
  simulation.combine = Sum;
  ForEachShape(GetParam(), {1, 3}, [&](Case& c) {
    const Built built(c);
    for (int repeat = 0; repeat < 4 && c.spec.kind != CallKind::kAllToAll; ++repeat) {
      Layout layout{{0}};
      for (int b = 0; b < BlockCount(c.spec); ++b) {
        layout.first.push_back(layout.first.back() + random() % 4);
      }
      UseLayout(&c, layout);
      simulation.seed = random();
      simulation.rendezvous = (repeat & 1) != 0;
      simulation.in_place = (repeat & 2) != 0;
      ASSERT_TRUE(Check(c, For(simulation, built.schedules), simulation, IntegerValue));
    }
  });
}

// In these v-forms a rank knows only the counts that it sends and receives, so every rank has a
// different layout.
TEST_P(AlgorithmTest, NeedsNoMoreThanTheOwnCounts) {
  const CallKind kind = GetParam().kind;
  if (kind != CallKind::kGather && kind != CallKind::kScatter && kind != CallKind::kAllToAll) {
    return;
  }
  if (!GetParam().fits({kind, 0, 2, 0, 1, /*uneven=*/true}, {{0, 1}})) {
    return;
  }
  std::mt19937 random(5);
  Simulation simulation;
  simulation.combine = Sum;
  ForEachShape(GetParam(), {1, 2}, [&](Case& c) {
    c.spec.uneven = true;
    for (int repeat = 0; repeat < 4; ++repeat) {
      simulation.seed = random();
      simulation.rendezvous = (repeat & 1) != 0;
      simulation.in_place = c.spec.in_place = kind == CallKind::kAllToAll && (repeat & 2) != 0;
      const int n = c.spec.size;
      // counts[a][b]: from a to b. In place, both directions are equal.
      std::vector<std::vector<int64_t>> counts(At(n), std::vector<int64_t>(At(n)));
      for (int a = 0; a < n; ++a) {
        for (int b = 0; b < n; ++b) {
          const bool mirrored = c.spec.in_place && b < a;
          counts[At(a)][At(b)] = mirrored ? counts[At(b)][At(a)] : random() % 5;
        }
      }
      c.layouts.clear();
      for (int rank = 0; rank < n; ++rank) {
        std::vector<int64_t> in(At(n)), out(At(n));
        for (int other = 0; other < n; ++other) {
          const bool whole = rank == c.spec.root || other == rank;
          const int64_t part = counts[0][At(other)];  // gather, scatter: one part per rank
          in[At(other)] = kind == CallKind::kAllToAll ? counts[At(rank)][At(other)]
                          : whole                     ? part
                                                      : 0;
          out[At(other)] = kind == CallKind::kAllToAll ? counts[At(other)][At(rank)]
                           : whole                     ? part
                                                       : 0;
        }
        c.layouts.push_back({UnevenLayout(c.spec, in), UnevenLayout(c.spec, out)});
      }
      ASSERT_TRUE(Check(c, BuildAll(c), simulation, IntegerValue));
    }
  });
}

// Returns whether a rank can finish only after `other` has come, because it needs the data of that
// rank.
bool Needs(const Spec& spec, int rank, int other) {
  switch (spec.kind) {
    case CallKind::kReduce:
    case CallKind::kGather:
      return rank == spec.root;
    case CallKind::kBroadcast:
    case CallKind::kScatter:
      return other == spec.root;
    case CallKind::kScan:
    case CallKind::kExclusiveScan:
      return other < rank;
    default:
      return true;
  }
}

// This property guarantees that a rank that made a different call is always found.
TEST_P(AlgorithmTest, WaitsForWhoeverItNeeds) {
  Simulation simulation;
  simulation.combine = Sum;
  ForEachShape(GetParam(), {1, 2}, [&](Case& c) {
    UseLayout(&c, UniformLayout(c.spec, 3));
    const std::vector<Schedule> schedules = BuildAll(c);
    for (int absent = 0; absent < c.spec.size; ++absent) {
      std::vector<Schedule> others = schedules;
      others[At(absent)].lanes.clear();
      ++simulation.seed;
      Data data = MakeInput(c, IntegerValue);
      const std::string found(Simulate(others, c.layouts, simulation, &data).message());
      for (int rank = 0; rank < c.spec.size; ++rank) {
        if (rank != absent && Needs(c.spec, rank, absent)) {
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
    UseLayout(&c, UniformLayout(c.spec, 5));
    ++simulation.seed;
    ASSERT_TRUE(Check(c, BuildAll(c), simulation, MapValue));
  });
}

// This property guarantees that all algorithms that have it agree, bit for bit.
TEST_P(FixedAlgorithmTest, GivesTheBitsOfAFoldInRankOrder) {
  Simulation simulation;
  simulation.combine = SumFloats;
  ForEachShape(GetParam(), {1, 2}, [&](Case& c) {
    UseLayout(&c, UniformLayout(c.spec, 37));
    ++simulation.seed;
    simulation.in_place = c.spec.size % 2 == 0;
    ASSERT_TRUE(Check(c, BuildAll(c), simulation, FloatValue));
  });
}

// Reductions that treat ranks differently recognise a rank's contribution by its position.
TEST_P(AlgorithmTest, CombinesAllAtOnceWhereItSaysSo) {
  ForEachShape(GetParam(), {1, 2}, [&](Case& c) {
    for (const Schedule& schedule : BuildAll(c)) {
      for (const LocalOp& op : schedule.ops) {
        if (GetParam().order == Order::kAtOnce && op.kind == LocalKind::kCombine) {
          ASSERT_EQ(op.operands, static_cast<uint32_t>(c.spec.size));
          ASSERT_TRUE(op.last);
        }
      }
    }
  });
}

TEST_P(AllReduceAlgorithmTest, GivesAllRanksTheSameBitsEveryTime) {
  Simulation simulation;
  simulation.combine = SumFloats;
  ForEachShape(GetParam(), {1, 2}, [&](Case& c) {
    const std::vector<Schedule> schedules = BuildAll(c);
    UseLayout(&c, UniformLayout(c.spec, 37));
    Data first;
    for (int repeat = 0; repeat < 3; ++repeat) {
      ++simulation.seed;
      simulation.in_place = repeat == 1;
      Data data = MakeInput(c, FloatValue);
      ASSERT_TRUE(Simulate(schedules, c.layouts, simulation, &data).ok());
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
bool CombinesFixedly(const Algorithm& algorithm) {
  return algorithm.order >= Order::kFixed && Reduces(algorithm.kind);
}
bool CombinesInOrder(const Algorithm& algorithm) {
  return algorithm.order >= Order::kByRank && Reduces(algorithm.kind);
}

INSTANTIATE_TEST_SUITE_P(Catalog, AlgorithmTest, ::testing::ValuesIn(Where(Any)), NameOfTest);
INSTANTIATE_TEST_SUITE_P(Catalog, OrderedAlgorithmTest, ::testing::ValuesIn(Where(CombinesInOrder)),
                         NameOfTest);
INSTANTIATE_TEST_SUITE_P(Catalog, FixedAlgorithmTest, ::testing::ValuesIn(Where(CombinesFixedly)),
                         NameOfTest);
INSTANTIATE_TEST_SUITE_P(Catalog, AllReduceAlgorithmTest, ::testing::ValuesIn(Where(IsAllReduce)),
                         NameOfTest);

}  // namespace
}  // namespace entrain
