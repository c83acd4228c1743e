// A rank is killed while layers are gathered, or exchanged by EDiT, or while the others wait for it
// at a rendezvous of A-EDiT. All others learn of it within 2 s as a lost peer, also those that
// share no group with it. With on_loss, the other replica goes on, and the other rank of the
// victim's replica learns that this replica has left. Ranks are processes. The test itself never
// uses the library, because its children could not use it after a fork.
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <entrain/entrain.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain_test {
namespace {

using std::chrono::steady_clock;
using testing::HasSubstr;

constexpr int kRanks = 4, kVictim = 3;
constexpr int32_t kLayers = 4;
constexpr size_t kLayerCounts[kLayers] = {1 << 20, 1000, 1 << 20, 1 << 20};

// Four ranks that gather from each other, or two replicas of two ranks that exchange, by steps or
// by time, or by steps with on_loss.
enum class Work { kGather, kExchange, kRendezvous, kGoOn };

// The findings of a rank, in memory shared with the test.
struct Report {
  entrain_error_t error;
  int64_t after_ns = 0;  // since the victim got its signal
};
struct Shared {
  std::atomic<int> rounds[kRanks] = {};
  std::atomic<int64_t> struck_at{0};
  std::atomic<int> ended{0};
  entrain_peer_id_t ids[kRanks];
  Report reports[kRanks];
  int lost[kRanks] = {-1, -1, -1, -1};  // the replica that a rank has lost and survived
};

int64_t Now() {
  return steady_clock::now().time_since_epoch().count();
}

// Exits if a call fails before the ranks are at work.
void Need(entrain_status_t status) {
  if (status != ENTRAIN_OK) {
    std::fprintf(stderr, "%s\n", entrain_last_error());
    _exit(3);
  }
}

struct Trainer {
  entrain_runtime_t* runtime = nullptr;
  entrain_comm_t* comm = nullptr;
  entrain_mesh_t* mesh = nullptr;
  entrain_shard_t* shard = nullptr;
  entrain_edit_t* edit = nullptr;
  std::vector<float> params, grads;
};

void Meet(const std::string& store_url, const char* transports, int rank, Trainer* t) {
  entrain_runtime_config_t runtime;
  entrain_runtime_config_init(&runtime);
  runtime.transports = transports;
  Need(entrain_runtime_create(&runtime, &t->runtime));
  entrain_store_t* store = nullptr;
  Need(entrain_store_open(store_url.c_str(), 0, &store));
  entrain_comm_config_t config;
  entrain_comm_config_init(&config);
  config.runtime = t->runtime;
  config.store = store;
  config.rank = rank;
  config.world_size = kRanks;
  config.timeout_ns = 20'000'000'000;
  Need(entrain_comm_create(&config, &t->comm));
  entrain_store_destroy(store);
}

void MakeModel(Work work, Trainer* t) {
  entrain_mesh_config_t mesh;
  entrain_mesh_config_init(&mesh);
  mesh.shard = work == Work::kGather ? kRanks : 2;
  Need(entrain_mesh_create(t->comm, &mesh, &t->mesh));
  entrain_shard_config_t shard;
  entrain_shard_config_init(&shard);
  shard.layers = kLayers;
  shard.layer_counts = kLayerCounts;
  Need(entrain_shard_create(t->mesh, &shard, &t->shard));
  size_t count = 0;
  Need(entrain_shard_slab_count(t->shard, &count));
  t->params.assign(count, 1.0f);
  t->grads.assign(count, 0.0f);
  Need(entrain_shard_bind(t->shard, t->params.data(), t->grads.data(), ENTRAIN_F32));
  entrain_edit_config_t edit;
  entrain_edit_config_init(&edit);
  edit.shard = t->shard;
  edit.reducer = ENTRAIN_REDUCER_LINEAR;
  edit.pseudo_gradnorm_reduce = 1;
  edit.clip_pseudo_grad = 10;
  edit.outer_optimizer = ENTRAIN_OUTER_SGD;
  if (work == Work::kRendezvous) {
    edit.use_async = 1;
    edit.local_sgd_sync_time = 1e-3;
    edit.min_total_global_steps = 1;
  }
  edit.on_loss = work == Work::kGoOn ? ENTRAIN_ON_LOSS_FINISH : ENTRAIN_ON_LOSS_FAIL;
  Need(entrain_edit_create(t->mesh, &edit, &t->edit));
  int32_t syncing = 0;
  Need(entrain_edit_begin_forward(t->edit, 1, 1, &syncing, nullptr));  // the anchors
}

entrain_status_t GatherAll(const Trainer& t) {
  entrain_status_t status = entrain_shard_begin_pass(t.shard, ENTRAIN_PASS_FORWARD);
  for (int32_t layer = 0; layer < kLayers && status == ENTRAIN_OK; ++layer) {
    void* params = nullptr;
    status = entrain_shard_wait(t.shard, layer, &params);
    if (status == ENTRAIN_OK) {
      status = entrain_shard_release(t.shard, layer);
    }
  }
  return status;
}

entrain_status_t ExchangeAll(const Trainer& t) {
  entrain_status_t status = entrain_edit_end_step(t.edit);
  int32_t syncing = 0;
  if (status == ENTRAIN_OK) {
    status = entrain_edit_begin_forward(t.edit, 1, 1, &syncing, nullptr);
  }
  for (int32_t layer = 0; layer < kLayers && status == ENTRAIN_OK; ++layer) {
    status = entrain_edit_wait_layer(t.edit, layer);
  }
  return status;
}

// Returns true when a replica is lost and the exchange has gone on without it.
bool HasGoneOn(const Trainer& t, int* lost, int64_t* rendezvous) {
  entrain_edit_info_t info;
  entrain_edit_info_init(&info);
  Need(entrain_edit_info(t.edit, &info));
  if (info.losses == 0) {
    *rendezvous = info.rendezvous;
    return false;
  }
  int32_t replica = -1;
  int64_t when = -1;
  char text[8] = {};
  Need(entrain_edit_loss(t.edit, 0, &replica, &when, text, sizeof(text)));
  *lost =
      info.replicas == 1 && text[0] != 0 && text[7] == 0 && when <= info.rendezvous ? replica : -2;
  return info.rendezvous > *rendezvous + 3;
}

[[noreturn]] void RunRank(Work work, const std::string& store_url, const char* transports, int rank,
                          Shared* shared) {
  Trainer t;
  Meet(store_url, transports, rank, &t);
  Need(entrain_runtime_peer_id(t.runtime, &shared->ids[rank]));
  MakeModel(work, &t);
  Report& report = shared->reports[rank];
  int64_t met = 0;
  while ((work == Work::kGather ? GatherAll(t) : ExchangeAll(t)) == ENTRAIN_OK) {
    shared->rounds[rank].fetch_add(1);
    if (work == Work::kGoOn && HasGoneOn(t, &shared->lost[rank], &met)) {
      shared->ended.fetch_add(1);
      while (shared->ended.load() < 2) {  // the other rank of this replica
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      _exit(0);
    }
  }
  report.after_ns = Now() - shared->struck_at.load();
  entrain_error_init(&report.error);
  Need(entrain_last_error_record(&report.error));
  _exit(0);
}

class KilledRank : public testing::TestWithParam<std::tuple<const char*, Work>> {
 protected:
  void SetUp() override {
    void* const memory =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    shared_ = new (memory) Shared;
    ASSERT_NE(mkdtemp(directory_), nullptr);
  }
  void TearDown() override {
    for (const pid_t child : children_) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
    munmap(shared_, sizeof(Shared));
    EXPECT_EQ(std::system((std::string("rm -rf ") + directory_).c_str()), 0);
  }
  Work work() const { return std::get<1>(GetParam()); }

  void Start() {
    for (int rank = 0; rank < kRanks; ++rank) {
      const pid_t pid = fork();
      ASSERT_GE(pid, 0);
      if (pid == 0) {
        RunRank(work(), std::string("file:") + directory_, std::get<0>(GetParam()), rank, shared_);
      }
      children_.push_back(pid);
    }
  }
  void WaitUntilAtWork() {
    const auto give_up = steady_clock::now() + std::chrono::seconds(20);
    for (int rank = 0; rank < kRanks; ++rank) {
      while (shared_->rounds[rank].load() < 2 && steady_clock::now() < give_up) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      ASSERT_GE(shared_->rounds[rank].load(), 2) << "rank " << rank << " does not get to work";
    }
  }
  // A stopped rank is slow, but has not failed.
  void StopVictimUntilTheOthersWait() {
    kill(children_[kVictim], SIGSTOP);
    int rounds = -1, before = 0, quiet = 0;
    const auto give_up = steady_clock::now() + std::chrono::seconds(20);
    while (quiet < 20 && steady_clock::now() < give_up) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      before = std::exchange(rounds, shared_->rounds[0] + shared_->rounds[1] + shared_->rounds[2]);
      quiet = rounds == before ? quiet + 1 : 0;
    }
    ASSERT_EQ(quiet, 20) << "the others do not wait for a replica that does not come";
  }
  // Returns the exit status of a rank. Kills the rank if it does not end in time.
  int Await(int rank) {
    pid_t& child = children_[static_cast<size_t>(rank)];
    const auto give_up = steady_clock::now() + std::chrono::seconds(10);
    int status = -1;
    while (waitpid(child, &status, WNOHANG) == 0) {
      if (steady_clock::now() > give_up) {
        kill(child, SIGKILL);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return status;
  }

  Shared* shared_ = nullptr;
  char directory_[40] = "/tmp/entrain-train-failure-XXXXXX";
  std::vector<pid_t> children_;
};

TEST_P(KilledRank, IsNamedByAllOthersWithinTwoSeconds) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(WaitUntilAtWork());
  if (work() == Work::kRendezvous) {
    ASSERT_NO_FATAL_FAILURE(StopVictimUntilTheOthersWait());
  }
  shared_->struck_at.store(Now());
  kill(children_[kVictim], SIGKILL);
  for (const int rank : {0, 1, 2}) {
    EXPECT_EQ(Await(rank), 0) << "rank " << rank;
    const Report& report = shared_->reports[rank];
    EXPECT_EQ(report.error.code, ENTRAIN_PEER_LOST) << report.error.text;
    EXPECT_EQ(report.error.scope, ENTRAIN_SCOPE_COMM);
    EXPECT_THAT(report.error.text, HasSubstr("(rank 3 of world, "));
    EXPECT_THAT(report.error.text, HasSubstr(work() == Work::kGather ? "shard: " : "edit: "));
    EXPECT_EQ(std::memcmp(&report.error.peer_id, &shared_->ids[kVictim], sizeof(entrain_peer_id_t)),
              0)
        << report.error.text;
    EXPECT_LT(report.after_ns, 2'000'000'000) << report.error.text;
  }
  EXPECT_EQ(Await(kVictim), SIGKILL);
  children_.clear();
}

class LostRank : public KilledRank {};

TEST_P(LostRank, DoesNotEndTheOtherReplica) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(WaitUntilAtWork());
  shared_->struck_at.store(Now());
  kill(children_[kVictim], SIGKILL);
  for (const int rank : {0, 1, 2}) {
    EXPECT_EQ(Await(rank), 0) << "rank " << rank;
  }
  EXPECT_EQ(shared_->lost[0], 1);
  EXPECT_EQ(shared_->lost[1], 1);
  const Report& report = shared_->reports[2];
  EXPECT_EQ(report.error.code, ENTRAIN_PEER_LOST) << report.error.text;
  EXPECT_THAT(report.error.text, HasSubstr("replica 1 has left: rank 1 of it was lost"));
  EXPECT_LT(report.after_ns, 5'000'000'000) << report.error.text;
  EXPECT_EQ(Await(kVictim), SIGKILL);
  children_.clear();
}

std::string NameOf(const testing::TestParamInfo<KilledRank::ParamType>& test) {
  const char* const works[] = {"gather", "exchange", "rendezvous", "go_on"};
  return std::string(std::get<0>(test.param)) + "_" +
         works[static_cast<int>(std::get<1>(test.param))];
}

INSTANTIATE_TEST_SUITE_P(In, KilledRank,
                         testing::Combine(testing::Values("shm", "tcp"),
                                          testing::Values(Work::kGather, Work::kExchange,
                                                          Work::kRendezvous)),
                         NameOf);

INSTANTIATE_TEST_SUITE_P(In, LostRank,
                         testing::Combine(testing::Values("shm", "tcp"),
                                          testing::Values(Work::kGoOn)),
                         NameOf);

}  // namespace
}  // namespace entrain_test
