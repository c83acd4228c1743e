#include "tests/train/joining.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gtest/gtest.h"

#include "lib/base/status.h"
#include "lib/comm/create/runtime.h"
#include "lib/store/store.h"
#include "tests/train/edit_reference.h"

namespace entrain::joining {
namespace {

float Drift(int replica, int64_t step, int layer, int64_t i) {
  return Noise(replica, step, layer, i) / 256;
}

std::shared_ptr<Communicator> Connect(const Job& job, const std::shared_ptr<Store>& store,
                                      int process) {
  RuntimeOptions runtime_options;
  runtime_options.transports = job.transports;
  if (job.host) {
    runtime_options.host_id = job.host(process);
  }
  auto runtime = Runtime::Create(runtime_options);
  EXPECT_TRUE(runtime.ok()) << runtime.status();
  const int of_members = job.members * job.shards;
  const int shards = job.shards_of(process);
  const int beyond = (process - of_members) / shards;  // of a newcomer: which one
  CommOptions options;
  options.runtime = *runtime;
  options.store = store;
  options.name = job.joins(process) ? absl::StrCat("newcomer", beyond) : "members";
  options.rank = job.joins(process) ? (process - of_members) % shards : process;
  options.size = job.joins(process) ? shards : of_members;
  options.timeout_ns = job.timeout_ns;
  auto comm = Communicator::Create(options);
  EXPECT_TRUE(comm.ok()) << comm.status();
  return *std::move(comm);
}

// Logs the rendezvous that is over. Returns the processes that took part in it: each records its
// number as the metric.
std::vector<int> Log(Replica& r, Shown& shown) {
  const EditInfo info = r.edit().info();
  auto& row = shown.log[static_cast<size_t>(info.rendezvous - 1)];
  std::vector<int> processes;
  size_t at = 0;
  for (int replica = 0; replica < info.most_replicas; ++replica) {
    if (const auto standing = r.edit().results().StandingOf(replica); standing.ok()) {
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
  constexpr int kMostAhead = 16;  // more steps than any replica is ahead of another one
  Shown& shown = shared[process];
  const Deadline give_up = Deadline::After(60 * kSecond);
  int64_t seen = 0;
  int complete = 0;  // rendezvous of the expected number of replicas
  while (shared->last_step == 0 || r.edit().info().steps < shared->last_step) {
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
        if (complete == job.rounds_after && !job.leaves) {
          return absl::OkStatus();
        }
        if (complete == job.rounds_after && process == 0) {
          shared->last_step = r.edit().info().steps + kMostAhead;
        }
        ++seen;
        if (!job.saves_to.empty()) {
          CheckpointOptions save;
          save.directory = job.saves_to;
          save.name = absl::StrCat("exchange", r.edit().info().rendezvous % 2);
          save.kind = r.edit().info().rendezvous % 2 == 0 ? CheckpointKind::kExact
                                                          : CheckpointKind::kPortable;
          ENTRAIN_RETURN_IF_ERROR(r.edit().state().Save(save));
        }
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
    usleep(static_cast<useconds_t>(job.step_us(process)));  // a step of training
  }
  return absl::OkStatus();
}

absl::Status RunRank(const Job& job, const SharedMemory& shared,
                     const std::shared_ptr<Store>& store, int process) {
  Shown& shown = shared[process];
  const auto comm = Connect(job, store, process);
  MeshConfig mesh_config;
  mesh_config.lengths[static_cast<size_t>(Axis::kShard)] = job.shards_of(process);
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
    // The values that the newcomer has before it joins must not matter.
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

// Returns the first rendezvous, counted from 0, in which a newcomer took part as this replica.
// Returns a large number if no newcomer did.
int64_t FirstAsNewcomer(const Job& job, const SharedMemory& shared, int replica) {
  for (int process = job.members * job.shards; process < job.processes(); ++process) {
    if (shared[process].first_round > 0 && shared[process].replica == replica) {
      return shared[process].first_round - 1;
    }
  }
  return kMostRounds;
}

}  // namespace

EditOptions Open(EditOptions options) {
  options.on_loss = OnLoss::kFinish;
  options.admit = Admit::kExchange;
  options.local_sgd_sync_interval = 4;
  return options;
}

void Die(const SharedMemory& shared) {
  ++shared->gone;
  raise(SIGKILL);
}

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

void ExpectReference(const Job& job, const SharedMemory& shared, int process) {
  EditReference want(std::vector<int64_t>(kLayerCount, kElements));
  const Shown& shown = shared[process];
  const auto warmup = static_cast<int>(job.options.newcomer_warmup);
  for (int layer = 0; layer < kLayerCount; ++layer) {
    std::array<int, kMostRanks> counted{};  // by replica: exchanges as a newcomer
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
      want.Exchange(
          layer, replicas,
          [&](int replica, int64_t i) {
            return drifts[static_cast<size_t>(replica)][static_cast<size_t>(i)];
          },
          [&](int replica) {
            int& rounds = counted[static_cast<size_t>(replica)];
            return round < FirstAsNewcomer(job, shared, replica) || rounds == warmup
                       ? 1.0
                       : static_cast<double>(++rounds) / (warmup + 1);
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

}  // namespace entrain::joining
