// The values from which ranks choose algorithms. Ranks use only values on which they have agreed at
// their meeting (paths, probed links), and no value that differs between ranks.
#include <algorithm>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/cpu_set.h"
#include "lib/comm/plan/planner.h"
#include "lib/comm/plan/tuning.h"
#include "tests/support/ranks.h"

namespace entrain {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

// Collects the second lines of all ranks' explanations, without duplicates.
class Models {
 public:
  void Add(const Communicator& comm) {
    const auto text = comm.Explain(CallKind::kAllReduce, 1000, DType::kF32);
    ASSERT_TRUE(text.ok()) << text.status();
    const std::vector<std::string> lines = absl::StrSplit(*text, '\n');
    ASSERT_GE(lines.size(), 2u);
    const std::lock_guard<std::mutex> lock(mutex_);
    seen_.insert(lines[1]);
  }
  // Returns the line if it is equal on all ranks.
  std::string Only() const { return seen_.size() == 1 ? *seen_.begin() : "ranks disagree"; }

 private:
  std::mutex mutex_;
  std::set<std::string> seen_;
};

std::string HostOf(int rank) {
  return absl::StrCat("host", rank / 2);
}

TEST(Paths, OneLineForEachKindSaysWhichWaysMessagesTake) {
  const auto lines = [](const char* transports) {
    std::vector<std::string> of_rank_0;
    RunRanks(3, {.transports = transports}, [&](const auto& comm) {
      const auto text = comm->Explain(CallKind::kAllReduce, 1000, DType::kF32);
      ASSERT_TRUE(text.ok()) << text.status();
      if (comm->rank() == 0) {
        of_rank_0 = absl::StrSplit(*text, '\n');
      }
      EXPECT_EQ(comm->Barrier(), absl::OkStatus());  // a rank that leaves takes its paths along
    });
    return of_rank_0;
  };
  EXPECT_THAT(lines("tcp"), SizeIs(2));
  const std::vector<std::string> shm = lines("shm");
  ASSERT_THAT(shm, SizeIs(3)) << "two peers, one kind of path";
  EXPECT_THAT(shm[2], AllOf(HasSubstr("shm, "), HasSubstr(": eager to ")));
}

TEST(Paths, AreTheSlowestOfAllRanks) {
  const auto model = [](int size, const RanksOptions& options) {
    Models models;
    RunRanks(size, options, [&](const auto& comm) { models.Add(*comm); });
    return models.Only();
  };
  EXPECT_THAT(model(2, {.transports = "inproc"}), HasSubstr("for inproc ranks 2 "));
  EXPECT_THAT(model(2, {.transports = "shm"}), HasSubstr("for shm ranks 2 "));
  EXPECT_THAT(model(2, {.transports = "tcp"}), HasSubstr("for tcp_inside ranks 2 "));
  EXPECT_THAT(model(3, {.transports = "tcp", .host_id = HostOf}),
              HasSubstr("for 3 ranks on 2 hosts on "));
  EXPECT_THAT(model(2, {.transports = "tcp",
                        .host_id = [](int rank) { return absl::StrCat("host", rank); }}),
              HasSubstr("for tcp_across ranks 2 "));
}

TEST(Paths, CountTheCoresThatTheRanksOfAHostMayUse) {
  if (CpuSet::OfThisThread().Count() < 2) {
    GTEST_SKIP() << "needs two cores";
  }
  const auto model = [](int cores, const RanksOptions& like) {
    RanksOptions options = like;
    options.core = [cores](int rank) { return rank % cores; };
    Models models;
    RunRanks(4, options, [&](const auto& comm) { models.Add(*comm); });
    return models.Only();
  };
  EXPECT_THAT(model(1, {.transports = "shm"}), HasSubstr(" crowded on 1 cores"));
  EXPECT_THAT(model(2, {.transports = "shm"}), HasSubstr(" crowded on 2 cores"));
  // Ranks 0 and 2 are on host0, on one core.
  const auto host = [](int rank) { return absl::StrCat("host", rank % 2); };
  EXPECT_THAT(model(2, {.transports = "tcp", .host_id = host}),
              HasSubstr(" on 2 hosts on 1 cores"));
}

// One host has two ranks on two cores, and the other host has one rank on one core. No ranks share
// a core.
TEST(Paths, CompareAHostsRanksWithItsOwnCores) {
  if (CpuSet::OfThisThread().Count() < 2) {
    GTEST_SKIP() << "needs two cores";
  }
  for (const bool shared : {false, true}) {
    RanksOptions options{.transports = "tcp",
                         .host_id = [](int rank) { return absl::StrCat("host", rank / 2); }};
    options.core = [shared](int rank) { return shared ? 0 : rank % 2; };
    Models models;
    RunRanks(3, options, [&](const auto& comm) { models.Add(*comm); });
    EXPECT_THAT(models.Only(),
                HasSubstr(shared ? " on 2 hosts on 1 cores" : " on 2 hosts on 2 cores"));
  }
}

TEST(Paths, CountNoMoreCoresThanTheRanksOfAHostHaveTimeFor) {
  if (CpuSet::OfThisThread().Count() < 2) {
    GTEST_SKIP() << "needs two cores";
  }
  // Each rank has a core. Either both are in one cgroup with the time of one core, or each is in
  // such a cgroup.
  for (const bool together : {true, false}) {
    RanksOptions options{.core = [](int rank) { return rank; }};
    options.quota = [together](int rank) {
      return CpuQuota{1, together ? 1 : static_cast<uint64_t>(rank), 1000};
    };
    Models models;
    RunRanks(2, options, [&](const auto& comm) { models.Add(*comm); });
    EXPECT_THAT(models.Only(), HasSubstr(together ? " crowded on 1 cores" : " free on 2 cores"));
  }
}

// Of three ranks with the time of four cores, none may keep two cores busy. A rank alone may use
// what its affinity and its quota allow.
TEST(Communicator, CoresAreTheShareOfARank) {
  for (const int ranks : {1, 3}) {
    RanksOptions options;
    options.quota = [](int) { return CpuQuota{1, 1, 4000}; };
    RunRanks(ranks, options, [&](const auto& comm) {
      const int all = std::min(4, CpuSet::OfThisThread().Count());
      EXPECT_EQ(comm->cores(), std::max(1, all / ranks));
    });
  }
}

TEST(Paths, OfAPartCountTheCoresOfItsRanks) {
  if (CpuSet::OfThisThread().Count() < 2) {
    GTEST_SKIP() << "needs two cores";
  }
  for (const bool together : {false, true}) {
    Models models;
    RunRanks(4, {.core = [](int rank) { return rank % 2; }}, [&](const auto& comm) {
      const auto part = comm->Split(together ? comm->rank() % 2 : comm->rank() / 2, 0);
      ASSERT_TRUE(part.ok()) << part.status();
      models.Add(**part);
    });
    EXPECT_THAT(models.Only(), HasSubstr(together ? " crowded on 1 cores" : " free on 2 cores"));
  }
}

TEST(Paths, PartsChooseByTheirOwnShape) {
  Models models;
  RunRanks(4, {.transports = "tcp", .host_id = HostOf}, [&](const auto& comm) {
    const auto part = comm->Split(comm->rank() / 2, 0);
    ASSERT_TRUE(part.ok()) << part.status();
    models.Add(**part);
  });
  EXPECT_THAT(models.Only(), HasSubstr("for tcp_inside ranks 2 "));
}

TEST(Probe, AllRanksChooseByTheSameFigures) {
  Models models;
  RunRanks(3, {.transports = "inproc", .tuning = "probe"}, [&](const auto& comm) {
    models.Add(*comm);
    double sum = comm->rank();
    EXPECT_TRUE(comm->AllReduce(&sum, &sum, 1, DType::kF64, ReduceOp::kSum).ok());
    EXPECT_EQ(sum, 3);
  });
  EXPECT_THAT(models.Only(), HasSubstr("from probing, the rest from the library's own values: "));
  const TunedFor where{Link::kInproc, 3, false};
  EXPECT_THAT(models.Only(), Not(HasSubstr(ToText(BuiltinTuning()->FiguresFor(where)))));
}

TEST(Probe, MeasuresLinksInsideAndBetweenHosts) {
  Models models;
  RunRanks(4, {.transports = "tcp", .tuning = "probe", .host_id = HostOf},
           [&](const auto& comm) { models.Add(*comm); });
  for (const Link link : {Link::kTcpInside, Link::kTcpAcross}) {
    EXPECT_THAT(models.Only(), HasSubstr(absl::StrCat(NameOf(link), " ranks ")));
    for (const bool crowded : {false, true}) {
      const std::string own = ToText(BuiltinTuning()->FiguresFor({link, 2, crowded}));
      EXPECT_THAT(models.Only(), Not(HasSubstr(own)));
    }
  }
}

TEST(Probe, IsNothingToARankThatIsAlone) {
  RunRanks(1, {.tuning = "probe"}, [](const auto& comm) {
    EXPECT_TRUE(comm->Barrier().ok());
    EXPECT_TRUE(comm->Explain(CallKind::kAllReduce, 1, DType::kF32).ok());
  });
}

// Estimates are kept, and ranks may make their calls in different orders.
TEST(Choice, IsTheSameInWhateverOrderRanksCome) {
  RunRanks(4, [](const auto& comm) {
    const int n = comm->size();
    for (const CallKind kind :
         {CallKind::kScatter, CallKind::kGather, CallKind::kReduce, CallKind::kBroadcast}) {
      for (int64_t count = 1; count < 5000; count *= 2) {
        const int64_t most = count * n;
        std::vector<std::vector<int64_t>> buffers(2 * static_cast<size_t>(n));
        std::vector<Call> calls;
        for (int i = 0; i < n; ++i) {
          Call call;
          call.kind = kind;
          call.dtype = DType::kI64;
          call.count = count;
          call.root = (comm->rank() + i) % n;
          call.options.user_tag = call.root;
          for (BufferView* view : {&call.in, &call.out}) {
            auto& buffer = buffers[calls.size() * 2 + (view == &call.out ? 1 : 0)];
            buffer.resize(static_cast<size_t>(most));
            *view = {buffer.data(), most * static_cast<int64_t>(sizeof(int64_t)),
                     MemoryKind::kHost};
          }
          calls.push_back(call);
        }
        const RefPtr<Work> work = comm->StartAll(calls);
        ASSERT_TRUE(work->Wait(Deadline::After(20 * kSecond)));
        ASSERT_EQ(work->status(), absl::OkStatus()) << NameOf(kind) << " of " << count;
      }
    }
  });
}

// Returns rank 0's plan of a call of f32. `overrides`: the overrides of algorithms.
std::shared_ptr<const Plan> PlanOf(CallKind kind, const std::vector<std::string>& hosts,
                                   int64_t bytes, Link link = Link::kShm,
                                   const char* overrides = "") {
  Planner planner(0, Topology::FromHostIds(hosts), *ParseOverrides(overrides), BuiltinTuning(),
                  {link, 2});
  Call call;
  call.kind = kind;
  call.dtype = DType::kF32;
  call.count = bytes / 4;
  auto plan = planner.PlanFor(call);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

// The call has only one lane, but the transport takes a long message in pieces.
TEST(Choice, ALongGatherGoesDirectWithItsMessagesWhole) {
  for (const size_t ranks : {2, 3, 4, 8}) {
    const auto plan = PlanOf(CallKind::kGather, std::vector<std::string>(ranks, "a"),
                             (int64_t{64} << 20) / static_cast<int64_t>(ranks));
    EXPECT_EQ(std::string(plan->algorithm), "direct") << ranks << " ranks";
    EXPECT_THAT(plan->schedule->lanes, SizeIs(1)) << ranks << " ranks";
  }
}

// A call without scratch has 16 lanes at a time.
TEST(Choice, LanesWithoutScratchAreMany) {
  constexpr int64_t kMiB = 1 << 20;
  const std::vector<std::string> one = {"a", "a", "a", "a"};
  EXPECT_EQ(PlanOf(CallKind::kAllGather, one, 64 * kMiB)->window, 16);
  EXPECT_EQ(PlanOf(CallKind::kAllReduce, one, 64 * kMiB)->window, 4);
}

// The algorithm sends whole lanes, but the lanes are cut as if it sent parts.
TEST(Choice, AnAllReduceIsCutByItsParts) {
  const std::vector<std::string> hosts(2, "a");
  constexpr int64_t kMiB = 1 << 20;
  const auto direct = PlanOf(CallKind::kAllReduce, hosts, kMiB * 3 / 4 - 4, Link::kShm);
  EXPECT_STREQ(direct->algorithm, "direct");
  EXPECT_EQ(direct->schedule->lanes.size(), 1u);
  EXPECT_EQ(PlanOf(CallKind::kAllReduce, hosts, 4 * kMiB, Link::kShm)->schedule->lanes.size(), 8u);
}

// Messages that are read at once are not cut: up to 1 MiB in a scatter, up to 512 KiB between two
// ranks. A rank moves messages up to 2 MiB itself, but not several of 1 MiB.
TEST(Choice, MessagesThatAreReadAtOnceAreLeftWhole) {
  const auto plan = [](CallKind kind, size_t ranks, Link link, int64_t bytes) {
    return PlanOf(kind, std::vector<std::string>(ranks, "a"), bytes, link);
  };
  const auto lanes = [&](CallKind kind, size_t ranks, Link link, int64_t bytes) {
    return plan(kind, ranks, link, bytes)->schedule->lanes.size();
  };
  constexpr int64_t kKiB = 1 << 10, kMiB = 1 << 20;
  EXPECT_EQ(lanes(CallKind::kScatter, 4, Link::kShm, kMiB), 1u);
  EXPECT_GT(lanes(CallKind::kScatter, 4, Link::kShm, kMiB + 4), 1u);
  EXPECT_GT(lanes(CallKind::kScatter, 4, Link::kTcpInside, kMiB), 1u);
  EXPECT_EQ(lanes(CallKind::kReduceScatter, 2, Link::kShm, 512 * kKiB), 1u);
  EXPECT_GT(lanes(CallKind::kReduceScatter, 2, Link::kShm, 512 * kKiB + 4), 1u);
  EXPECT_GT(lanes(CallKind::kReduceScatter, 2, Link::kTcpInside, 512 * kKiB), 1u);
  EXPECT_GT(lanes(CallKind::kReduceScatter, 4, Link::kShm, 512 * kKiB), 1u);
  EXPECT_TRUE(plan(CallKind::kGather, 2, Link::kShm, 2 * kMiB)->fits_inline);
  EXPECT_TRUE(plan(CallKind::kGather, 2, Link::kTcpInside, 32 << 10)->fits_inline);
  EXPECT_FALSE(plan(CallKind::kGather, 2, Link::kTcpInside, (32 << 10) + 4)->fits_inline);
  EXPECT_FALSE(plan(CallKind::kGather, 2, Link::kFabricInside, 8)->fits_inline);
  EXPECT_FALSE(plan(CallKind::kGather, 2, Link::kShm, 2 * kMiB + 4)->fits_inline);
  const auto to_all = [](int64_t bytes) {
    return PlanOf(CallKind::kAllToAll, std::vector<std::string>(4, "a"), bytes, Link::kShm,
                  "all_to_all:direct");
  };
  EXPECT_TRUE(to_all(kMiB - 4)->fits_inline);
  EXPECT_FALSE(to_all(kMiB)->fits_inline);
}

TEST(Choice, PlansMadeBeforeRanksAgreedAreForgotten) {
  const Topology topology = Topology::FromHostIds({"a", "a", "a", "a"});
  Planner planner(0, topology, {}, BuiltinTuning(), {Link::kShm, 2});
  Call call;
  call.kind = CallKind::kAllReduce;
  call.dtype = DType::kF32;
  call.count = 1000;
  const auto before = planner.PlanFor(call);
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_EQ(*planner.PlanFor(call), *before);
  planner.SetPaths({Link::kTcpInside, 2});
  const auto agreed = planner.PlanFor(call);
  EXPECT_NE(*agreed, *before);
  planner.SetProbed(planner.model());
  EXPECT_NE(*planner.PlanFor(call), *agreed);
}

}  // namespace
}  // namespace entrain
