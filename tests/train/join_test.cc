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
#include <string>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/status.h"
#include "lib/comm/runtime.h"
#include "lib/store/store.h"
#include "tests/train/edit_reference.h"
#include "tests/train/replicas.h"

namespace entrain {
namespace {

using testing::HasSubstr;

constexpr int kLayerCount = 5;
constexpr int kMostRanks = 8, kMostRounds = 4000;
constexpr int64_t kElements = 30'000;
constexpr int64_t kMost = kLayerCount * kElements;

struct Met {
  int32_t replica = -1;  // -1: the end of the row
  int64_t steps = 0, since = 0;
};

// What a rank shows.
struct Shown {
  std::atomic<int64_t> rounds;  // that it has logged
  std::array<std::array<Met, kMostRanks>, kMostRounds> log;
  int replica, replicas;
  int64_t joins, losses, rendezvous, first_round;
  int64_t began_joining_at, joined_at, counted_at;
  char error[512];
  float params[kMost];
};
struct Shared {
  std::array<Shown, kMostRanks> ranks;
  std::atomic<int> gone;   // ranks that have killed themselves, or are about to
  std::atomic<int> ended;  // ranks that have come to the end
};

class SharedMemory {
 public:
  SharedMemory()
      : memory_(new (mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Shared()) {}
  ~SharedMemory() { munmap(memory_, sizeof(Shared)); }
  Shared* operator->() const { return memory_; }
  Shown& operator[](int rank) const { return memory_->ranks[static_cast<size_t>(rank)]; }

 private:
  Shared* const memory_;
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
  int expected = 3;      // replicas at the end
  int fewest = 2;        // replicas that take part in some rendezvous before that
  int rounds_after = 3;  // rendezvous of the expected number
  int ends = 3;          // processes that come to the end
  int64_t timeout_ns = 30 * kSecond;
  // When a newcomer begins to join: as many ranks are gone.
  std::function<int(int process)> comes_after = [](int) { return 0; };
  // Called by each rank after each exchange, with the number of exchanges that it has seen.
  std::function<void(int process, int64_t seen)> at = {};
  std::function<void(int process)> at_joining = {};
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

// Logs the rendezvous that is over. Returns how many replicas took part in it.
int Log(Replica& r, Shown& shown) {
  const EditInfo info = r.edit().info();
  auto& row = shown.log[static_cast<size_t>(info.rendezvous - 1)];
  int at = 0;
  for (int replica = 0; replica < info.most_replicas; ++replica) {
    if (const auto standing = r.edit().StandingOf(replica); standing.ok()) {
      row[static_cast<size_t>(at++)] = {replica, static_cast<int64_t>(standing->steps),
                                        static_cast<int64_t>(standing->steps_since)};
    }
  }
  shown.rounds = info.rendezvous;
  return at;
}

absl::Status Train(const Job& job, const SharedMemory& shared, int process, Replica& r) {
  Shown& shown = shared[process];
  const Deadline give_up = Deadline::After(60 * kSecond);
  int64_t seen = 0;
  int complete = 0;  // rendezvous of the expected number of replicas
  int fewest = job.joins(process) ? 0 : kMostRanks;
  while (true) {
    ENTRAIN_ASSIGN_OR_RETURN(const bool began, r.edit().BeginForward(true, true));
    for (int l = 0; l < kLayerCount; ++l) {
      ENTRAIN_RETURN_IF_ERROR(r.edit().WaitLayer(l));
    }
    if (const int64_t before = shown.rounds; began || r.edit().info().rendezvous > before) {
      if (r.edit().info().rendezvous > before) {
        const int took_part = Log(r, shown);
        fewest = std::min(fewest, took_part);
        complete = took_part == job.expected && fewest <= job.fewest ? complete + 1 : 0;
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
    ENTRAIN_RETURN_IF_ERROR(r.Join(options, 30 * kSecond));
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
  shown.replicas = info.replicas;
  shown.joins = info.joins;
  shown.losses = info.losses;
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
    EXPECT_EQ(shown.replicas, job.expected) << "process " << process;
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

}  // namespace
}  // namespace entrain
