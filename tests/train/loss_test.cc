// Replicas are killed while others exchange with them, and the others go on (on_loss). Ranks are
// processes. Their results lie in memory that they share with the test.

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
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

#include "tests/support/ranks.h"
#include "tests/train/edit_reference.h"
#include "tests/train/replicas.h"

namespace entrain {
namespace {

using testing::HasSubstr;

constexpr int kLayerCount = 5;
constexpr int kMostRanks = 8;
constexpr int64_t kElements = 30'000;
constexpr int64_t kMost = kLayerCount * kElements;

ShardConfig Model(int prefetch = 1) {
  ShardConfig config;
  config.layer_counts.assign(kLayerCount, kElements);
  config.prefetch = prefetch;
  return config;
}

// What a rank shows when it has ended.
struct Shown {
  std::atomic<int> rounds;  // that it has finished
  int64_t steps, losses, short_rounds, rendezvous;
  int replicas, lost[kMostRanks];
  int64_t longest_ns;  // round
  char error[512];
  float params[kMost];  // whole layers in ranks of their own; else the slab
};
struct Shared {
  std::array<Shown, kMostRanks> ranks;
  std::atomic<int64_t> struck_at;
  std::atomic<int> ended;
};

// Memory that forked processes share.
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
  std::function<void(Replica& r, int rank)> after = {};
};

float Drift(int replica, int round, int layer, int64_t i) {
  return Noise(replica, round, layer, i) / 256;
}

// Makes a round. Returns the first error.
absl::Status Round(const Job& job, Replica& r, int rank, int round) {
  const auto point = [&](int number) {
    if (job.at) {
      job.at(rank, round, number);
    }
  };
  r.DriftFromAnchor([&](int l, int64_t i) { return Drift(r.replica(), round, l, i); });
  absl::Status status = r.edit().EndStep();
  point(-1);
  status.Update(r.edit().BeginForward(true, true).status());
  point(0);
  for (int l = 0; l < kLayerCount && status.ok(); ++l) {
    status.Update(r.edit().WaitLayer(l));
    point(1 + l);
  }
  return status;
}

void Show(Replica& r, Shown& shown) {
  const EditInfo info = r.edit().info();
  shown.steps = info.steps;
  shown.losses = info.losses;
  shown.short_rounds = info.short_rounds;
  shown.rendezvous = info.rendezvous;
  shown.replicas = info.replicas;
  const std::vector<ReplicaLoss> losses = r.edit().losses();
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
      EXPECT_EQ(r.params(), r.Anchor());
    }
  }
  absl::SNPrintF(shown.error, sizeof(shown.error), "%s", status.ToString());
  if (status.ok()) {
    Show(r, shown);
  }
  if (job.after) {
    job.after(r, comm->rank());
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

// Expects that the ranks of these replicas have the same bits, and that each layer is that of a
// reference in which rounds before `lost_in` were of all replicas, later rounds of those that are
// left, and layer l of round `lost_in` of all if l < counted. Negative `counted`: finds it out.
void ExpectFinished(const Job& job, const SharedMemory& shared, const std::vector<int>& left,
                    int lost_in, int counted) {
  std::vector<int> all(static_cast<size_t>(job.grid.replicas));
  std::iota(all.begin(), all.end(), 0);
  const Shown& first = shared[left[0]];
  for (const int rank : left) {
    const Shown& shown = shared[rank];
    EXPECT_STREQ(shown.error, "OK") << "rank " << rank;
    EXPECT_EQ(shown.replicas, static_cast<int>(left.size())) << "rank " << rank;
    EXPECT_EQ(std::memcmp(shown.params, first.params, sizeof(first.params)), 0) << "rank " << rank;
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
      for (int64_t i = 0; i < kElements; ++i) {
        most = std::max(most, std::abs(first.params[layer * kElements + i] -
                                       want.anchor(layer)[static_cast<size_t>(i)]));
      }
      least = std::min(least, most);
    }
    EXPECT_LT(least, 1e-5) << "layer " << layer;
  }
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

// The victim dies when it has seen layer 1, before it lets the others have layer 3.
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

}  // namespace
}  // namespace entrain
