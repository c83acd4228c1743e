// Ranks join the ranks of a gradient channel (option admit). Ranks are processes: some are killed,
// and others come. Their results lie in memory that they share with the test. Parameters are
// compared, bit for bit, with a reference. The reference steps all parameters at once, with the
// micro-batches of the ranks that each commit has counted.

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/crc32c.h"
#include "lib/comm/create/applications.h"
#include "lib/comm/create/runtime.h"
#include "lib/store/store.h"
#include "lib/train/acco/channel_transfer.h"
#include "lib/train/acco/gradient_channel.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"
#include "tests/train/channel_reference.h"
#include "tests/train/trainee.h"

namespace entrain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kMostRanks = 8, kMostRounds = 6000;
constexpr int64_t kCount = 5003;  // no multiple of the ranks

struct Landed {
  int64_t ranks, joins, losses;
  uint32_t params;  // checksum
};
struct Shown {
  std::array<Landed, kMostRounds> landed;  // by round, counted from 1
  std::atomic<int64_t> rounds;
  int64_t first_round;  // the first round that takes this rank's micro-batches, counted from 0
  int64_t began_joining_at, joined_at, counted_at;
  int64_t longest_install_ns, next_longest_install_ns;
  std::atomic<bool> failed;
  std::array<int, 2> lost;  // the numbers of the first lost ranks
  char error[512];
  float params[kCount];
};
struct Shared {
  std::array<Shown, kMostRanks> ranks;
  std::atomic<int> gone;     // ranks that have killed themselves, or are about to
  std::atomic<int> joining;  // newcomers that have begun to join
  std::atomic<int> ended;    // ranks that have come to the end
};
class SharedMemory : public SharedWithChildren<Shared> {
 public:
  Shown& operator[](int rank) const { return (*this)->ranks[static_cast<size_t>(rank)]; }
};

// A job. Process p is a member if p < members. The others join. The run ends when, after the first
// newcomer has come, `expected` ranks have made rounds_after rounds.
struct Job {
  int members = 2, newcomers = 1;
  const char* transports = "shm";
  DelayMethod method = DelayMethod::kAcco;
  OnLoss on_loss = OnLoss::kFinish;
  ChannelReference::Options numbers = {.count = kCount};
  DType wire = DType::kF32;
  int64_t warmup_rounds = 0;
  int expected = 3;
  int64_t rounds_after = 6;
  const Directory* saves = nullptr;  // after each install from round 2 on
  int64_t timeout_ns = 30 * kSecond, wait_ns = 30 * kSecond;
  // Called by each rank before it installs, with the number of installs of the run, and by a newcomer
  // before it joins and when it has joined.
  std::function<void(int process, int64_t installs)> at = {};
  std::function<void(int process)> at_joining = {}, at_joined = {};
  std::function<bool(int process)> stops = {};
  std::function<void(int process, ChannelOptions* options)> tweak = {};

  int processes() const { return members + newcomers; }
  bool joins(int process) const { return process >= members; }
};

void Die(const SharedMemory& shared) {
  ++shared->gone;
  raise(SIGKILL);
}

void Await(const std::function<bool()>& there) {
  const Deadline give_up = Deadline::After(30 * kSecond);
  while (!there() && !give_up.Passed(Clock::Real().Now())) {
    usleep(500);
  }
}

// A rank: its parameters and its channel.
class Runner {
 public:
  Runner(const Job& job, const SharedMemory& shared, std::shared_ptr<Store> store, int process)
      : job_(job), shared_(shared), store_(std::move(store)), process_(process) {
    // The values that a newcomer has before it joins must not matter.
    for (int64_t i = 0; i < job.numbers.count; ++i) {
      params_.push_back(job.joins(process) ? 7 : InitialOf(i));
    }
    bf16_.resize(job.numbers.bf16 ? params_.size() : 0);
    BestKernels().cast(bf16_.data(), DType::kBF16, params_.data(), DType::kF32,
                       static_cast<int64_t>(bf16_.size()));
  }

  absl::Status Run() {
    ENTRAIN_RETURN_IF_ERROR(Begin());
    shown().rounds = shown().first_round = channel_->info().rounds;
    absl::Status status;
    int64_t complete = 0;
    const Deadline give_up = Deadline::After(60 * kSecond);
    for (int64_t round = shown().first_round; status.ok() && !channel_->info().finished; ++round) {
      auto* const sums = static_cast<float*>(channel_->gradients());
      for (int64_t i = 0; i < job_.numbers.count; ++i) {
        sums[i] += GradientOf(process_, round, i);
      }
      usleep(1000);  // a step of training
      status.Update(channel_->Add(1, 2));
      if (job_.at) {
        job_.at(process_, round);
      }
      const int64_t begun = Clock::Real().Now();
      status.Update(channel_->Install());
      NoteInstall(Clock::Real().Now() - begun);
      if (status.ok()) {
        Show();
        const ChannelInfo info = channel_->info();
        complete += info.ranks == job_.expected && info.joins > 0 ? 1 : -complete;
        if (complete >= job_.rounds_after || (job_.stops && job_.stops(process_))) {
          status.Update(channel_->Stop());
        }
      }
      if (status.ok() && job_.saves != nullptr && round > 2) {
        status.Update(channel_->state().Save(
            To(*job_.saves, CheckpointKind::kPortable, kOneFile, absl::StrCat(round % 4))));
      }
      if (give_up.Passed(Clock::Real().Now()) || round + 2 >= kMostRounds) {
        return absl::DeadlineExceededError("the ranks never came together");
      }
    }
    return status;
  }

 private:
  Shown& shown() const { return shared_[process_]; }

  ChannelOptions Options() {
    ChannelOptions options;
    options.method = job_.method;
    options.count = job_.numbers.count;
    options.params =
        bf16_.empty() ? static_cast<void*>(params_.data()) : static_cast<void*>(bf16_.data());
    options.params_dtype = bf16_.empty() ? DType::kF32 : DType::kBF16;
    options.wire_dtype = job_.wire;
    options.optimizer = MakeRule(job_.numbers.kind, 0.1);
    options.lr = kChannelRate;
    options.clip_norm = job_.numbers.clip_norm;
    options.warmup_rounds = job_.warmup_rounds;
    options.on_loss = job_.on_loss;
    options.admit = Admit::kExchange;
    options.admit_store = [store = store_](const Stop&) { return store; };
    if (job_.tweak) {
      job_.tweak(process_, &options);
    }
    return options;
  }

  // Makes the channel.
  absl::Status Begin() {
    RuntimeOptions runtime_options;
    runtime_options.transports = job_.transports;
    CommOptions options;
    ENTRAIN_ASSIGN_OR_RETURN(options.runtime, Runtime::Create(runtime_options));
    options.store = store_;
    options.name = job_.joins(process_) ? absl::StrCat("newcomer", process_) : "members";
    options.rank = job_.joins(process_) ? 0 : process_;
    options.size = job_.joins(process_) ? 1 : job_.members;
    options.timeout_ns = job_.timeout_ns;
    ENTRAIN_ASSIGN_OR_RETURN(const auto comm, Communicator::Create(options));
    if (!job_.joins(process_)) {
      ENTRAIN_ASSIGN_OR_RETURN(channel_, GradientChannel::Create(*comm, Options()));
      return absl::OkStatus();
    }
    if (job_.at_joining) {
      job_.at_joining(process_);
    }
    ++shared_->joining;
    shown().began_joining_at = Clock::Real().Now();
    ENTRAIN_ASSIGN_OR_RETURN(channel_, GradientChannel::Join(*comm, Options(), job_.wait_ns));
    shown().joined_at = Clock::Real().Now();
    if (job_.at_joined) {
      job_.at_joined(process_);
    }
    return absl::OkStatus();
  }

  void NoteInstall(int64_t took_ns) const {
    shown().next_longest_install_ns =
        std::max(shown().next_longest_install_ns, std::min(took_ns, shown().longest_install_ns));
    shown().longest_install_ns = std::max(shown().longest_install_ns, took_ns);
  }

  void Show() const {
    const ChannelInfo info = channel_->info();
    if (info.rounds > 0) {
      shown().landed[static_cast<size_t>(info.rounds)] = {
          info.ranks, info.joins, info.losses,
          Crc32c(bf16_.empty() ? static_cast<const void*>(params_.data()) : bf16_.data(),
                 bf16_.empty() ? kCount * 4 : kCount * 2)};
    }
    if (info.rounds > shown().first_round && shown().counted_at == 0) {
      shown().counted_at = Clock::Real().Now();
    }
    BestKernels().cast(shown().params, DType::kF32, bf16_.empty() ? params_.data() : nullptr,
                       DType::kF32, bf16_.empty() ? kCount : 0);
    BestKernels().cast(shown().params, DType::kF32, bf16_.data(), DType::kBF16,
                       static_cast<int64_t>(bf16_.size()));
    const std::vector<ChannelLoss> losses = channel_->losses();
    for (size_t i = 0; i < std::min(losses.size(), shown().lost.size()); ++i) {
      shown().lost[i] = losses[i].rank;
    }
    shown().rounds = info.rounds;
  }

  const Job& job_;
  const SharedMemory& shared_;
  const std::shared_ptr<Store> store_;
  const int process_;
  std::vector<float> params_;
  std::vector<uint16_t> bf16_;
  std::shared_ptr<GradientChannel> channel_;
};

void RunProcess(const Job& job, const SharedMemory& shared, const std::string& url, int process) {
  auto store = OpenStore(url, "", {Deadline::After(5 * kSecond)});
  ASSERT_TRUE(store.ok()) << store.status();
  Runner runner(job, shared, *std::move(store), process);
  const absl::Status status = runner.Run();
  absl::SNPrintF(shared[process].error, sizeof(Shown::error), "%s", status.ToString());
  shared[process].failed = !status.ok();
  ++shared->ended;
}

// Returns the status of each process as waitpid gives it.
std::vector<int> RunJob(const Job& job, const SharedMemory& shared) {
  const TempDirectory directory;
  std::vector<pid_t> children;
  for (int process = 0; process < job.processes(); ++process) {
    children.push_back(StartProcess(
        [&] { RunProcess(job, shared, absl::StrCat("file:", directory.path()), process); }));
  }
  std::vector<int> ends;
  for (const pid_t child : children) {
    ends.push_back(EndOf(child));
  }
  return ends;
}

std::vector<int> First(const std::vector<int>& all, int64_t count) {
  return {all.begin(), all.begin() + count};
}

// Expects that these processes came to the end with the same bits after each round that they have
// in common, and that the result equals that of the reference. `arrivals`: newcomers in the order
// in which they were taken in. `victims`: the ranks that were lost, in order.
void ExpectAlike(const Job& job, const SharedMemory& shared, const std::vector<int>& left,
                 const std::vector<int>& arrivals, const std::vector<int>& victims) {
  const Shown& first = shared[left[0]];
  for (const int process : left) {
    const Shown& shown = shared[process];
    EXPECT_STREQ(shown.error, "OK") << "process " << process;
    EXPECT_EQ(shown.rounds, first.rounds);
    for (int64_t round = shown.first_round + 1; round <= shown.rounds; ++round) {
      const Landed &here = shown.landed[static_cast<size_t>(round)],
                   &there = first.landed[static_cast<size_t>(round)];
      ASSERT_EQ(here.params, there.params) << "process " << process << ", round " << round;
      ASSERT_EQ(here.ranks, there.ranks);
      ASSERT_EQ(here.joins, there.joins);
    }
    EXPECT_EQ(std::memcmp(shown.params, first.params, sizeof(first.params)), 0) << process;
  }
  ASSERT_LT(first.first_round, 1) << "the first of them must have been there from the start";
  ChannelReference want(job.numbers);
  int64_t begun = 0;  // the first round of the batch
  for (int64_t round = 0; round < first.rounds; ++round) {
    if (job.method == DelayMethod::kAcco && round >= job.warmup_rounds &&
        (round - job.warmup_rounds) % 2 == 0) {
      continue;
    }
    const Landed& landed = first.landed[static_cast<size_t>(round + 1)];
    std::vector<int> counted;
    for (int member = 0; member < job.members; ++member) {
      counted.push_back(member);
    }
    ASSERT_LE(landed.joins, static_cast<int64_t>(arrivals.size()));
    ASSERT_LE(landed.losses, static_cast<int64_t>(victims.size()));
    for (const int newcomer : First(arrivals, landed.joins)) {
      counted.push_back(newcomer);
    }
    for (const int victim : First(victims, landed.losses)) {
      counted.erase(std::remove(counted.begin(), counted.end(), victim), counted.end());
    }
    ASSERT_EQ(landed.ranks, static_cast<int64_t>(counted.size())) << "round " << round;
    for (; begun <= round; ++begun) {
      want.Add(counted, begun);
    }
    want.Commit();
  }
  const std::vector<float> params = want.params();
  EXPECT_EQ(std::memcmp(first.params, params.data(), sizeof(first.params)), 0);
}

struct Variant {
  const char* name;
  std::function<void(Job&)> change;
};
const Variant kVariants[] = {
    {"acco", [](Job&) {}},
    {"dpu", [](Job& job) { job.method = DelayMethod::kDpu; }},
    {"wp", [](Job& job) { job.method = DelayMethod::kWp; }},
    {"zero1", [](Job& job) { job.method = DelayMethod::kZero1; }},
    {"clipping, tcp",
     [](Job& job) {
       job.numbers.clip_norm = 0.5;
       job.transports = "tcp";
     }},
    {"bf16 and warm-up, tcp",
     [](Job& job) {
       job.numbers.bf16 = true;
       job.wire = DType::kBF16;
       job.warmup_rounds = 5;
       job.transports = "tcp";
     }},
};

// A rank joins two others. From its first round on it has their bits, and all have the reference's.
TEST(ChannelJoin, OfAllMethodsWithAndWithoutCopies) {
  for (const Variant& variant : kVariants) {
    for (const OnLoss on_loss : {OnLoss::kFail, OnLoss::kFinish}) {
      SCOPED_TRACE(
          absl::StrCat(variant.name, on_loss == OnLoss::kFail ? ", fail" : ", with copies"));
      SharedMemory shared;
      Job job;
      job.on_loss = on_loss;
      variant.change(job);
      RunJob(job, shared);
      ExpectAlike(job, shared, {0, 1, 2}, {2}, {});
      EXPECT_GT(shared[2].first_round, 0);
      ASSERT_FALSE(HasFailure());
    }
  }
}

// Two join one at the same time; then all three take in a fourth, and save checkpoints all the time.
TEST(ChannelJoin, OneRankBecomesFour) {
  const Directory directory;
  SharedMemory shared;
  Job job;
  job.members = 1;
  job.newcomers = 3;
  job.expected = 4;
  job.saves = &directory;
  job.at_joining = [&](int process) {
    if (process == 3) {
      Await([&] { return shared[1].joined_at > 0 && shared[2].joined_at > 0; });
    }
  };
  RunJob(job, shared);
  std::vector<int> arrivals = {1, 2, 3};
  if (shared[2].first_round < shared[1].first_round) {
    arrivals = {2, 1, 3};
  }
  ExpectAlike(job, shared, {0, 1, 2, 3}, arrivals, {});
}

// The checkpoints that the ranks save, with newcomers among them, hold the state of all.
TEST(ChannelJoin, ACheckpointContinuesWithTheSameBits) {
  const Directory directory;
  SharedMemory shared;
  Job job;
  job.saves = &directory;
  RunJob(job, shared);
  ExpectAlike(job, shared, {0, 1, 2}, {2}, {});
  const std::string name = absl::StrCat(shared[0].rounds.load() % 4);  // after the last install
  for (const int ranks : {1, 3}) {
    SharedMemory loaded;
    RunRankProcesses(ranks, {.transports = "shm"}, [&](const std::shared_ptr<Communicator>& comm) {
      ChannelOptions options;
      options.count = kCount;
      options.params = loaded[comm->rank()].params;
      options.optimizer = MakeRule(job.numbers.kind, 0.1);
      auto channel = GradientChannel::Create(*comm, options);
      ASSERT_TRUE(channel.ok()) << channel.status();
      EXPECT_EQ((*channel)->state().Load(To(directory, CheckpointKind::kPortable, kOneFile, name)),
                absl::OkStatus());
    });
    EXPECT_EQ(std::memcmp(shared[0].params, loaded[0].params, sizeof(shared[0].params)), 0);
  }
}

// A rank is lost, and another takes its place, with a new number. Then either the newcomer is lost
// too, or the member whose shard the newcomer has as a copy.
TEST(ChannelJoin, AReplacementHasWhatOthersNeedAfterALoss) {
  // The newcomer's right neighbour, and the newcomer itself.
  for (const auto& [victim, second] : {std::pair(1, 0), {2, 3}}) {
    SCOPED_TRACE(second);
    SharedMemory shared;
    Job job;
    job.members = 3;
    job.expected = 2;
    job.rounds_after = 10;
    job.at_joining = [&](int) { Await([&] { return shared->gone > 0; }); };
    job.at = [&, first = victim, second = second](int process, int64_t installs) {
      if (process == first && installs == 5) {
        Die(shared);
      }
      if (process == second && shared[3].first_round > 0 && installs > shared[3].first_round + 5) {
        Die(shared);
      }
    };
    RunJob(job, shared);
    const std::vector<int> left = second == 0 ? std::vector<int>{2, 3} : std::vector<int>{0, 1};
    ExpectAlike(job, shared, left, {3}, {victim, second});
    EXPECT_THAT(shared[left[0]].lost, ElementsAre(victim, second));
  }
}

// Returns a number in [0, 1) that depends only on the seed.
double Part(int seed) {
  return static_cast<double>(static_cast<uint64_t>(seed + 1) * 0x9E3779B97F4A7C15u >> 11) * 0x1p-53;
}

void DieWithin(const SharedMemory& shared, int64_t most_us, int seed) {
  After(static_cast<int64_t>(Part(seed) * static_cast<double>(most_us)),
        [&shared] { Die(shared); });
}

// At whatever point of its admission a newcomer dies, the others go on, and the next newcomer is
// taken in.
TEST(ChannelJoin, ANewcomerThatDies) {
  for (int seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    SharedMemory shared;
    Job job;
    job.transports = seed % 3 == 2 ? "tcp" : "shm";
    job.newcomers = 2;
    job.at_joining = [&](int process) {
      if (process == 3) {
        Await([&] { return shared->gone > 0; });
      } else if (seed > 0) {
        DieWithin(shared, 60'000, seed);
      }
    };
    job.at_joined = [&](int process) {
      if (process == 2) {
        Die(shared);  // if it is not dead yet
      }
    };
    RunJob(job, shared);
    const int64_t joins = shared[0].landed[static_cast<size_t>(shared[0].rounds.load())].joins;
    // It may have been taken in before it died.
    ExpectAlike(job, shared, {0, 1, 3}, joins == 2 ? std::vector<int>{2, 3} : std::vector<int>{3},
                {2});
    if (HasFailure()) {
      break;
    }
  }
}

// Without copies, the others go on if the newcomer was not yet a member. Otherwise all of them end.
TEST(ChannelJoin, ANewcomerThatDiesWithoutCopies) {
  for (int seed = 0; seed < 4; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    SharedMemory shared;
    Job job;
    job.on_loss = OnLoss::kFail;
    job.newcomers = 2;
    job.at_joining = [&](int process) {
      if (process == 3) {
        Await([&] { return shared->gone > 0; });
      } else {
        DieWithin(shared, 40'000, seed);
      }
    };
    job.stops = [&](int) { return shared[3].failed.load(); };
    job.wait_ns = 3 * kSecond;
    job.at_joined = [&](int process) {
      if (process == 2) {
        Await([] { return false; });
      }
    };
    RunJob(job, shared);
    if (shared[2].joined_at == 0 && !shared[0].failed) {
      ExpectAlike(job, shared, {0, 1, 3}, {3}, {});
    } else {
      EXPECT_TRUE(shared[0].failed && shared[1].failed);
    }
    if (HasFailure()) {
      break;
    }
  }
}

// At whatever point of the admission a member dies, the others agree on the ranks, and the newcomer
// is taken in.
TEST(ChannelJoin, AMemberThatDiesMeanwhile) {
  for (int seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    SharedMemory shared;
    Job job;
    job.transports = seed % 3 == 2 ? "tcp" : "shm";
    job.members = 3;
    const int victim = seed % 3;
    job.at = [&, dying = false](int process, int64_t) mutable {
      if (process == victim && shared->joining > 0 && !std::exchange(dying, true)) {
        DieWithin(shared, 50'000, seed);
      }
    };
    RunJob(job, shared);
    std::vector<int> left = {0, 1, 2, 3};
    left.erase(left.begin() + victim);
    ExpectAlike(job, shared, left, {3}, {victim});
    if (HasFailure()) {
      break;
    }
  }
}

// If options differ, the newcomer's error names them, and the others go on.
TEST(ChannelJoin, OtherOptionsAreRefused) {
  struct Case {
    std::function<void(ChannelOptions*)> change;
    const char* error;
  };
  const Case cases[] = {
      {[](ChannelOptions* o) { o->lr = 0.25; }, "lr: 0.01 on rank 0, 0.25 on rank 2"},
      {[](ChannelOptions* o) { --o->count; }, "count: 5003 on rank 0, 5002 on rank 2"},
      {[](ChannelOptions* o) { o->method = DelayMethod::kWp; }, "method: 0 on rank 0, 2 on rank 2"},
      {[](ChannelOptions* o) { o->wire_dtype = DType::kBF16; }, "wire_dtype"},
      {[](ChannelOptions* o) { o->optimizer = MakeRule(OptimizerKind::kAdamw, 0.2); },
       "optim of element 0: result of a trial step"},
      {[](ChannelOptions* o) { o->optimizer = MakeRule(OptimizerKind::kLion, 0.1); },
       "optim of element 0: state arrays: 2 on rank 0, 1 on rank 2"}};
  SharedMemory shared;
  Job job;
  job.newcomers = static_cast<int>(std::size(cases));
  job.tweak = [&](int process, ChannelOptions* options) {
    if (job.joins(process)) {
      cases[process - job.members].change(options);
    }
  };
  job.at_joining = [&](int process) {  // one after the other
    Await([&] { return process == job.members || shared[process - 1].failed; });
  };
  job.stops = [&](int) { return shared[job.processes() - 1].failed.load(); };
  RunJob(job, shared);
  for (int i = 0; i < job.newcomers; ++i) {
    EXPECT_THAT(shared[job.members + i].error, HasSubstr(cases[i].error));
  }
  ExpectAlike(job, shared, {0, 1}, {}, {});
}

// A newcomer that comes together with such a newcomer is taken in.
TEST(ChannelJoin, OptionsOfAnotherNewcomerDoNoHarm) {
  SharedMemory shared;
  Job job;
  job.newcomers = 2;
  job.tweak = [](int process, ChannelOptions* options) {
    if (process == 2) {
      options->lr = 0.25;
    }
  };
  RunJob(job, shared);
  EXPECT_THAT(shared[2].error, HasSubstr("lr: 0.01 on rank 0, 0.25 on rank "));
  ExpectAlike(job, shared, {0, 1, 3}, {3}, {});
}

TEST(ChannelJoin, WhatDoesNotGoTogetherIsRefused) {
  RunRanks(2, [](const std::shared_ptr<Communicator>& comm) {
    std::vector<float> params(10);
    ChannelOptions options;
    options.count = 10;
    options.params = params.data();
    options.optimizer = MakeRule(OptimizerKind::kSgd, 0);
    const auto join = [&](int64_t wait_ns = 0) {
      return std::string(GradientChannel::Join(*comm, options, wait_ns).status().message());
    };
    EXPECT_THAT(join(), HasSubstr("admit: 0 (none) takes nobody in; set exchange"));
    options.admit = Admit::kExchange;
    EXPECT_THAT(join(), HasSubstr("admit: 1 (exchange) needs admit_store"));
    options.admit_store = [](const Stop&) { return absl::InternalError("not opened"); };
    EXPECT_THAT(join(-1), HasSubstr("wait_ns: -1 is negative"));
    EXPECT_THAT(join(), HasSubstr("comm: 2 ranks; a communicator that joins has one"));
    options.optimizer = nullptr;
    options.step = [](void*, int32_t, int64_t, double, size_t, size_t, const void*, void*, void*) {
      return 0;
    };
    EXPECT_THAT(join(), HasSubstr("admit: 1 (exchange) does not go with a step of the caller's"));
  });
}

// The behaviours of a newcomer that comes together with another one.
enum class Other { kGivesUp, kFails, kFailsBeforeTheShards };

// Takes part in an admission by hand, up to the last message of the members.
void TakePart(Communicator& own, const std::shared_ptr<Store>& store, const ChannelOptions& options,
              Other other) {
  const auto world = own.JoinOther(store, "acco", 20 * kSecond);
  ASSERT_TRUE(world.ok()) << world.status();
  ASSERT_EQ(CallIn(**world, 20 * kSecond), absl::OkStatus());
  const auto enlarged = MeetNewcomers(*world, {.group = 77}, AlikeForNewcomers(options));
  ASSERT_TRUE(enlarged.ok()) << enlarged.status();
  ChannelTotals totals;
  const Bytes params(static_cast<std::byte*>(options.params), kCount * sizeof(float));
  int64_t step = 0;
  const absl::Status mine =
      other == Other::kGivesUp ? absl::OkStatus() : absl::AbortedError("has no room");
  if (other == Other::kFailsBeforeTheShards) {
    const std::vector<TransferItem> items = {
        {.name = "numbers", .bytes = Bytes(reinterpret_cast<std::byte*>(&totals), sizeof(totals))},
        {.name = "parameters", .bytes = params}};
    ASSERT_EQ(TransferState(*enlarged->sync, enlarged->parties, items, kAdmissionNs),
              absl::OkStatus());
    EXPECT_FALSE(CompareOutcomes(*enlarged->sync, 2, mine, &step).ok());
  } else {
    ASSERT_TRUE(ShareChannel(*enlarged, options, nullptr, params, &totals).ok());
  }
  EXPECT_EQ(CompareOutcomes(**world, 2, mine, &step).ok(), mine.ok());
  (*world)->Abort("gives up");
}

// Ranks 0 and 1 train, and ranks 2 and 3 come together. If rank 3 leaves after all have agreed, rank
// 2 cannot have got the last message, but the others need its shard. If rank 3 fails before, rank 2
// applies again.
TEST(ChannelJoin, ANewcomerThatComesWithOneThatLeaves) {
  for (const Other other : {Other::kGivesUp, Other::kGivesUp, Other::kGivesUp, Other::kFails,
                            Other::kFailsBeforeTheShards}) {
    static int stores = 0;
    const std::string url = absl::StrCat("mem:channel", ++stores);
    std::array<std::vector<float>, 4> params;
    RunRanks(4, [&](const std::shared_ptr<Communicator>& world) {
      const int rank = world->rank();
      const auto own = *world->Split(rank < 2 ? 0 : rank, rank);
      const auto store = *OpenStore(url, "", {Deadline::After(5 * kSecond)});
      std::vector<float>& mine = params[static_cast<size_t>(rank)];
      mine.resize(kCount, 1);
      ChannelOptions options;
      options.count = kCount;
      options.params = mine.data();
      options.optimizer = MakeRule(OptimizerKind::kAdamw, 0.1);
      options.on_loss = OnLoss::kFinish;
      options.admit = Admit::kExchange;
      options.admit_store = [store](const Stop&) { return store; };
      if (rank == 3) {
        TakePart(*own, store, options, other);
        return;
      }
      if (rank < 2) {
        Await([&] {
          return CountApplications(*store, "acco", {Deadline::After(kSecond)}).value_or(0) == 2;
        });
      }
      auto made = rank == 2 ? GradientChannel::Join(*own, options, 20 * kSecond)
                            : GradientChannel::Create(*own, options);
      ASSERT_TRUE(made.ok()) << made.status();
      GradientChannel& channel = **made;
      for (int together = 0; !channel.info().finished;) {
        auto* const sums = static_cast<float*>(channel.gradients());
        std::for_each(sums, sums + kCount, [](float& sum) { sum += 1; });
        ASSERT_EQ(channel.Add(1, 1), absl::OkStatus());
        ASSERT_EQ(channel.Install(), absl::OkStatus());
        together += channel.info().ranks == 3 ? 1 : 0;
        if (together >= 6) {
          ASSERT_EQ(channel.Stop(), absl::OkStatus());
        }
      }
      // Rank 3 counts if no member learned of its end before its message.
      EXPECT_LE(channel.info().joins, other == Other::kGivesUp ? 2 : 1);
      EXPECT_EQ(channel.info().losses, channel.info().joins - 1);
    });
    EXPECT_LT(params[0][0], 1);
    EXPECT_EQ(params[0], params[1]);
    EXPECT_EQ(params[0], params[2]);
  }
}

// Rank 0 or 1 takes rank 2 in by hand, up to the last message, which no rank sends.
void TakeIn(GradientRound& round, const ChannelOptions& options, int rank, EnlargedWorld* enlarged,
            std::unique_ptr<ChannelCut>* cut) {
  Applicants applicants("acco", 1, options.admit_store, "acco");
  const auto grown = applicants.Grow(*round.ranks().comm(), 1, 1, options.timeout_ns);
  ASSERT_TRUE(grown.ok()) << grown.status();
  ASSERT_NE(*grown, nullptr);
  ASSERT_EQ(CallIn(**grown, options.timeout_ns), absl::OkStatus());
  const AdmissionCard mine = {.replica = rank, .most_replicas = 100, .first_number = 2};
  auto met = MeetNewcomers(*grown, mine, AlikeForNewcomers(options));
  ASSERT_TRUE(met.ok()) << met.status();
  *enlarged = *std::move(met);
  ChannelTotals totals = round.totals();
  auto shared =
      ShareChannel(*enlarged, options, &round.ranks().cut(), round.buffers().params(), &totals);
  ASSERT_TRUE(shared.ok()) << shared.status();
  *cut = *std::move(shared);
  int64_t step = 0;
  ASSERT_EQ(CompareOutcomes(**grown, 2, absl::OkStatus(), &step), absl::OkStatus());
}

// Makes a commit on gradients of 1.
void CommitOnes(GradientRound& round) {
  auto ones = *OwnedBuffer::Allocate(kCount * static_cast<int64_t>(sizeof(float)));
  std::fill_n(reinterpret_cast<float*>(ones.data()), kCount, 1.0f);
  round.buffers().Take(ones, true, round.ranks().cut().layer());
  ASSERT_EQ(round.Run(RoundKind::kCommit, {1, 1, 0}), absl::OkStatus());
  round.buffers().Publish();
}

// Ranks 0 and 1 train, and take rank 2 in. When all have agreed that the transfer has succeeded,
// rank
// 1 leaves. So rank 2 does not get the last message, but rank 0 needs rank 2: otherwise shards of
// rank
// 1 would be lost.
TEST(ChannelJoin, AMemberThatLeavesBeforeTheLastWord) {
  std::array<std::vector<float>, 3> params;
  std::atomic<bool> all_well{false};
  RunRanks(3, [&](const std::shared_ptr<Communicator>& world) {
    const int rank = world->rank();
    const auto own = *world->Split(rank < 2 ? 0 : 2, rank);
    const auto store = *OpenStore("mem:leaving", "", {Deadline::After(5 * kSecond)});
    std::vector<float>& mine = params[static_cast<size_t>(rank)];
    mine.resize(kCount, 1);
    ChannelOptions options;
    options.method = DelayMethod::kZero1;
    options.count = kCount;
    options.params = mine.data();
    options.optimizer = MakeRule(OptimizerKind::kAdamw, 0.1);
    options.on_loss = OnLoss::kFinish;
    options.admit = Admit::kExchange;
    options.admit_store = [store](const Stop&) { return store; };
    options.timeout_ns = options.limit_ns = 20 * kSecond;
    if (rank == 2) {
      auto channel = GradientChannel::Join(*own, options, 20 * kSecond);
      ASSERT_TRUE(channel.ok()) << channel.status();
      std::fill_n(static_cast<float*>((*channel)->gradients()), kCount, 1.0f);
      ASSERT_EQ((*channel)->Add(1, 1), absl::OkStatus());
      ASSERT_EQ((*channel)->Install(), absl::OkStatus());
      EXPECT_EQ((*channel)->info().ranks, 2);
      ASSERT_EQ(world->Barrier(), absl::OkStatus());
      return;
    }
    GradientRound round(own, options);
    ASSERT_EQ(round.Allocate(), absl::OkStatus());
    CommitOnes(round);
    Await([&] {
      return CountApplications(*store, "acco", {Deadline::After(kSecond)}).value_or(0) == 1;
    });
    EnlargedWorld enlarged;
    std::unique_ptr<ChannelCut> cut;
    TakeIn(round, options, rank, &enlarged, &cut);
    ASSERT_NE(cut, nullptr);
    if (rank == 1) {
      Await([&] { return all_well.load(); });
      enlarged.world->LeaveWith(absl::AbortedError("leaves"));
    } else {
      all_well = true;
      Await([&] { return !enlarged.world->status().ok(); });
      round.Enlarge(enlarged, std::move(cut));
      CommitOnes(round);
    }
    ASSERT_EQ(world->Barrier(), absl::OkStatus());
  });
  EXPECT_LT(params[0][0], 1);
  EXPECT_EQ(params[0], params[2]);
}

// A newcomer that no rank takes in waits, and its error has the reason.
TEST(ChannelJoin, WithoutMembers) {
  SharedMemory shared;
  Job job;
  job.members = 0;
  job.wait_ns = kSecond / 10;
  RunJob(job, shared);
  EXPECT_THAT(shared[0].error, HasSubstr("DEADLINE_EXCEEDED"));
  EXPECT_THAT(shared[0].error, HasSubstr("acco: join"));
}

void PrintTimes(const char* transports, int64_t count, int repetitions) {
  std::vector<double> joined, counted, longest, next;
  for (int repetition = 0; repetition < repetitions; ++repetition) {
    SharedMemory shared;
    Job job;
    job.numbers.count = count;
    job.transports = transports;
    job.members = 3;
    job.expected = 4;
    RunJob(job, shared);
    const Shown& newcomer = shared[3];
    EXPECT_STREQ(newcomer.error, "OK");
    const auto ms = [](int64_t ns) { return static_cast<double>(ns) / kMillisecond; };
    joined.push_back(ms(newcomer.joined_at - newcomer.began_joining_at));
    counted.push_back(ms(newcomer.counted_at - newcomer.began_joining_at));
    longest.push_back(ms(shared[1].longest_install_ns));
    next.push_back(ms(shared[1].next_longest_install_ns));
  }
  for (std::vector<double>* const values : {&joined, &counted, &longest, &next}) {
    std::sort(values->begin(), values->end());
  }
  const size_t median = joined.size() / 2;
  absl::PrintF(
      "%s, 3 members, %d parameters: joined after %.0f ms, first counted round installed after "
      "%.0f ms; installs of a member: longest %.1f ms, next longest %.1f ms\n",
      transports, count, joined[median], counted[median], longest[median], next[median]);
  std::fflush(stdout);  // before the next fork
}

// Prints the times of docs/lab/elastic.md (--gtest_also_run_disabled_tests).
TEST(DISABLED_ChannelJoinTimes, OfANewcomerAndOfTheOthersInstalls) {
  for (const char* transports : {"shm", "tcp"}) {
    PrintTimes(transports, kCount, 3);
    PrintTimes(transports, 1'000'000, 1);
  }
}

}  // namespace
}  // namespace entrain
