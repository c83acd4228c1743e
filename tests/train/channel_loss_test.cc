// Ranks of a gradient channel are killed, and the others go on (on_loss). Ranks are processes. Their
// results lie in memory that they share with the test. Their parameters are compared, bit for bit,
// with a reference. The reference steps all parameters at once, with the micro-batches of the ranks
// that each round has counted.

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/crc32c.h"
#include "lib/kernels/kernels.h"
#include "lib/train/acco/gradient_channel.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"
#include "tests/train/channel_reference.h"
#include "tests/train/trainee.h"

namespace entrain {
namespace {

using testing::HasSubstr;

constexpr int kMostRanks = 6;
constexpr int kMostRounds = 40;
constexpr int64_t kCount = 30'011;  // no multiple of the ranks
constexpr int64_t kPiece = 4096;    // of a step

// The state of a rank after an install.
struct Landed {
  int64_t ranks, microbatches, losses;
  uint32_t params;  // checksum
};
// The results of a rank that has ended.
struct Shown {
  std::array<Landed, kMostRounds> landed;  // by round, counted from 1
  int64_t rounds, commits, gradients;
  int64_t longest_ns;  // longest install
  int losses, lost[kMostRanks];
  char error[512];
  float params[kCount];
};
struct Shared {
  std::array<Shown, kMostRanks> ranks;
  std::atomic<int> ended;
};

// Memory that forked processes share.
class SharedMemory : public SharedWithChildren<Shared> {
 public:
  Shown& operator[](int rank) const { return (*this)->ranks[static_cast<size_t>(rank)]; }
};

// The points of a round at which a test can kill a rank.
enum class Point {
  kCaller,     // before install, while the round before may be under way
  kSchedule,   // the sums are there, and this rank has not voted
  kStep,       // an estimate, or the first piece of a commit: all have voted
  kLastPiece,  // of this rank's own shard
  kCopy,       // the first piece of the copy, while parameters are gathered
  kEndOfCopy,  // its last piece
  kSave,       // before a save
};

struct Job {
  int ranks = 4;
  const char* transports = "shm";
  DelayMethod method = DelayMethod::kAcco;
  OptimizerKind kind = OptimizerKind::kAdamw;
  int64_t commits = 5;
  double clip_norm = 0;
  bool bf16 = false;  // parameters
  DType wire = DType::kF32;
  int64_t warmup_rounds = 0;
  bool groups = false;
  const Directory* saves = nullptr;  // after each install
  int64_t timeout_ns = 20 * kSecond;
  // Called at a point of round `round`, counted from 0.
  std::function<void(int rank, int64_t round, Point point)> at = {};
};

void Die() {
  raise(SIGKILL);
}

std::function<void(int, int64_t, Point)> DiesAt(int victim, int64_t round, Point point) {
  return [=](int rank, int64_t now, Point here) {
    if (rank == victim && now == round && here == point) {
      Die();
    }
  };
}

// An optimizer that tells the job the point at which a step is.
class ToldOptimizer final : public Optimizer {
 public:
  ToldOptimizer(std::shared_ptr<const Optimizer> rule, std::function<void(Apply, int64_t)> tell)
      : rule_(std::move(rule)), tell_(std::move(tell)) {}
  int state_arrays() const override { return rule_->state_arrays(); }
  void Step(const StepArgs& args, Apply apply) const override {
    tell_(apply, args.step);
    rule_->Step(args, apply);
  }

 private:
  const std::shared_ptr<const Optimizer> rule_;
  const std::function<void(Apply, int64_t)> tell_;
};

// A rank: its parameters, its channel, and the points that it has passed.
class Runner {
 public:
  Runner(const Job& job, const std::shared_ptr<Communicator>& comm)
      : job_(job), rank_(comm->rank()), initial_(kCount), bf16_(job.bf16 ? kCount : 0) {
    for (int64_t i = 0; i < kCount; ++i) {
      initial_[static_cast<size_t>(i)] = InitialOf(i);
    }
    BestKernels().cast(bf16_.data(), DType::kBF16, initial_.data(), DType::kF32,
                       job.bf16 ? kCount : 0);
    options_.method = job.method;
    options_.count = kCount;
    options_.params = job.bf16 ? static_cast<void*>(bf16_.data()) : initial_.data();
    options_.params_dtype = job.bf16 ? DType::kBF16 : DType::kF32;
    options_.grads_dtype = DType::kF32;
    options_.wire_dtype = job.wire;
    options_.optimizer = std::make_shared<ToldOptimizer>(
        MakeRule(job.kind, 0.1), [this](Apply apply, int64_t) { Tell(apply); });
    if (job.groups) {
      options_.groups = {{.first = kGroupBegin,
                          .count = kGroupEnd - kGroupBegin,
                          .optimizer = MakeRule(OptimizerKind::kSgd, 0),
                          .lr_scale = 0.5}};
    }
    options_.schedule = [](void* self, int64_t) {
      auto* const runner = static_cast<Runner*>(self);
      runner->steps_ = 0;
      ++runner->made_;
      runner->Pass(runner->made_, Point::kSchedule);
      return kChannelRate;
    };
    options_.schedule_user = this;
    options_.clip_norm = job.clip_norm;
    options_.warmup_rounds = job.warmup_rounds;
    options_.limit = job.commits;
    options_.on_loss = OnLoss::kFinish;
    pieces_ = PiecesOf(rank_);
    copied_pieces_ = PiecesOf((rank_ + job.ranks - 1) % job.ranks);
    auto made = GradientChannel::Create(*comm, options_);
    EXPECT_TRUE(made.ok()) << made.status();
    channel_ = *std::move(made);
  }

  // Makes rounds until the end of the run or the first error.
  absl::Status Run(Shown* shown) {
    absl::Status status;
    for (; status.ok() && !channel_->info().finished; ++installs_) {
      auto* const sums = static_cast<float*>(channel_->gradients());
      for (int64_t i = 0; i < kCount; ++i) {
        sums[i] += GradientOf(rank_, installs_, i);
      }
      status.Update(channel_->Add(1, 2));
      Pass(installs_, Point::kCaller);
      const int64_t begun = Clock::Real().Now();
      status.Update(channel_->Install());
      shown->longest_ns = std::max(shown->longest_ns, Clock::Real().Now() - begun);
      if (status.ok()) {
        Show(shown);
      }
      if (status.ok() && job_.saves) {
        Pass(installs_, Point::kSave);
        status.Update(channel_->state().Save(
            To(*job_.saves, CheckpointKind::kPortable, kOneFile, absl::StrCat(installs_))));
      }
    }
    return status;
  }
  GradientChannel& channel() { return *channel_; }

 private:
  int64_t PiecesOf(int rank) const {
    const int64_t shard = (kCount + job_.ranks - 1) / job_.ranks;
    return (std::min(shard, kCount - shard * rank) + kPiece - 1) / kPiece;
  }
  void Pass(int64_t round, Point point) const {
    if (job_.at) {
      job_.at(rank_, round, point);
    }
  }
  // The pieces of this rank's shard are stepped first, then those of the copy.
  void Tell(Apply apply) {
    if (apply == Apply::kCommit) {
      ++steps_;
    }
    if (steps_ <= 1) {
      Pass(made_, Point::kStep);
    }
    if (steps_ == pieces_) {
      Pass(made_, Point::kLastPiece);
    }
    if (steps_ == pieces_ + 1) {
      Pass(made_, Point::kCopy);
    }
    if (steps_ == pieces_ + copied_pieces_) {
      Pass(made_, Point::kEndOfCopy);
    }
  }
  void Show(Shown* shown) const {
    const ChannelInfo info = channel_->info();
    const std::vector<ChannelLoss> losses = channel_->losses();
    shown->rounds = info.rounds;
    shown->commits = info.commits;
    shown->gradients = info.gradients;
    shown->losses = static_cast<int>(losses.size());
    for (size_t i = 0; i < losses.size(); ++i) {
      shown->lost[i] = losses[i].rank;
    }
    if (info.rounds > 0) {
      shown->landed[static_cast<size_t>(info.rounds)] = {
          info.ranks, info.microbatches, info.losses,
          Crc32c(options_.params, static_cast<size_t>(kCount * SizeOf(options_.params_dtype)))};
    }
    BestKernels().cast(shown->params, DType::kF32, options_.params, options_.params_dtype, kCount);
  }

  const Job& job_;
  const int rank_;
  std::vector<float> initial_;
  std::vector<uint16_t> bf16_;
  ChannelOptions options_;
  int64_t pieces_ = 0, copied_pieces_ = 0;  // at the start
  int64_t installs_ = 0;
  // Of the worker: the round that it makes, counted from 0 and again if a round is repeated; commits'
  // steps in this round.
  int64_t made_ = -1, steps_ = 0;
  std::shared_ptr<GradientChannel> channel_;
};

std::vector<int> RunJob(const Job& job, const SharedMemory& shared) {
  RanksOptions options;
  options.transports = job.transports;
  options.timeout_ns = job.timeout_ns;
  return RunRankProcesses(job.ranks, options, [&](const std::shared_ptr<Communicator>& comm) {
    Shown& shown = shared[comm->rank()];
    Runner runner(job, comm);
    const absl::Status status = runner.Run(&shown);
    absl::SNPrintF(shown.error, sizeof(shown.error), "%s", status.ToString());
    ++shared->ended;
  });
}

// ---- The reference -------------------------------------------------------------------------------

std::vector<int> Without(int ranks, const std::vector<int>& victims, size_t lost) {
  std::vector<int> left;
  for (int rank = 0; rank < ranks; ++rank) {
    if (std::find(victims.begin(), victims.begin() + static_cast<std::ptrdiff_t>(lost), rank) ==
        victims.begin() + static_cast<std::ptrdiff_t>(lost)) {
      left.push_back(rank);
    }
  }
  return left;
}

// Expects that all ranks except the victims, which are lost in this order, came to the end of the
// run with the same bits after each round, and that these bits equal those of the reference.
void ExpectFinished(const Job& job, const SharedMemory& shared, const std::vector<int>& victims) {
  const std::vector<int> left = Without(job.ranks, victims, victims.size());
  const Shown& first = shared[left[0]];
  for (const int rank : left) {
    const Shown& shown = shared[rank];
    EXPECT_STREQ(shown.error, "OK") << "rank " << rank;
    EXPECT_EQ(shown.commits, job.commits);
    EXPECT_EQ(shown.rounds, first.rounds);
    EXPECT_EQ(std::memcmp(&shown.landed, &first.landed, sizeof(first.landed)), 0) << rank;
    EXPECT_EQ(std::memcmp(shown.params, first.params, sizeof(first.params)), 0) << rank;
  }
  ChannelReference want({.count = kCount,
                         .kind = job.kind,
                         .clip_norm = job.clip_norm,
                         .bf16 = job.bf16,
                         .groups = job.groups});
  int64_t begun = 0, gradients = 0;  // the first round of the batch
  for (int64_t round = 0; round < first.rounds; ++round) {
    const Landed& landed = first.landed[static_cast<size_t>(round + 1)];
    const bool estimate = job.method == DelayMethod::kAcco && round >= job.warmup_rounds &&
                          (round - job.warmup_rounds) % 2 == 0;
    EXPECT_EQ(landed.losses, job.ranks - landed.ranks);
    EXPECT_EQ(landed.microbatches, landed.ranks * (round - begun + 1));
    ASSERT_GE(landed.ranks, static_cast<int64_t>(left.size()));
    if (estimate) {
      continue;
    }
    for (int64_t part = begun; part <= round; ++part) {
      want.Add(Without(job.ranks, victims, static_cast<size_t>(job.ranks - landed.ranks)), part);
    }
    want.Commit();
    gradients += landed.microbatches;
    begun = round + 1;
  }
  EXPECT_EQ(first.gradients, gradients);
  const std::vector<float> params = want.params();
  EXPECT_EQ(std::memcmp(first.params, params.data(), sizeof(first.params)), 0);
}

// Returns the ranks that round `round`, counted from 0, has counted.
int64_t CountedIn(const SharedMemory& shared, int rank, int64_t round) {
  return shared[rank].landed[static_cast<size_t>(round + 1)].ranks;
}

// ---- Tests -----------------------------------------------------------------------------------------

struct At {
  const char* name;
  int64_t round;
  Point point;
  bool counted;  // the victim's micro-batches of this round
};
constexpr At kDeaths[] = {
    {"between rounds", 4, Point::kCaller, false},
    {"before a commit", 5, Point::kCaller, false},
    {"in an estimate, behind its sums", 4, Point::kSchedule, false},
    {"in the step of an estimate", 4, Point::kStep, false},
    {"in a commit, before the votes", 5, Point::kSchedule, false},
    {"in the step of a commit", 5, Point::kStep, true},
    {"at the end of its step", 5, Point::kLastPiece, true},
    {"while parameters are gathered", 5, Point::kCopy, true},
    {"at the end of this", 5, Point::kEndOfCopy, true},
};

TEST(ChannelLoss, WithoutALossTheReferenceIsRight) {
  SharedMemory shared;
  const Job job;
  RunJob(job, shared);
  ExpectFinished(job, shared, {});
  EXPECT_EQ(shared[0].losses, 0);
}

TEST(ChannelLoss, WhereverARankDiesTheOthersFinishTheRound) {
  for (const char* transports : {"shm", "tcp"}) {
    for (const At& death : kDeaths) {
      for (const int victim : {0, 2, 3}) {
        SCOPED_TRACE(absl::StrCat(transports, ", rank ", victim, " dies ", death.name));
        SharedMemory shared;
        Job job;
        job.transports = transports;
        job.at = DiesAt(victim, death.round, death.point);
        const std::vector<int> ends = RunJob(job, shared);
        EXPECT_TRUE(WIFSIGNALED(ends[static_cast<size_t>(victim)]));
        ExpectFinished(job, shared, {victim});
        const int other = victim == 0 ? 1 : 0;
        EXPECT_EQ(CountedIn(shared, other, death.round), death.counted ? 4 : 3);
        if (death.point != Point::kCaller) {
          EXPECT_EQ(CountedIn(shared, other, death.round - 1), 4);
        }
        EXPECT_EQ(CountedIn(shared, other, death.round + 1), 3);
        EXPECT_EQ(shared[other].losses, 1);
        EXPECT_EQ(shared[other].lost[0], victim);
        ASSERT_FALSE(HasFailure());
      }
    }
  }
}

struct Variant {
  const char* name;
  std::function<void(Job&)> change;
};
const Variant kVariants[] = {
    {"dpu", [](Job& job) { job.method = DelayMethod::kDpu; }},
    {"wp", [](Job& job) { job.method = DelayMethod::kWp; }},
    {"zero1", [](Job& job) { job.method = DelayMethod::kZero1; }},
    {"clipping", [](Job& job) { job.clip_norm = 0.5; }},
    {"bf16",
     [](Job& job) {
       job.bf16 = true;
       job.wire = DType::kBF16;
     }},
    {"bf16, f32 on the wire", [](Job& job) { job.bf16 = true; }},
    {"f32, bf16 on the wire", [](Job& job) { job.wire = DType::kBF16; }},
    {"warm-up", [](Job& job) { job.warmup_rounds = 3; }},
    {"groups", [](Job& job) { job.groups = true; }},
    {"sgd", [](Job& job) { job.kind = OptimizerKind::kSgd; }},
    {"lion", [](Job& job) { job.kind = OptimizerKind::kLion; }},
    {"agd", [](Job& job) { job.kind = OptimizerKind::kAgd; }},
    {"wp with clipping and warm-up",
     [](Job& job) {
       job.method = DelayMethod::kWp;
       job.clip_norm = 0.5;
       job.warmup_rounds = 1;
     }},
};

TEST(ChannelLoss, OfAllMethodsAndTypes) {
  for (const Variant& variant : kVariants) {
    for (const Point point : {Point::kCaller, Point::kSchedule, Point::kStep, Point::kCopy}) {
      SCOPED_TRACE(absl::StrCat(variant.name, ", point ", static_cast<int>(point)));
      SharedMemory shared;
      Job job;
      job.commits = 7;
      variant.change(job);
      // With groups pieces have several steps, so the last two points come earlier.
      job.at = DiesAt(1, 5, point);
      const std::vector<int> ends = RunJob(job, shared);
      // Estimates have no copies to step.
      const bool dies = point != Point::kCopy || shared[1].rounds < 6;
      EXPECT_EQ(WIFSIGNALED(ends[1]), dies);
      ExpectFinished(job, shared, dies ? std::vector<int>{1} : std::vector<int>{});
      ASSERT_FALSE(HasFailure());
    }
  }
}

// Returns a number in [0, 1) that depends only on the seed.
double Part(int seed) {
  return static_cast<double>(static_cast<uint64_t>(seed + 1) * 0x9E3779B97F4A7C15u >> 11) * 0x1p-53;
}

// Kills this process after a random time.
void DieWithin(int64_t most_us, int seed) {
  const auto us = static_cast<int64_t>(Part(seed) * static_cast<double>(most_us));
  After(us, Die);
}

TEST(ChannelLoss, AtRandomTimes) {
  constexpr int kKills = 32;
  int counted = 0, dropped = 0;
  for (int seed = 0; seed < kKills; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    SharedMemory shared;
    Job job;
    job.transports = seed % 3 == 2 ? "tcp" : "shm";
    job.commits = 6;
    if (seed % 4 != 0) {
      kVariants[static_cast<size_t>(seed) % std::size(kVariants)].change(job);
    }
    const int victim = seed % job.ranks;
    job.at = [&](int rank, int64_t round, Point point) {
      if (rank == victim && round == 2 && point == Point::kCaller) {
        DieWithin(3000, seed);
      }
    };
    RunJob(job, shared);
    ExpectFinished(job, shared, {victim});
    const int other = victim == 0 ? 1 : 0;
    const int64_t last = shared[victim].rounds;  // that it has installed
    (CountedIn(shared, other, last) == job.ranks ? counted : dropped) += 1;
    if (HasFailure()) {
      break;
    }
  }
  absl::PrintF("%d of %d rounds counted the victim\n", counted, counted + dropped);
  EXPECT_GT(dropped, 0);
}

// ---- Several losses --------------------------------------------------------------------------------

TEST(ChannelLoss, OfTwoRanksThatAreNoNeighbours) {
  for (const Point point : {Point::kCaller, Point::kSchedule, Point::kCopy}) {
    SharedMemory shared;
    Job job;
    job.ranks = 5;
    job.at = [point](int rank, int64_t round, Point here) {
      if ((rank == 1 || rank == 4) && round == 5 && here == point) {
        Die();
      }
    };
    RunJob(job, shared);
    // Rank 1 may be lost first, or both at once.
    ExpectFinished(job, shared, {1, 4});
    EXPECT_EQ(shared[0].losses, 2);
    ASSERT_FALSE(HasFailure());
  }
}

TEST(ChannelLoss, OfNeighboursTogetherEndsTheRunAndNamesThem) {
  SharedMemory shared;
  Job job;
  job.at = [](int rank, int64_t round, Point point) {
    if ((rank == 1 || rank == 2) && round == 5 && point == Point::kSchedule) {
      usleep(rank == 1 ? 0 : 20'000);  // the shrink that rank 1 makes necessary cannot have rank 2
      Die();
    }
  };
  RunJob(job, shared);
  for (const int rank : {0, 3}) {
    EXPECT_THAT(shared[rank].error,
                HasSubstr("rank 1 was lost together with rank 2, which had the copy of its shard; "
                          "start the ranks again from the last checkpoint"));
    EXPECT_THAT(shared[rank].error, HasSubstr("acco: round 6"));
  }
}

// Ranks are lost one after the other, until one is left. The last rank needs no copy.
TEST(ChannelLoss, OfAllOthersOneByOne) {
  SharedMemory shared;
  Job job;
  job.commits = 9;
  const std::vector<int> victims = {2, 0, 3};
  job.at = [&](int rank, int64_t round, Point point) {
    for (size_t i = 0; i < victims.size(); ++i) {
      if (rank == victims[i] && round == 4 * static_cast<int64_t>(i) + 3 &&
          point == Point::kCaller) {
        Die();
      }
    }
  };
  RunJob(job, shared);
  ExpectFinished(job, shared, victims);
  EXPECT_EQ(CountedIn(shared, 1, 15), 1);
}

// A rank dies at a random time while the others answer the loss of another.
TEST(ChannelLoss, DuringTheAnswerToAnother) {
  constexpr int kSeeds = 20;
  int ended = 0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    SharedMemory shared;
    Job job;
    job.ranks = 6;
    job.transports = seed % 2 == 0 ? "shm" : "tcp";
    const int first = seed % 6, second = (first + 2 + seed % 3) % 6;
    job.at = [&](int rank, int64_t round, Point point) {
      if (round == 5 && point == (seed % 2 == 0 ? Point::kSchedule : Point::kStep)) {
        if (rank == first) {
          Die();
        }
        if (rank == second) {
          DieWithin(seed % 4 < 2 ? 20'000 : 150'000, seed);
        }
      }
    };
    const std::vector<int> ends = RunJob(job, shared);
    const int other = first != 0 && second != 0 ? 0 : first != 1 && second != 1 ? 1 : 2;
    ended += shared[other].losses == 2 ? 0 : 1;  // the run was over before
    // The second may have died behind the last round.
    ExpectFinished(job, shared,
                   WIFSIGNALED(ends[static_cast<size_t>(second)]) ? std::vector<int>{first, second}
                                                                  : std::vector<int>{first});
    if (HasFailure()) {
      break;
    }
  }
  EXPECT_LT(ended, kSeeds / 2);
}

// ---- Saves ---------------------------------------------------------------------------------------

// Loads the checkpoint of the end of the run, in a new process.
void Load(const Job& job, const CheckpointOptions& checkpoint, const SharedMemory& to) {
  RunRankProcesses(1, {}, [&](const std::shared_ptr<Communicator>& comm) {
    ChannelOptions options;
    options.count = kCount;
    options.params = to[0].params;
    options.optimizer = MakeRule(job.kind, 0.1);
    auto channel = GradientChannel::Create(*comm, options);
    ASSERT_TRUE(channel.ok()) << channel.status();
    EXPECT_EQ((*channel)->state().Load(checkpoint), absl::OkStatus());
    EXPECT_EQ((*channel)->info().commits, job.commits);
    EXPECT_EQ((*channel)->info().ranks, 1);
  });
}

TEST(ChannelLoss, BeforeAndDuringSaves) {
  constexpr int kKills = 16;
  int killed = 0;
  for (int seed = 0; seed < kKills; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const Directory directory;
    SharedMemory shared;
    Job job;
    job.saves = &directory;
    job.transports = seed % 2 == 0 ? "shm" : "tcp";
    const int victim = seed % job.ranks;
    job.at = [&](int rank, int64_t round, Point point) {
      if (rank == victim && round == 3 && point == Point::kSave) {
        DieWithin(seed < 4 ? 0 : 8000, seed);
      }
    };
    const std::vector<int> ends = RunJob(job, shared);
    if (ends[static_cast<size_t>(victim)] == 0) {
      continue;  // on a busy machine the run was over before the kill
    }
    ++killed;
    EXPECT_TRUE(WIFSIGNALED(ends[static_cast<size_t>(victim)]));
    ExpectFinished(job, shared, {victim});
    if (HasFailure()) {
      break;
    }
  }
  EXPECT_GE(killed, kKills / 2);
}

TEST(ChannelLoss, ACheckpointOfThoseThatAreLeftIsWhole) {
  const Directory directory;
  SharedMemory shared;
  Job job;
  job.saves = &directory;
  job.at = DiesAt(1, 5, Point::kStep);
  RunJob(job, shared);
  ExpectFinished(job, shared, {1});
  SharedMemory loaded;
  Load(job, To(directory, CheckpointKind::kPortable, kOneFile, "10"), loaded);  // the last install
  EXPECT_EQ(std::memcmp(shared[0].params, loaded[0].params, sizeof(shared[0].params)), 0);
}

// ---- Other ends ------------------------------------------------------------------------------------

// A rank that is lost in the last round: the others end their run together.
TEST(ChannelLoss, InTheLastRound) {
  for (const Point point : {Point::kSchedule, Point::kStep, Point::kEndOfCopy}) {
    SharedMemory shared;
    Job job;
    job.at = DiesAt(3, 9, point);
    RunJob(job, shared);
    ExpectFinished(job, shared, {3});
    EXPECT_EQ(CountedIn(shared, 0, 9), point == Point::kSchedule ? 3 : 4);
  }
}

// A rank that is stopped is left out after the time limit, and learns of this when it continues.
TEST(ChannelLoss, OfAStoppedRank) {
  SharedMemory shared;
  Job job;
  job.timeout_ns = 2 * kSecond;
  std::atomic<int>& ended = shared->ended;
  job.at = [&ended](int rank, int64_t round, Point point) {
    if (rank == 1 && round == 3 && point == Point::kCaller) {
      StopUntil([&ended] { return ended >= 3; });
    }
  };
  RunJob(job, shared);
  ExpectFinished(job, shared, {1});
  EXPECT_STRNE(shared[1].error, "OK");
}

// ---- What it costs: prints the tables of docs/lab/acco.md (--gtest_also_run_disabled_tests) --------

double MedianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

TEST(DISABLED_ChannelLossTimes, FromADeathToTheNextInstall) {
  for (const char* transports : {"shm", "tcp"}) {
    for (const Point point : {Point::kSchedule, Point::kStep}) {
      std::vector<double> ms;
      for (int repetition = 0; repetition < 3; ++repetition) {
        SharedMemory shared;
        Job job;
        job.transports = transports;
        job.at = DiesAt(1, 5, point);
        RunJob(job, shared);
        for (const int rank : {0, 2, 3}) {
          EXPECT_STREQ(shared[rank].error, "OK");
          ms.push_back(static_cast<double>(shared[rank].longest_ns) / kMillisecond);
        }
      }
      absl::PrintF("%s, killed %s the votes: longest install %.0f ms (median), at most %.0f ms\n",
                   transports, point == Point::kStep ? "behind" : "before", MedianOf(ms),
                   *std::max_element(ms.begin(), ms.end()));
      std::fflush(stdout);  // before the next fork
    }
  }
}

// Returns the mean time of a round of ZeRO-1 in ms, as rank 0 measures it.
double RoundMs(OnLoss on_loss, const char* transports, int64_t count) {
  constexpr int kRounds = 20;
  SharedMemory shared;
  RanksOptions where;
  where.transports = transports;
  RunRankProcesses(2, where, [&](const std::shared_ptr<Communicator>& comm) {
    std::vector<float> params(static_cast<size_t>(count), 1);
    ChannelOptions options;
    options.method = DelayMethod::kZero1;
    options.count = count;
    options.params = params.data();
    options.optimizer = MakeRule(OptimizerKind::kAdamw, 0.1);
    options.limit = kRounds;
    options.on_loss = on_loss;
    auto channel = *GradientChannel::Create(*comm, options);
    while (!channel->info().finished) {
      EXPECT_EQ(channel->Add(1, 1), absl::OkStatus());
      EXPECT_EQ(channel->Install(), absl::OkStatus());
    }
    shared[comm->rank()].longest_ns = static_cast<int64_t>(channel->info().round_ns) / kRounds;
  });
  return static_cast<double>(shared[0].longest_ns) / kMillisecond;
}

TEST(DISABLED_ChannelLossTimes, OfARoundWithAndWithoutCopies) {
  for (const char* transports : {"shm", "tcp"}) {
    for (const int64_t count : {int64_t{10'000}, int64_t{1'000'000}}) {
      std::vector<double> fail, finish;
      for (int repetition = 0; repetition < 3; ++repetition) {
        fail.push_back(RoundMs(OnLoss::kFail, transports, count));
        finish.push_back(RoundMs(OnLoss::kFinish, transports, count));
      }
      absl::PrintF(
          "%s, %d parameters, 2 ranks: a round takes %.3f ms without copies, %.3f ms with\n",
          transports, count, MedianOf(fail), MedianOf(finish));
      std::fflush(stdout);  // before the next fork
    }
  }
}

}  // namespace
}  // namespace entrain
