// Replicas join others that train (option admit). Ranks are processes, as in a real job: some are
// killed, and others come. Their results lie in memory that they share with the test.
//
// Each rank trains until the replicas have met `rounds_after` times in the number that the test
// expects at the end. It logs every rendezvous, so that the test can compute what must come out.

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
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
#include "lib/comm/runtime.h"
#include "lib/store/store.h"
#include "tests/support/processes.h"
#include "tests/train/edit_reference.h"
#include "tests/train/replicas.h"

namespace entrain {
namespace {

using testing::HasSubstr;

constexpr int kLayerCount = 5;
constexpr int kMostRanks = 8, kMostRounds = 4000;
constexpr int64_t kElements = 8000;
constexpr int64_t kMost = kLayerCount * kElements;

struct Met {
  int32_t replica = -1;  // -1: the end of the row
  int64_t steps = 0, since = 0;
};

// What a rank shows.
struct Shown {
  std::atomic<int64_t> rounds;  // that it has logged
  std::array<std::array<Met, kMostRanks>, kMostRounds> log;
  int replica;
  size_t replicas;
  int64_t joins, losses, short_rounds, first_round;
  int64_t began_joining_at, joined_at, counted_at;
  char error[512];
  float params[kMost];
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

EditOptions Open(EditOptions options) {
  options.on_loss = OnLoss::kFinish;
  options.admit = Admit::kExchange;
  options.local_sgd_sync_interval = 4;
  return options;
}

// A job. Process p is a rank of the members' mesh if p < members * shards. The others join.
struct Job {
  int members = 3, newcomers = 1, shards = 1;
  const char* transports = "shm";
  EditOptions options = Open(Weighed());
  EditOptions options_of_newcomers = Open(Weighed());
  std::vector<int> expected = {0, 2,
                               3};  // which take part in the last rendezvous: process / shards
  int rounds_after = 3;             // such rendezvous
  int ends = 3;                     // processes that come to the end
  int64_t timeout_ns = 30 * kSecond, wait_ns = 30 * kSecond;
  // When a newcomer begins to join: as many ranks are gone.
  std::function<int(int process)> comes_after = [](int) { return 0; };
  // Called by each rank after each exchange, with the number of exchanges that it has seen.
  std::function<void(int process, int64_t seen)> at = {};
  std::function<void(int process)> at_joining = {};
  std::function<void(int process, EditOptions* options)> tweak = {};
  bool leaves = false;  // ends with Leave

  int processes() const { return (members + newcomers) * shards; }
  bool joins(int process) const { return process >= members * shards; }
};

float Drift(int replica, int64_t step, int layer, int64_t i) {
  return Noise(replica, step, layer, i) / 256;
}

void Die(const SharedMemory& shared) {
  ++shared->gone;
  raise(SIGKILL);
}

std::shared_ptr<Communicator> Connect(const Job& job, const std::shared_ptr<Store>& store,
                                      int process) {
  RuntimeOptions runtime_options;
  runtime_options.transports = job.transports;
  auto runtime = Runtime::Create(runtime_options);
  EXPECT_TRUE(runtime.ok()) << runtime.status();
  const int of_members = job.members * job.shards;
  const int beyond = (process - of_members) / job.shards;  // of a newcomer: which one
  CommOptions options;
  options.runtime = *runtime;
  options.store = store;
  options.name = job.joins(process) ? absl::StrCat("newcomer", beyond) : "members";
  options.rank = job.joins(process) ? (process - of_members) % job.shards : process;
  options.size = job.joins(process) ? job.shards : of_members;
  options.timeout_ns = job.timeout_ns;
  auto comm = Communicator::Create(options);
  EXPECT_TRUE(comm.ok()) << comm.status();
  return *std::move(comm);
}

// Logs the rendezvous that is over. Returns which processes took part in it: each says its number
// as the metric.
std::vector<int> Log(Replica& r, Shown& shown) {
  const EditInfo info = r.edit().info();
  auto& row = shown.log[static_cast<size_t>(info.rendezvous - 1)];
  std::vector<int> processes;
  size_t at = 0;
  for (int replica = 0; replica < info.most_replicas; ++replica) {
    if (const auto standing = r.edit().StandingOf(replica); standing.ok()) {
      row[at++] = {replica, static_cast<int64_t>(standing->steps),
                   static_cast<int64_t>(standing->steps_since)};
      const double process = standing->metric_sum / standing->metric_weight;
      processes.push_back(standing->metric_weight > 0 ? static_cast<int>(process) : -1);
    }
  }
  std::sort(processes.begin(), processes.end());
  shown.rounds = info.rendezvous;
  return processes;
}

absl::Status Train(const Job& job, const SharedMemory& shared, int process, Replica& r) {
  Shown& shown = shared[process];
  const Deadline give_up = Deadline::After(60 * kSecond);
  int64_t seen = 0;
  int complete = 0;  // rendezvous of the expected number of replicas
  while (true) {
    ENTRAIN_ASSIGN_OR_RETURN(const bool began, r.edit().BeginForward(true, true));
    for (int l = 0; l < kLayerCount; ++l) {
      ENTRAIN_RETURN_IF_ERROR(r.edit().WaitLayer(l));
    }
    if (const int64_t before = shown.rounds; began || r.edit().info().rendezvous > before) {
      if (r.edit().info().rendezvous > before) {
        complete = Log(r, shown) == job.expected ? complete + 1 : 0;
        if (job.joins(process) && shown.counted_at == 0) {
          shown.counted_at = Clock::Real().Now();
          shown.first_round = shown.rounds;
        }
        if (complete == job.rounds_after) {
          return absl::OkStatus();
        }
        ++seen;
        if (job.at) {
          job.at(process, seen);
        }
      }
    }
    if (give_up.Passed(Clock::Real().Now())) {
      return absl::DeadlineExceededError("the replicas never met in the expected number");
    }
    const int64_t step = r.edit().info().steps;
    const int replica = r.edit().info().replica;
    r.ForEach(r.params(),
              [&](int l, int64_t i, float& value) { value += Drift(replica, step, l, i); });
    ENTRAIN_RETURN_IF_ERROR(r.edit().Record(0, process / job.shards, 1));
    ENTRAIN_RETURN_IF_ERROR(r.edit().EndStep());
    usleep(500);  // a step of training
  }
}

absl::Status RunRank(const Job& job, const SharedMemory& shared,
                     const std::shared_ptr<Store>& store, int process) {
  Shown& shown = shared[process];
  const auto comm = Connect(job, store, process);
  MeshConfig mesh_config;
  mesh_config.lengths[static_cast<size_t>(Axis::kShard)] = job.shards;
  ENTRAIN_ASSIGN_OR_RETURN(const auto mesh, Mesh::Create(comm, mesh_config));
  ShardConfig config;
  config.layer_counts.assign(kLayerCount, kElements);
  Replica r(mesh, config);
  EditOptions options = job.joins(process) ? job.options_of_newcomers : job.options;
  if (job.tweak) {
    job.tweak(process, &options);
  }
  options.admit_store = [store](const Stop&) { return store; };
  if (job.joins(process)) {
    // What the newcomer has must not matter.
    r.ForEach(r.params(), [](int, int64_t, float& value) { value = 7; });
    while (shared->gone < job.comes_after(process)) {
      usleep(1000);
    }
    shown.began_joining_at = Clock::Real().Now();
    if (job.at_joining) {
      job.at_joining(process);
    }
    ENTRAIN_RETURN_IF_ERROR(r.Join(options, job.wait_ns));
    shown.joined_at = Clock::Real().Now();
  } else {
    r.Edit(options);
  }
  shown.rounds = r.edit().info().rendezvous;
  ENTRAIN_RETURN_IF_ERROR(Train(job, shared, process, r));
  if (job.leaves) {
    ENTRAIN_RETURN_IF_ERROR(r.edit().Leave());
  }
  const EditInfo info = r.edit().info();
  shown.replica = info.replica;
  shown.replicas = static_cast<size_t>(info.replicas);
  shown.joins = info.joins;
  shown.losses = info.losses;
  shown.short_rounds = info.short_rounds;
  EXPECT_EQ(r.params(), r.Anchor());
  std::copy(r.params().begin(), r.params().end(), shown.params);
  // No rank leaves while another still needs it.
  ++shared->ended;
  const Deadline give_up = Deadline::After(20 * kSecond);
  while (shared->ended < job.ends && !give_up.Passed(Clock::Real().Now())) {
    usleep(1000);
  }
  return absl::OkStatus();
}

void RunProcess(const Job& job, const SharedMemory& shared, const std::string& url, int process) {
  auto store = OpenStore(url, "", {Deadline::After(5 * kSecond)});
  ASSERT_TRUE(store.ok()) << store.status();
  const absl::Status status = RunRank(job, shared, *std::move(store), process);
  absl::SNPrintF(shared[process].error, sizeof(Shown::error), "%s", status.ToString());
}

// Returns the status of each process as waitpid gives it.
std::vector<int> RunJob(const Job& job, const SharedMemory& shared) {
  std::string directory = (std::filesystem::temp_directory_path() / "entrain_XXXXXX").string();
  EXPECT_NE(mkdtemp(directory.data()), nullptr);
  std::vector<pid_t> children;
  for (int process = 0; process < job.processes(); ++process) {
    const pid_t child = fork();
    EXPECT_GE(child, 0);
    if (child == 0) {
      RunProcess(job, shared, absl::StrCat("file:", directory), process);
      std::fflush(nullptr);
      _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    children.push_back(child);
  }
  std::vector<int> ends;
  for (const pid_t child : children) {
    ends.emplace_back(-1);
    EXPECT_EQ(waitpid(child, &ends.back(), 0), child);
  }
  std::filesystem::remove_all(directory);
  return ends;
}

// Expects that these processes came to the end with the same bits in each slot.
void ExpectAlike(const Job& job, const SharedMemory& shared, const std::vector<int>& processes) {
  for (const int process : processes) {
    const Shown& shown = shared[process];
    const Shown& first = shared[process % job.shards + processes[0] / job.shards * job.shards];
    EXPECT_STREQ(shown.error, "OK") << "process " << process;
    EXPECT_EQ(shown.replicas, job.expected.size()) << "process " << process;
    EXPECT_EQ(std::memcmp(shown.params, first.params, sizeof(first.params)), 0)
        << "process " << process;
  }
}

// Expects the result of a reference that has the exchanges of the log of `process`, which saw all.
void ExpectReference(const Job& job, const SharedMemory& shared, int process) {
  EditReference want(std::vector<int64_t>(kLayerCount, kElements));
  const Shown& shown = shared[process];
  for (int layer = 0; layer < kLayerCount; ++layer) {
    for (int64_t round = 0; round < shown.rounds; ++round) {
      std::vector<int> replicas;
      std::array<Met, kMostRanks> of{};
      for (const Met& met : shown.log[static_cast<size_t>(round)]) {
        if (met.replica >= 0 && met.since > 0) {
          replicas.push_back(met.replica);
          of[static_cast<size_t>(met.replica)] = met;
        }
      }
      std::vector<std::vector<float>> drifts(kMostRanks);
      for (const int replica : replicas) {
        const Met& met = of[static_cast<size_t>(replica)];
        auto& drift = drifts[static_cast<size_t>(replica)];
        drift.assign(kElements, 0);
        for (int64_t step = met.steps - met.since; step < met.steps; ++step) {
          for (int64_t i = 0; i < kElements; ++i) {
            drift[static_cast<size_t>(i)] += Drift(replica, step, layer, i);
          }
        }
      }
      want.Exchange(layer, replicas, [&](int replica, int64_t i) {
        return drifts[static_cast<size_t>(replica)][static_cast<size_t>(i)];
      });
    }
    double most = 0;
    const int64_t part = kElements / job.shards;
    for (int64_t i = 0; i < kElements; ++i) {
      const auto slot = static_cast<int>(i / part);
      most = std::max(most, std::abs(shared[process + slot].params[layer * part + i % part] -
                                     want.anchor(layer)[static_cast<size_t>(i)]));
    }
    EXPECT_LT(most, 1e-4) << "layer " << layer;
  }
}

// A replica is killed, and another one takes its place. All have the same bits, and the result is
// that of a reference with the replicas that took part in each exchange.
TEST(Join, AReplacement) {
  for (const char* transports : {"shm", "tcp"}) {
    SCOPED_TRACE(transports);
    SharedMemory shared;
    Job job;
    job.transports = transports;
    job.comes_after = [](int) { return 1; };
    job.at = [&](int process, int64_t seen) {
      if (process == 1 && seen == 2) {
        Die(shared);
      }
    };
    const std::vector<int> ends = RunJob(job, shared);
    EXPECT_TRUE(WIFSIGNALED(ends[1]));
    ExpectAlike(job, shared, {0, 2, 3});
    ExpectReference(job, shared, 0);
    EXPECT_EQ(shared[3].replica, 1) << "the number of the replica that was lost";
    EXPECT_EQ(shared[0].joins, 1);
    EXPECT_EQ(shared[0].losses, 1);
    EXPECT_EQ(shared[3].losses, 0);
    EXPECT_EQ(shared[3].rounds, shared[0].rounds);
    EXPECT_GT(shared[3].first_round, 2);
  }
}

// Prints the times of docs/lab/elastic.md.
TEST(Join, IsSoonOver) {
  for (const char* transports : {"shm", "tcp"}) {
    for (const int members : {3, 7}) {
      std::vector<double> taken_in, counted;
      for (int repetition = 0; repetition < 3; ++repetition) {
        SharedMemory shared;
        Job job;
        job.transports = transports;
        job.members = members;
        job.ends = members + 1;
        job.options.most_replicas = job.options_of_newcomers.most_replicas = members + 1;
        job.expected.resize(static_cast<size_t>(members) + 1);
        std::iota(job.expected.begin(), job.expected.end(), 0);
        RunJob(job, shared);
        const Shown& newcomer = shared[members];
        EXPECT_STREQ(newcomer.error, "OK");
        const auto ms = [&](int64_t at) {
          return static_cast<double>(at - newcomer.began_joining_at) / kMillisecond;
        };
        taken_in.push_back(ms(newcomer.joined_at));
        counted.push_back(ms(newcomer.counted_at));
      }
      std::sort(taken_in.begin(), taken_in.end());
      std::sort(counted.begin(), counted.end());
      absl::PrintF(
          "%s, %d members: taken in after %.0f ms, first counted round over after %.0f ms\n",
          transports, members, taken_in[1], counted[1]);
      std::fflush(stdout);  // before the next fork
    }
  }
}

// Two newcomers come at the same time, and the job is larger than it was.
TEST(Join, TwoMoreThanThereWere) {
  SharedMemory shared;
  Job job;
  job.members = 2;
  job.newcomers = 2;
  job.options.most_replicas = job.options_of_newcomers.most_replicas = 4;
  job.expected = {0, 1, 2, 3};
  job.ends = 4;
  RunJob(job, shared);
  ExpectAlike(job, shared, {0, 1, 2, 3});
  ExpectReference(job, shared, 0);
  EXPECT_EQ(shared[0].losses, 0);
  EXPECT_EQ(shared[2].replica + shared[3].replica, 2 + 3);
}

// A replica of two ranks joins as a whole.
TEST(Join, AReplicaOfTwoRanks) {
  SharedMemory shared;
  Job job;
  job.shards = 2;
  job.ends = 6;
  job.comes_after = [](int) { return 1; };
  job.at = [&](int process, int64_t seen) {
    if (process == 3 && seen == 2) {
      Die(shared);
    }
  };
  RunJob(job, shared);
  ExpectAlike(job, shared, {0, 1, 4, 5, 6, 7});
  ExpectReference(job, shared, 0);
  EXPECT_EQ(shared[6].replica, 1);
  EXPECT_EQ(shared[7].replica, 1);
  EXPECT_THAT(shared[2].error, HasSubstr("replica 1 has left"));
}

// All methods for which a loss is not the end.
TEST(Join, WithOtherMethods) {
  std::vector<NamedOptions> methods = OtherMethods();
  methods.push_back({"judged", Judged()});
  for (const NamedOptions& method : methods) {
    SCOPED_TRACE(method.name);
    SharedMemory shared;
    Job job;
    job.options = job.options_of_newcomers = Open(method.options);
    job.leaves = true;
    job.expected = {0, 1, 3};
    job.comes_after = [](int) { return 1; };
    job.at = [&](int process, int64_t seen) {
      if (process == 2 && seen == 2) {
        Die(shared);
      }
    };
    RunJob(job, shared);
    ExpectAlike(job, shared, {0, 1, 3});
    EXPECT_EQ(shared[3].replica, 2);
  }
}

TEST(Join, ByTime) {
  SharedMemory shared;
  Job job;
  job.options.use_async = true;
  job.options.local_sgd_sync_interval = 1;
  job.options.local_sgd_sync_time = 5e-3;
  job.options.min_total_global_steps = 1;
  job.options_of_newcomers = job.options;
  job.leaves = true;
  job.comes_after = [](int) { return 1; };
  job.at = [&](int process, int64_t seen) {
    if (process == 1 && seen == 2) {
      Die(shared);
    }
  };
  RunJob(job, shared);
  ExpectAlike(job, shared, {0, 2, 3});
  EXPECT_EQ(shared[3].replica, 1);
}

// Kills this process after a random time.
void DieWithin(const SharedMemory& shared, int64_t most_us, uint64_t seed) {
  const auto us = static_cast<int64_t>((Noise(static_cast<int64_t>(seed), 77) + 1) / 2 *
                                       static_cast<float>(most_us));
  After(us, [&shared] { Die(shared); });
}

// Wherever in its admission a newcomer dies, the others go on, and the next newcomer is taken in.
TEST(Join, ANewcomerThatDies) {
  for (int seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    SharedMemory shared;
    Job job;
    job.transports = seed % 3 == 2 ? "tcp" : "shm";
    job.members = 2;
    job.newcomers = 2;
    job.ends = 3;
    job.expected = {0, 1, 3};
    job.options.most_replicas = job.options_of_newcomers.most_replicas = 3;
    job.comes_after = [](int process) { return process == 3 ? 1 : 0; };
    job.at_joining = [&](int process) {
      if (process == 2) {
        DieWithin(shared, 60'000, static_cast<uint64_t>(seed));
      }
    };
    RunJob(job, shared);
    ExpectAlike(job, shared, {0, 1, 3});
    if (shared[0].short_rounds == 0) {  // else it has died in the middle of a round
      ExpectReference(job, shared, 0);
    }
    if (HasFailure()) {
      break;
    }
  }
}

// Wherever in the admission a member dies, the others have the same members, and the newcomer comes
// in.
TEST(Join, AMemberThatDiesMeanwhile) {
  for (int seed = 0; seed < 15; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    SharedMemory shared;
    Job job;
    job.transports = seed % 3 == 2 ? "tcp" : "shm";
    job.members = 3;
    job.options.most_replicas = job.options_of_newcomers.most_replicas = 4;
    const int victim = seed % 3;
    std::vector<int> left = {0, 1, 2, 3};
    left.erase(left.begin() + victim);
    job.expected = left;
    job.at_joining = [&](int) { shared->joining = 1; };
    job.at = [&, dying = false](int process, int64_t) mutable {
      if (process == victim && shared->joining > 0 && !std::exchange(dying, true)) {
        DieWithin(shared, 40'000, static_cast<uint64_t>(seed));
      }
    };
    RunJob(job, shared);
    ExpectAlike(job, shared, left);
    if (shared[left[0]].short_rounds == 0) {  // else some layers have counted it, and others not
      ExpectReference(job, shared, left[0]);
    }
    if (HasFailure()) {
      break;
    }
  }
}

// Options that differ are named on the newcomer, and the others go on.
TEST(Join, OtherOptionsAreRefused) {
  SharedMemory shared;
  Job job;
  job.members = 2;
  job.newcomers = 2;
  job.expected = {0, 1, 3};
  job.options.most_replicas = job.options_of_newcomers.most_replicas = 3;
  job.tweak = [](int process, EditOptions* options) {
    if (process == 2) {
      options->outer_lr = 0.25;
    }
  };
  job.at_joining = [&](int process) {
    if (process == 3) {
      while (shared[2].error[0] == 0) {
        usleep(1000);
      }
    }
  };
  RunJob(job, shared);
  EXPECT_THAT(shared[2].error, HasSubstr("outer_lr: 0.7 on rank 0, 0.25 on rank 2"));
  ExpectAlike(job, shared, {0, 1, 3});
}

TEST(Join, ARunBeginsWithTwoReplicas) {
  ShardConfig layers;
  layers.layer_counts.assign(1, kElements);
  RunReplicas({1, 1}, layers, [](Replica& r) {
    EXPECT_THAT(
        std::string(
            LayerSync::Create(r.mesh(), r.shared_shards(), Job().options).status().message()),
        HasSubstr("admit: 1 (exchange) needs a mesh of at least 2 replicas"));
  });
}

// A newcomer for which there is no room waits, and its error says what was missing.
TEST(Join, WithoutRoom) {
  SharedMemory shared;
  Job job;
  job.expected = {0, 1, 2};
  job.rounds_after = 100;
  job.wait_ns = kSecond / 10;
  RunJob(job, shared);
  EXPECT_THAT(shared[3].error, HasSubstr("DEADLINE_EXCEEDED"));
  EXPECT_THAT(shared[3].error, HasSubstr("entrain_comm_grow"));
  ExpectAlike(job, shared, {0, 1, 2});
}

}  // namespace
}  // namespace entrain
