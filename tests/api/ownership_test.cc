// Handles destroyed in any order: the objects that another object uses may be destroyed before it,
// also while it works.
#include <algorithm>
#include <barrier>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/api/world.h"

namespace entrain_test {
namespace {

constexpr int32_t kLayers = 3;
constexpr size_t kCounts[kLayers] = {4000, 1, 700};

// In the order of creation. Each kind uses some of those before it.
enum Kind {
  kRuntime,
  kStore,
  kComm,
  kPart,
  kMesh,
  kShard,
  kEdit,
  kEditState,
  kOptim,
  kWsam,
  kAcco,
  kAccoState,
  kReduction,
  kBatch,
  kKinds
};
constexpr const char* kNames[] = {"runtime", "store",      "comm",       "part",  "mesh",
                                  "shard",   "edit",       "edit_state", "optim", "wsam",
                                  "acco",    "acco_state", "reduction",  "batch"};

int32_t AddFloats(void* dst, const void* src, size_t count, entrain_dtype_t, void*) {
  for (size_t i = 0; i < count; ++i) {
    static_cast<float*>(dst)[i] += static_cast<const float*>(src)[i];
  }
  return 0;
}

// One rank's handles of all kinds. Calls are made only if their handle still exists.
class Everything {
 public:
  Everything(const std::string& url, int rank, int size) : rank_(rank) {
    MakeComms(url, size);
    MakeEdit();
    MakeAcco();
    EXPECT_OK(entrain_reduction_user(AddFloats, nullptr, 1, 1, &reduction_));
    EXPECT_OK(entrain_batch_create(comm_, &batch_));
  }
  ~Everything() {
    for (entrain_work_t* work : works_) {
      entrain_work_free(work);
    }
  }
  Everything(const Everything&) = delete;
  Everything& operator=(const Everything&) = delete;

  void Destroy(int kind) {
    gone_[static_cast<size_t>(kind)] = true;
    switch (kind) {
      case kRuntime:
        return entrain_runtime_destroy(runtime_);
      case kStore:
        return entrain_store_destroy(store_);
      case kComm:
        return entrain_comm_destroy(comm_);
      case kPart:
        return entrain_comm_destroy(part_);
      case kMesh:
        return entrain_mesh_destroy(mesh_);
      case kShard:
        return entrain_shard_destroy(shard_);
      case kEdit:
        return entrain_edit_destroy(edit_);
      case kEditState:
        return entrain_state_destroy(edit_state_);
      case kOptim:
        return entrain_optim_destroy(optim_);
      case kWsam:
        return entrain_optim_destroy(wsam_);
      case kAcco:
        return entrain_acco_destroy(acco_);
      case kAccoState:
        return entrain_state_destroy(acco_state_);
      case kReduction:
        return entrain_reduction_destroy(reduction_);
      default:
        return entrain_batch_destroy(batch_);
    }
  }

  // Starts an exchange, gathers that wait for it, a round, a reduction and a split.
  void Start() {
    int32_t syncing = 0;
    ASSERT_OK(entrain_edit_begin_forward(edit_, 1, 1, &syncing, nullptr));
    EXPECT_EQ(syncing, 1);
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      EXPECT_OK(entrain_edit_layer_work(edit_, layer, NewWork()));
      EXPECT_OK(entrain_shard_gather_work(shard_, layer, NewWork()));
    }
    Round();
    entrain_call_options_t options;
    entrain_call_options_init(&options);
    options.reduction = reduction_;
    EXPECT_OK(entrain_all_reduce(part_, sums_.data(), sums_.data(), sums_.size(), ENTRAIN_F32,
                                 ENTRAIN_REDUCTION, &options, NewWork()));
    EXPECT_OK(entrain_comm_split(part_, 0, rank_, nullptr, NewWork()));
  }
  // Uses all handles that are left. `works`: calls that were started on them, and may succeed.
  void Use() {
    if (Has(kEdit)) {
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        EXPECT_OK(entrain_edit_wait_layer(edit_, layer));
      }
      if (Has(kShard)) {
        Pass();
      }
      EXPECT_OK(entrain_edit_end_step(edit_));
      std::vector<float> anchor(params_.size());
      EXPECT_OK(entrain_edit_anchor(edit_, anchor.data(), ENTRAIN_F32));
    }
    if (Has(kEditState)) {
      size_t count = 0;
      EXPECT_EQ(entrain_state_count(edit_state_, &count),
                Has(kEdit) ? ENTRAIN_OK : ENTRAIN_FAILED_PRECONDITION);
    }
    if (Has(kAccoState)) {
      size_t count = 0;
      EXPECT_EQ(entrain_state_count(acco_state_, &count),
                Has(kAcco) ? ENTRAIN_OK : ENTRAIN_FAILED_PRECONDITION);
    }
    if (Has(kAcco)) {
      Round();
    }
    for (const auto& [kind, comm] : {std::pair(kComm, comm_), {kPart, part_}}) {
      if (Has(kind)) {
        EXPECT_OK(entrain_barrier(comm, nullptr, nullptr));
      }
    }
    if (Has(kMesh)) {
      entrain_comm_t* lent = nullptr;
      EXPECT_OK(entrain_mesh_comm(mesh_, ENTRAIN_AXIS_SYNC, &lent));
      EXPECT_OK(entrain_barrier(lent, nullptr, nullptr));
    }
  }
  // Waits for every call: each must end, whatever was destroyed meanwhile.
  void WaitForAll() {
    for (entrain_work_t* work : works_) {
      EXPECT_NE(entrain_work_wait(work, 10'000'000'000), ENTRAIN_IN_PROGRESS);
    }
  }

 private:
  bool Has(int kind) const { return !gone_[static_cast<size_t>(kind)]; }
  entrain_work_t** NewWork() { return &works_.emplace_back(nullptr); }

  void MakeComms(const std::string& url, int size) {
    entrain_runtime_config_t runtime_config;
    entrain_runtime_config_init(&runtime_config);
    runtime_config.transports = "inproc";
    EXPECT_OK(entrain_runtime_create(&runtime_config, &runtime_));
    EXPECT_OK(entrain_store_open(url.c_str(), 0, &store_));
    entrain_comm_config_t config;
    entrain_comm_config_init(&config);
    config.runtime = runtime_;
    config.store = store_;
    config.rank = rank_;
    config.world_size = size;
    config.timeout_ns = 20'000'000'000;
    EXPECT_OK(entrain_comm_create(&config, &comm_));
    EXPECT_OK(entrain_comm_duplicate(comm_, &part_, nullptr));
  }
  void MakeEdit() {
    entrain_mesh_config_t mesh_config;
    entrain_mesh_config_init(&mesh_config);
    mesh_config.shard = 1;
    EXPECT_OK(entrain_mesh_create(comm_, &mesh_config, &mesh_));
    entrain_shard_config_t shard_config;
    entrain_shard_config_init(&shard_config);
    shard_config.layers = kLayers;
    shard_config.layer_counts = kCounts;
    shard_config.param_dtype = ENTRAIN_BF16;  // so that gathers have their own memory
    EXPECT_OK(entrain_shard_create(mesh_, &shard_config, &shard_));
    size_t count = 0;
    EXPECT_OK(entrain_shard_slab_count(shard_, &count));
    params_.assign(count, 1);
    grads_.resize(count);
    EXPECT_OK(entrain_shard_bind(shard_, params_.data(), grads_.data(), ENTRAIN_F32));
    entrain_edit_config_t config;
    entrain_edit_config_init(&config);
    config.shard = shard_;
    config.local_sgd_sync_interval = 1;
    config.local_sgd_warmup_steps = 0;
    config.outer_optimizer = ENTRAIN_OUTER_SGD;
    EXPECT_OK(entrain_edit_create(mesh_, &config, &edit_));
    int32_t syncing = 0;
    EXPECT_OK(entrain_edit_begin_forward(edit_, 1, 1, &syncing, nullptr));
    EXPECT_OK(entrain_edit_end_step(edit_));
    params_.assign(count, static_cast<float>(2 + rank_));
    EXPECT_OK(entrain_edit_open_state(edit_, ENTRAIN_CHECKPOINT_PORTABLE, &edit_state_, nullptr));
  }
  void MakeAcco() {
    entrain_optim_config_t optim_config;
    entrain_optim_config_init(&optim_config);
    EXPECT_OK(entrain_optim_create(&optim_config, &optim_));
    entrain_optim_config_t wsam_config;
    entrain_optim_config_init(&wsam_config);
    wsam_config.kind = ENTRAIN_OPTIM_WSAM;
    wsam_config.base = optim_;
    EXPECT_OK(entrain_optim_create(&wsam_config, &wsam_));
    entrain_acco_config_t config;
    entrain_acco_config_init(&config);
    config.params = weights_.data();
    config.count = weights_.size();
    config.optim = optim_;
    EXPECT_OK(entrain_acco_create(comm_, &config, &acco_));
    EXPECT_OK(entrain_acco_open_state(acco_, ENTRAIN_CHECKPOINT_PORTABLE, &acco_state_, nullptr));
  }
  void Round() {
    int32_t finished = 0;
    EXPECT_OK(entrain_acco_add(acco_, 1, 1));
    EXPECT_OK(entrain_acco_install(acco_, &finished));
  }
  void Pass() {
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      void* gathered = nullptr;
      EXPECT_OK(entrain_shard_wait(shard_, layer, &gathered));
      EXPECT_OK(entrain_shard_release(shard_, layer));
      EXPECT_OK(entrain_shard_gradients(shard_, layer, &gathered));
      EXPECT_OK(entrain_shard_reduce_gradients(shard_, layer));
    }
    EXPECT_OK(entrain_shard_finish_gradients(shard_));
  }

  const int rank_;
  bool gone_[kKinds] = {};
  entrain_runtime_t* runtime_ = nullptr;
  entrain_store_t* store_ = nullptr;
  entrain_comm_t *comm_ = nullptr, *part_ = nullptr;
  entrain_mesh_t* mesh_ = nullptr;
  entrain_shard_t* shard_ = nullptr;
  entrain_edit_t* edit_ = nullptr;
  entrain_state_t *edit_state_ = nullptr, *acco_state_ = nullptr;
  entrain_optim_t* optim_ = nullptr;
  entrain_optim_t* wsam_ = nullptr;
  entrain_acco_t* acco_ = nullptr;
  entrain_reduction_t* reduction_ = nullptr;
  entrain_batch_t* batch_ = nullptr;
  std::vector<float> params_, grads_, weights_ = std::vector<float>(5000, 1),
                                      sums_ = std::vector<float>(300, 1);
  std::vector<entrain_work_t*> works_;
};

// Runs `body` as two ranks. A rank that destroys a communicator ends the other's calls, so both
// arrive at `both` before.
void RunBoth(const std::function<void(Everything& all, std::barrier<>& both)>& body) {
  const std::string url = NewStoreUrl();
  std::barrier both(2);
  const auto run = [&](int rank) {
    Everything all(url, rank, 2);
    all.Start();
    both.arrive_and_wait();
    body(all, both);
    all.WaitForAll();
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
}

// The parameter is the kind of handle that is destroyed first.
class DestroyedFirst : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Kind, DestroyedFirst, testing::Range(0, int{kKinds}),
                         [](const auto& test) { return std::string(kNames[test.param]); });

TEST_P(DestroyedFirst, LeavesWhatWasMadeOfIt) {
  for (const bool forwards : {true, false}) {
    RunBoth([&](Everything& all, std::barrier<>& both) {
      all.Destroy(GetParam());
      all.Use();
      both.arrive_and_wait();
      for (int i = 0; i < kKinds; ++i) {
        const int kind = forwards ? i : kKinds - 1 - i;
        if (kind != GetParam()) {
          all.Destroy(kind);
        }
      }
    });
  }
}

TEST(Destroyed, InAnyOrderWhileAllIsUnderWay) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RunBoth([&](Everything& all, std::barrier<>&) {
      std::vector<int> order(kKinds);
      std::iota(order.begin(), order.end(), 0);
      std::mt19937 random(seed);
      std::shuffle(order.begin(), order.end(), random);
      for (const int kind : order) {
        all.Destroy(kind);
      }
    });
  }
}

}  // namespace
}  // namespace entrain_test
