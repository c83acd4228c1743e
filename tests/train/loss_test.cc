// Replicas are killed while others exchange with them, and the others go on (on_loss). Ranks are
// processes. Their results lie in memory that they share with the test.

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/status.h"
#include "lib/checkpoint/checkpoint_file.h"
#include "lib/train/elastic/replica_world.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"
#include "tests/train/edit_reference.h"
#include "tests/train/replicas.h"
#include "tests/train/trainee.h"

namespace entrain {
namespace {

using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr int kLayerCount = 5;
constexpr int kMostRanks = 8;
constexpr int64_t kElements = 30'000;
constexpr int kStruckRound = 2;  // for the time that a death takes
constexpr int64_t kMost = kLayerCount * kElements;

ShardConfig Model(int prefetch = 1) {
  ShardConfig config;
  config.layer_counts.assign(kLayerCount, kElements);
  config.prefetch = prefetch;
  return config;
}

// The results of a rank that has ended.
struct Shown {
  std::atomic<int> rounds;  // number of rounds that it has finished
  int64_t steps, losses, short_rounds, rendezvous, missed;
  int replicas, lost[kMostRanks];
  int64_t longest_ns;    // round
  int64_t recovered_ns;  // from the death in kStruckRound to the end of that round
  char error[512];
  float params[kMost];  // whole layers in ranks of their own; else the slab
};
struct Shared {
  std::array<Shown, kMostRanks> ranks;
  std::atomic<int64_t> struck_at;
  std::atomic<int> ended;
};

// Memory that forked processes share.
class SharedMemory : public SharedWithChildren<Shared> {
 public:
  Shown& operator[](int rank) const { return (*this)->ranks[static_cast<size_t>(rank)]; }
};

EditOptions Finishing(EditOptions options) {
  options.on_loss = OnLoss::kFinish;
  return options;
}

struct Job {
  Grid grid = {1, 4};
  const char* transports = "shm";
  EditOptions options = Finishing(Weighed());
  int rounds = 4;
  int survivors = 3;  // ranks that come to the end
  int64_t timeout_ns = 20 * kSecond;
  // Called by each rank at points of a round: -1 before its beginning, 0 when it has begun, 1 + l
  // when layer l is over.
  std::function<void(int rank, int round, int point)> at = {};
  bool leaves = false;               // ends with Leave, after which the parameters are the anchor
  const Directory* saves = nullptr;  // after each round, a checkpoint of the round's number
  CheckpointKind kind = CheckpointKind::kPortable;
  Way way = kOneFile;
  int reductions = 0;  // after each round
  bool early = false;  // each round also has a reduction and a save before the waits for its layers
};

constexpr int kSave = 1 + kLayerCount;  // the point before a save, and before the reductions

float Drift(int replica, int round, int layer, int64_t i) {
  return Noise(replica, round, layer, i) / 256;
}

// Counts the ranks in two ways. A rank that is lost counts in both or in none.
absl::Status CountRanks(Replica& r, int rank) {
  const std::array<int64_t, 2> in = {1, int64_t{1} << rank};
  std::array<int64_t, 2> out = {};
  int at = -1, ranks = -1;
  const absl::Status status = r.edit().state().Reduce({.in = in.data(),
                                                       .out = out.data(),
                                                       .count = 2,
                                                       .dtype = DType::kI64,
                                                       .op = ReduceOp::kSum,
                                                       .rank = &at,
                                                       .ranks = &ranks});
  if (status.ok() && (out[0] != ranks || std::popcount(static_cast<uint64_t>(out[1])) != ranks ||
                      std::popcount(static_cast<uint64_t>(out[1] & ((1 << rank) - 1))) != at)) {
    return absl::InternalError(absl::StrCat("counted ", out[0], " of ", ranks, " ranks, mask ",
                                            out[1], ", and this is ", at));
  }
  return status;
}

// Makes a round. Returns the first error.
absl::Status Round(const Job& job, Replica& r, int rank, int round) {
  const auto point = [&](int number) {
    if (job.at) {
      job.at(rank, round, number);
    }
  };
  r.ForEach(r.params(),
            [&](int l, int64_t i, float& value) { value += Drift(r.replica(), round, l, i); });
  absl::Status status = r.edit().EndStep();
  point(-1);
  status.Update(r.edit().BeginForward(true, true).status());
  point(0);
  if (job.early && status.ok()) {
    const absl::Status saved = r.edit().state().Save({.directory = "/none", .name = "early"});
    for (const absl::Status& wrong : {CountRanks(r, rank), saved}) {
      if (wrong.code() != absl::StatusCode::kFailedPrecondition) {
        status = absl::InternalError(absl::StrCat("not refused: ", wrong.ToString()));
      }
    }
  }
  for (int l = 0; l < kLayerCount && status.ok(); ++l) {
    status.Update(r.edit().WaitLayer(l));
    point(1 + l);
  }
  for (int i = 0; i < job.reductions && status.ok(); ++i) {
    if (i == 0) {
      point(kSave);
    }
    status = CountRanks(r, rank);
  }
  if (job.saves != nullptr && status.ok()) {
    point(kSave);
    status = r.edit().state().Save(To(*job.saves, job.kind, job.way, absl::StrCat(round)));
  }
  return status;
}

void Show(Replica& r, Shown& shown) {
  const EditInfo info = r.edit().info();
  shown.steps = info.steps;
  shown.losses = info.losses;
  shown.short_rounds = info.short_rounds;
  shown.rendezvous = info.rendezvous;
  shown.missed = info.missed;
  shown.replicas = info.replicas;
  const std::vector<ReplicaLoss> losses = r.edit().results().losses();
  for (size_t i = 0; i < losses.size(); ++i) {
    shown.lost[i] = losses[i].replica;
  }
  std::copy(r.params().begin(), r.params().end(), shown.params);
}

void RunRank(const Job& job, const std::shared_ptr<Communicator>& comm,
             const SharedMemory& shared) {
  Shown& shown = shared[comm->rank()];
  MeshConfig config;
  config.lengths[static_cast<size_t>(Axis::kShard)] = job.grid.shards;
  const auto mesh = Mesh::Create(comm, config);
  ASSERT_TRUE(mesh.ok()) << mesh.status();
  Replica r(*mesh, Model());
  r.Edit(job.options);
  absl::Status status = r.edit().BeginForward(true, true).status();  // the anchors
  for (int round = 0; round < job.rounds && status.ok(); ++round) {
    const int64_t begun = Clock::Real().Now();
    status = Round(job, r, comm->rank(), round);
    if (status.ok()) {
      shown.rounds = round + 1;
      shown.longest_ns = std::max(shown.longest_ns, Clock::Real().Now() - begun);
      if (round == kStruckRound && shared->struck_at > 0) {
        shown.recovered_ns = Clock::Real().Now() - shared->struck_at;
      }
      EXPECT_TRUE(job.leaves || r.params() == r.Anchor());
    }
  }
  absl::SNPrintF(shown.error, sizeof(shown.error), "%s", status.ToString());
  if (job.leaves && status.ok()) {
    EXPECT_EQ(r.edit().Leave(), absl::OkStatus());
  }
  if (status.ok()) {
    Show(r, shown);
  }
  // No rank leaves while another still needs it.
  ++shared->ended;
  const Deadline give_up = Deadline::After(20 * kSecond);
  while (shared->ended < job.survivors && !give_up.Passed(Clock::Real().Now())) {
    usleep(1000);
  }
}

std::vector<int> RunJob(const Job& job, const SharedMemory& shared) {
  RanksOptions options;
  options.transports = job.transports;
  options.timeout_ns = job.timeout_ns;
  return RunRankProcesses(
      job.grid.ranks(), options,
      [&](const std::shared_ptr<Communicator>& comm) { RunRank(job, comm, shared); });
}

void Die() {
  raise(SIGKILL);
}

// Expects that the ranks of these replicas have finished, with the same bits in each slot.
void ExpectAlike(const Job& job, const SharedMemory& shared, const std::vector<int>& left) {
  const int slots = job.grid.shards;
  for (const int replica : left) {
    for (int slot = 0; slot < slots; ++slot) {
      const Shown &shown = shared[replica * slots + slot], &first = shared[left[0] * slots + slot];
      EXPECT_STREQ(shown.error, "OK") << "rank " << replica * slots + slot;
      EXPECT_EQ(std::memcmp(shown.params, first.params, sizeof(first.params)), 0)
          << "rank " << replica * slots + slot;
    }
  }
}

// Expects that the replicas in `left` are alike, and compares each layer with a reference. In the reference, all replicas take part in rounds before `lost_in`, and only
// the replicas that are left in later rounds. In round `lost_in`, all replicas take part in layer l
// if l < counted. If `counted` is negative, the function determines it from the results.
void ExpectFinished(const Job& job, const SharedMemory& shared, const std::vector<int>& left,
                    int lost_in, int counted) {
  std::vector<int> all(static_cast<size_t>(job.grid.replicas));
  std::iota(all.begin(), all.end(), 0);
  const int slots = job.grid.shards;
  ExpectAlike(job, shared, left);
  for (const int replica : left) {
    for (int slot = 0; slot < slots; ++slot) {
      EXPECT_EQ(shared[replica * slots + slot].replicas, static_cast<int>(left.size()));
    }
  }
  for (int layer = 0; layer < kLayerCount; ++layer) {
    double least = 1;
    for (const bool counts : {false, true}) {
      if (counted >= 0 && counts != (layer < counted)) {
        continue;
      }
      EditReference want(Model().layer_counts);
      for (int round = 0; round < job.rounds; ++round) {
        want.Exchange(layer, round < lost_in || (round == lost_in && counts) ? all : left,
                      [&](int replica, int64_t i) { return Drift(replica, round, layer, i); });
      }
      double most = 0;
      const int64_t part = kElements / slots;
      for (int64_t i = 0; i < kElements; ++i) {
        const auto slot = static_cast<int>(i / part);
        most =
            std::max(most, std::abs(shared[left[0] * slots + slot].params[layer * part + i % part] -
                                    want.anchor(layer)[static_cast<size_t>(i)]));
      }
      least = std::min(least, most);
    }
    EXPECT_LT(least, 1e-5) << "layer " << layer;
  }
}

// Rank 2 ends another communicator because of rank 0, and dies. So its end is blamed on rank 0, which
// lives.
TEST(Loss, OfARankThatHasBlamedALivingOne) {
  RanksOptions options;
  options.transports = "shm";
  const std::vector<int> ends =
      RunRankProcesses(3, options, [](const std::shared_ptr<Communicator>& comm) {
        auto other = comm->Split(0, 0), world = comm->Split(0, 0);
        ASSERT_TRUE(other.ok() && world.ok());
        auto replicas = ReplicaWorld::Make(*world, {.replica = comm->rank(), .slot = 0}, 1, 0);
        ASSERT_TRUE(replicas.ok()) << replicas.status();
        if (comm->rank() == 2) {
          Blame blame;
          blame.rank = 0;
          blame.peer_id = comm->Members()[0].id;
          (*other)->EndWith(WithBlame(absl::AbortedError("rank 0 gave up"), blame));
          Die();
        }
        EXPECT_FALSE((*world)->Barrier().ok());
        EXPECT_EQ(BlameOf((*world)->status()).rank, 0) << (*world)->status();
        const absl::Status loss = LossOf(world->get());
        ASSERT_FALSE(loss.ok()) << "rank 2 is lost: " << (*world)->status();
        ASSERT_EQ((*replicas)->Shrink({loss}), absl::OkStatus());
        EXPECT_THAT(ReplicasOf((*replicas)->places()), ElementsAre(0, 1));
        EXPECT_EQ((*replicas)->comm()->Barrier(), absl::OkStatus());
      });
  EXPECT_EQ(ends[0], 0);
  EXPECT_EQ(ends[1], 0);
  EXPECT_TRUE(WIFSIGNALED(ends[2]));
}

TEST(Loss, BeforeTheExchange) {
  for (const char* transports : {"shm", "tcp"}) {
    SharedMemory shared;
    Job job;
    job.transports = transports;
    job.at = [](int rank, int round, int point) {
      if (rank == 2 && round == 1 && point == -1) {
        Die();
      }
    };
    const std::vector<int> ends = RunJob(job, shared);
    EXPECT_TRUE(WIFSIGNALED(ends[2]));
    ExpectFinished(job, shared, {0, 1, 3}, 1, 0);
    for (const int rank : {0, 1, 3}) {
      EXPECT_EQ(ends[static_cast<size_t>(rank)], 0);
      EXPECT_EQ(shared[rank].losses, 1);
      EXPECT_EQ(shared[rank].lost[0], 2);
      EXPECT_EQ(shared[rank].short_rounds, 0);
    }
  }
}

// After a loss, a call that comes too early is refused as before it, and the ranks go on.
TEST(Loss, BeforeCallsThatComeTooEarly) {
  SharedMemory shared;
  Job job;
  job.early = true;
  job.at = [](int rank, int round, int point) {
    if (rank == 2 && round == 1 && point == -1) {
      Die();
    }
  };
  const std::vector<int> ends = RunJob(job, shared);
  EXPECT_TRUE(WIFSIGNALED(ends[2]));
  ExpectFinished(job, shared, {0, 1, 3}, 1, 0);
}

// The victim dies when its layer 1 is over, before it permits the exchange of layer 3.
TEST(Loss, InTheMiddleOfTheLayers) {
  SharedMemory shared;
  Job job;
  job.options.prefetch = 0;
  job.at = [](int rank, int round, int point) {
    if (rank == 0 && round == 2 && point == 2) {
      usleep(50'000);  // the others wait for layer 2
      Die();
    }
  };
  RunJob(job, shared);
  ExpectFinished(job, shared, {1, 2, 3}, 2, 2);
  EXPECT_EQ(shared[1].short_rounds, 1);
}

// Kills a thread's process after a random time.
void DieWithin(int64_t most_us, uint64_t seed) {
  const auto us = static_cast<int64_t>((Noise(static_cast<int64_t>(seed), 77) + 1) / 2 *
                                       static_cast<float>(most_us));
  After(us, Die);
}

// At whatever point a replica dies, the others have the same bits. Each layer either counts the
// replica on all of them or on none.
TEST(Loss, AtRandomTimes) {
  constexpr int kKills = 36;
  int64_t shortened = 0;
  for (int seed = 0; seed < kKills; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    SharedMemory shared;
    Job job;
    job.transports = seed % 3 == 2 ? "tcp" : "shm";
    job.options = Finishing(seed % 2 == 0 ? Weighed() : Judged());
    job.rounds = 3;
    const int victim = seed % 4;
    job.at = [&](int rank, int round, int point) {
      if (rank == victim && round == 1 && point == -1) {
        DieWithin(2500, static_cast<uint64_t>(seed));
      }
    };
    RunJob(job, shared);
    std::vector<int> left = {0, 1, 2, 3};
    left.erase(left.begin() + victim);
    // The victim may have come to the end of the round, and even of the last one. If it has done its
    // part of the last round, the others may end before they notice the loss.
    const int lost_in = shared[victim].rounds == 1 ? 1 : 2;
    const bool unnoticed = lost_in == 2 && std::any_of(left.begin(), left.end(), [&](int replica) {
                             return shared[replica].losses == 0;
                           });
    if (unnoticed) {
      ExpectAlike(job, shared, left);
    } else {
      ExpectFinished(job, shared, left, lost_in, -1);
    }
    shortened += shared[left[0]].short_rounds;
    if (HasFailure()) {
      break;
    }
  }
  EXPECT_GT(shortened, 0) << "no replica died in the middle of layers";
}

// Returns the replicas that are left without that of rank `victim`.
std::vector<int> Without(const Job& job, int victim) {
  std::vector<int> left(static_cast<size_t>(job.grid.replicas));
  std::iota(left.begin(), left.end(), 0);
  left.erase(left.begin() + victim / job.grid.shards);
  return left;
}

// A replica that dies before or in a save: those that are left save, and go on. Each checkpoint is
// whole. (Before, the survivors of 25 of 25 such kills ended with the save's error.)
TEST(Loss, BeforeAndDuringSaves) {
  constexpr int kKills = 16;
  int killed = 0;
  for (int seed = 0; seed < kKills && !HasFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const Directory directory;
    SharedMemory shared;
    Job job;
    job.saves = &directory;
    job.kind = seed % 2 == 0 ? CheckpointKind::kPortable : CheckpointKind::kExact;
    job.way = kWays[seed / 2 % 4];
    job.transports = seed % 3 == 2 ? "tcp" : "shm";
    job.grid = seed % 4 == 3 ? Grid{2, 3} : Grid{1, 4};
    job.survivors = seed % 4 == 3 ? 5 : 3;
    const int victim = seed * 5 % job.grid.ranks();
    job.at = [&](int rank, int round, int point) {
      if (rank == victim && round == 1 && point == kSave) {
        DieWithin(seed < 4 ? 0 : 8000, static_cast<uint64_t>(seed));
      }
    };
    const std::vector<int> ends = RunJob(job, shared);
    if (!WIFSIGNALED(ends[static_cast<size_t>(victim)])) {
      continue;  // on a busy machine the run was over before the kill
    }
    ++killed;
    ExpectAlike(job, shared, Without(job, victim));
    for (int round = 0; round < job.rounds; ++round) {
      const auto whole = CheckpointReader::Open(directory.File(absl::StrCat(round, ".ckpt")));
      EXPECT_TRUE(whole.ok()) << whole.status();
    }
    for (const std::string& file : directory.Files()) {
      EXPECT_THAT(file, Not(HasSubstr(".tmp")));
    }
  }
  EXPECT_GE(killed, kKills / 2);
}

// Stops this process when the file exists, for 3 s.
void StopWhenThereIs(const std::string& file) {
  std::thread([file] {
    while (access(file.c_str(), F_OK) != 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    if (fork() == 0) {
      sleep(3);
      kill(getppid(), SIGCONT);
      _exit(0);
    }
    kill(getpid(), SIGSTOP);
  }).detach();
}

// The replica that writes the file is stopped in the middle of a save. The others write it again,
// although the stopped process still has the lock. (Before, they ended with "somebody else is
// writing".) When it wakes up, it changes nothing.
TEST(Loss, AWriterThatIsStoppedInASave) {
  int stopped = 0;
  for (int attempt = 0; attempt < 3 && stopped == 0; ++attempt) {
    const Directory directory;
    SharedMemory shared;
    Job job;
    job.saves = &directory;
    job.options.silence = 0.5;
    job.at = [&](int rank, int round, int point) {
      if (rank == 0 && round == 1 && point == kSave) {
        StopWhenThereIs(directory.File("1.ckpt.tmp"));
      }
    };
    RunJob(job, shared);
    if (shared[1].losses == 0) {
      continue;  // the save was over before the stop
    }
    ++stopped;
    ExpectAlike(job, shared, Without(job, 0));
    for (int round = 0; round < job.rounds; ++round) {
      const auto whole = CheckpointReader::Open(directory.File(absl::StrCat(round, ".ckpt")));
      EXPECT_TRUE(whole.ok()) << whole.status();
    }
    for (const std::string& file : directory.Files()) {
      EXPECT_THAT(file, Not(HasSubstr(".tmp")));
    }
  }
  EXPECT_GT(stopped, 0);
}

TEST(Loss, DuringReductions) {
  constexpr int kKills = 24;
  int killed = 0;
  for (int seed = 0; seed < kKills && !HasFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    SharedMemory shared;
    Job job;
    job.reductions = 20;
    job.transports = seed % 3 == 2 ? "tcp" : "shm";
    job.grid = seed % 4 == 3 ? Grid{2, 3} : Grid{1, 4};
    job.survivors = seed % 4 == 3 ? 5 : 3;
    const int victim = seed * 5 % job.grid.ranks();
    job.at = [&](int rank, int round, int point) {
      if (rank == victim && round == 1 && point == kSave) {
        DieWithin(1500, static_cast<uint64_t>(seed));
      }
    };
    const std::vector<int> ends = RunJob(job, shared);
    if (!WIFSIGNALED(ends[static_cast<size_t>(victim)])) {
      continue;  // on a busy machine the run was over before the kill
    }
    ++killed;
    ExpectAlike(job, shared, Without(job, victim));
  }
  EXPECT_GE(killed, kKills / 2);
}

// A replica of two ranks is whole or gone.
TEST(Loss, OfARankOfAReplicaOfTwo) {
  for (const int point : {-1, 2}) {
    SCOPED_TRACE(absl::StrCat("point ", point));
    SharedMemory shared;
    Job job;
    job.grid = {2, 3};
    job.survivors = 5;
    job.options.prefetch = 0;
    job.at = [point](int rank, int round, int at) {
      if (rank == 3 && round == 1 && at == point) {
        usleep(50'000);  // the others come to where they wait for this rank
        Die();
      }
    };
    RunJob(job, shared);
    ExpectFinished(job, shared, {0, 2}, 1, std::max(point, 0));
    EXPECT_EQ(shared[2].rounds, 1);
    EXPECT_THAT(shared[2].error, HasSubstr("replica 1 has left: rank 1 of it was lost"));
    for (const int rank : {0, 1, 4, 5}) {
      EXPECT_EQ(shared[rank].losses, 1);
      EXPECT_EQ(shared[rank].lost[0], 1);
    }
  }
}

TEST(Loss, OfTwoReplicasInOneRound) {
  for (const bool together : {true, false}) {
    SharedMemory shared;
    Job job;
    job.survivors = 2;
    job.options.prefetch = 0;
    job.at = [together](int rank, int round, int point) {
      if (round == 1 && ((rank == 1 && point == 2) || (rank == 2 && point == (together ? 2 : 3)))) {
        Die();
      }
    };
    RunJob(job, shared);
    const int third = shared[0].short_rounds == 1 ? 2 : 3;
    EXPECT_EQ(third, 2);
    EXPECT_EQ(shared[0].losses, 2);
    for (const int rank : {0, 3}) {
      EXPECT_STREQ(shared[rank].error, "OK");
      EXPECT_EQ(shared[rank].replicas, 2);
    }
    EXPECT_EQ(std::memcmp(shared[0].params, shared[3].params, sizeof(shared[0].params)), 0);
    if (together) {
      ExpectFinished(job, shared, {0, 3}, 1, 2);
    }
  }
}

// The last replica that is left goes on alone.
TEST(Loss, OfAllOthers) {
  SharedMemory shared;
  Job job;
  job.survivors = 1;
  job.at = [](int rank, int round, int point) {
    if (round == 1 && rank < 3 && point == -1) {
      Die();
    }
  };
  RunJob(job, shared);
  ExpectFinished(job, shared, {3}, 1, 0);
}

// All methods with an anchor: the replicas that are left stay equal, and the library compares their
// anchors at each rendezvous.
TEST(Loss, WithOtherMethods) {
  std::vector<NamedOptions> methods = OtherMethods();
  NamedOptions& by_time = methods.emplace_back(NamedOptions{"by time", Weighed()});
  by_time.options.use_async = true;
  by_time.options.local_sgd_sync_time = 1e-3;
  by_time.options.min_total_global_steps = 1;
  NamedOptions& callers = methods.emplace_back(NamedOptions{"the caller's", Averaging()});
  callers.options.outer_momentum = EditOptions().outer_momentum;
  callers.options.outer_lr = EditOptions().outer_lr;
  callers.options.outer_optimizer = OuterKind::kCallback;
  callers.options.outer_step = [](void*, int32_t, int64_t, float* anchor, const float* grad,
                                  size_t count) {
    std::transform(anchor, anchor + count, grad, anchor,
                   [](float a, float g) { return a - g / 2; });
    return 0;
  };
  for (const NamedOptions& method : methods) {
    for (int seed = 0; seed < 2; ++seed) {
      SCOPED_TRACE(absl::StrCat(method.name, ", seed ", seed));
      SharedMemory shared;
      Job job;
      job.options = Finishing(method.options);
      job.rounds = 8;
      job.at = [&](int rank, int round, int point) {
        if (rank == 1 && round == 3 && point == -1) {
          DieWithin(2000, static_cast<uint64_t>(seed));
        }
      };
      job.leaves = true;
      RunJob(job, shared);
      for (const int rank : {0, 2, 3}) {
        EXPECT_STREQ(shared[rank].error, "OK");
        EXPECT_EQ(shared[rank].replicas, 3);
        EXPECT_EQ(std::memcmp(shared[rank].params, shared[0].params, sizeof(shared[0].params)), 0);
      }
    }
  }
}

// Replicas of different speed close rounds without late ones. One of them dies, anywhere in a round
// or in a decision about one.
TEST(Loss, WhileRoundsAreClosedEarly) {
  int64_t late = 0, losses = 0;
  for (int seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    SharedMemory shared;
    Job job;
    const bool pairs = seed % 3 == 2;
    job.grid = pairs ? Grid{2, 3} : Grid{1, 4};
    job.transports = seed % 4 == 3 ? "tcp" : "shm";
    job.options.quorum = 1 + seed % 3;
    job.options.late = static_cast<Late>(seed % 3);
    job.rounds = 8;
    job.survivors = pairs ? 5 : 3;
    job.leaves = true;
    const int slots = job.grid.shards, victim = seed % job.grid.ranks();
    job.at = [&](int rank, int round, int point) {
      if (point != -1) {
        return;
      }
      if (rank == victim && round == 3) {
        DieWithin(100'000, static_cast<uint64_t>(seed));
      }
      const float part = (Noise(seed, rank / slots, round) + 1) / 2;
      // The speed of the replica.
      usleep(static_cast<useconds_t>(part * 60'000 * static_cast<float>(1 + rank / slots)));
    };
    RunJob(job, shared);
    const int dead = victim / slots, first = dead == 0 ? slots : 0;
    for (int rank = 0; rank < job.grid.ranks(); ++rank) {
      const Shown &shown = shared[rank], &other = shared[first + rank % slots];
      if (rank / slots == dead) {
        continue;
      }
      EXPECT_STREQ(shown.error, "OK") << "rank " << rank;
      EXPECT_EQ(shown.rounds, job.rounds);
      EXPECT_EQ(shown.replicas, job.grid.replicas - 1);
      EXPECT_EQ(std::memcmp(shown.params, other.params, sizeof(other.params)), 0);
      late += shown.missed;
      losses += shown.losses;
    }
  }
  EXPECT_GT(late, 0);
  EXPECT_GT(losses, 0);
}

// A replica that is stopped is left out after the time limit, and learns of this when it continues.
TEST(Loss, OfAStoppedReplica) {
  SharedMemory shared;
  Job job;
  job.timeout_ns = 2 * kSecond;
  job.survivors = 4;
  job.rounds = 6;
  std::atomic<int>& ended = shared->ended;
  job.at = [&ended](int rank, int round, int point) {
    if (rank == 1 && round == 2 && point == -1) {
      StopUntil([&ended] { return ended >= 3; });
    }
  };
  RunJob(job, shared);
  ExpectFinished(job, shared, {0, 2, 3}, 2, 0);
  EXPECT_LT(shared[0].longest_ns, 8 * kSecond);
  // When the replica wakes, it first learns either that the others went on, or the error of their
  // common call.
  EXPECT_THAT(shared[1].error, AnyOf(HasSubstr("OUT_OF_RANGE"), HasSubstr("waiting for rank 1")));
}

// Prints the times of docs/lab/elastic.md (--gtest_also_run_disabled_tests).
TEST(Loss, DISABLED_TheOthersGoOnSoon) {
  for (const char* transports : {"shm", "tcp"}) {
    for (const int point : {-1, 2}) {
      std::vector<double> ms;
      for (int repetition = 0; repetition < 5; ++repetition) {
        SharedMemory shared;
        Job job;
        job.transports = transports;
        job.options.prefetch = 0;
        job.at = [&](int rank, int round, int at) {
          if (rank == 1 && round == kStruckRound && at == point) {
            shared->struck_at = Clock::Real().Now();
            Die();
          }
        };
        RunJob(job, shared);
        for (const int rank : {0, 2, 3}) {
          EXPECT_STREQ(shared[rank].error, "OK");
          ms.push_back(static_cast<double>(shared[rank].recovered_ns) / kMillisecond);
        }
      }
      std::sort(ms.begin(), ms.end());
      EXPECT_LT(ms.back(), 5000);
      absl::PrintF(
          "%s, killed %s: the round is over after %.0f ms (median of 5 kills, 3 "
          "ranks), at most %.0f ms\n",
          transports, point < 0 ? "before the exchange" : "in the middle of layers",
          ms[ms.size() / 2], ms.back());
      std::fflush(stdout);  // before the next fork
    }
  }
}

}  // namespace
}  // namespace entrain
