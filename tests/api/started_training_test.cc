// Blocking calls of training that have a form with a work: an exchange of a layer, a gather,
// gradients, a broadcast, and A-EDiT's rendezvous.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <latch>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <poll.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/api/world.h"
#include "tests/support/wait.h"

namespace entrain_test {
namespace {

using entrain::Becomes;

constexpr int32_t kLayers = 3;
constexpr size_t kCounts[kLayers] = {7, 1, 12};
constexpr int64_t kShortNs = 300'000'000;

// A mesh with `shard_size` ranks per replica, a model, and EDiT with the mean of the replicas as
// its outer step.
struct Model {
  explicit Model(entrain_comm_t* comm, int32_t shard_size, int64_t timeout_ns = 0) {
    entrain_mesh_config_t mesh_config;
    entrain_mesh_config_init(&mesh_config);
    mesh_config.shard = shard_size;
    EXPECT_OK(entrain_mesh_create(comm, &mesh_config, &mesh));
    entrain_shard_config_t config;
    entrain_shard_config_init(&config);
    config.layers = kLayers;
    config.layer_counts = kCounts;
    config.timeout_ns = timeout_ns;
    EXPECT_OK(entrain_shard_create(mesh, &config, &shard));
    size_t count = 0;
    EXPECT_OK(entrain_shard_slab_count(shard, &count));
    params.resize(count);
    grads.resize(count);
    EXPECT_OK(entrain_shard_bind(shard, params.data(), grads.data(), ENTRAIN_F32));
    entrain_edit_config_init(&options);
    options.shard = shard;
    options.outer_optimizer = ENTRAIN_OUTER_SGD;
    options.outer_lr = 1;
    options.outer_momentum = 0;
    options.timeout_ns = timeout_ns;
  }
  ~Model() {
    entrain_edit_destroy(edit);
    entrain_shard_destroy(shard);
    entrain_mesh_destroy(mesh);
  }
  // Makes EDiT with anchors, after one step that moves every parameter by `change`.
  void MakeEdit(float change) {
    ASSERT_OK(entrain_edit_create(mesh, &options, &edit));
    int32_t syncing = 0;
    ASSERT_OK(entrain_edit_begin_forward(edit, 1, 1, &syncing, nullptr));
    for (float& param : params) {
      param += change;
    }
    ASSERT_OK(entrain_edit_end_step(edit));
  }

  entrain_mesh_t* mesh = nullptr;
  entrain_shard_t* shard = nullptr;
  entrain_edit_t* edit = nullptr;
  entrain_edit_config_t options;
  std::vector<float> params, grads;
};

// The parameter tells which thread makes progress.
class StartedTraining : public testing::TestWithParam<int32_t> {
 protected:
  static WorldOptions options() {
    WorldOptions options;
    options.progress = GetParam();
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Progress, StartedTraining,
                         testing::Values(ENTRAIN_PROGRESS_THREAD, ENTRAIN_PROGRESS_CALLER),
                         [](const auto& test) {
                           return test.param == ENTRAIN_PROGRESS_THREAD ? "thread" : "caller";
                         });

TEST_P(StartedTraining, LayersOfAnExchangeAreWaitedForByWorks) {
  for (const int32_t prefetch : {0, 1, kLayers}) {
    RunWorld(
        2,
        [prefetch](const Rank& self) {
          Model model(self.comm, 1);
          model.options.prefetch = prefetch;
          model.MakeEdit(static_cast<float>(2 * self.rank));
          int32_t syncing = 0;
          ASSERT_OK(entrain_edit_begin_forward(model.edit, 1, 1, &syncing, nullptr));
          ASSERT_EQ(syncing, 1);
          for (int32_t layer = 0; layer < kLayers; ++layer) {
            entrain_work_t* work = nullptr;
            ASSERT_OK(entrain_edit_layer_work(model.edit, layer, &work));
            entrain_work_info_t info;
            entrain_work_info_init(&info);
            ASSERT_OK(entrain_work_info(work, &info));
            EXPECT_STREQ(info.operation, "edit_layer");
            EXPECT_EQ(info.tag, layer);
            pollfd readable{.fd = -1, .events = POLLIN, .revents = 0};
            ASSERT_OK(entrain_work_descriptor(work, &readable.fd));
            int32_t over = 0;
            while (poll(&readable, 1, 1) == 0) {
              EXPECT_OK(entrain_work_test(work, &over));
            }
            EXPECT_OK(entrain_work_wait(work, 0));
            entrain_work_free(work);
            EXPECT_OK(entrain_edit_wait_layer(model.edit, layer));
          }
          EXPECT_THAT(model.params, testing::Each(1.0f));
          EXPECT_OK(entrain_edit_end_step(model.edit));
        },
        options());
  }
}

TEST(StartedTrainingCalls, AWaitForALayerThatGivesUpChangesNothing) {
  std::latch tried(1);
  RunWorld(2, [&](const Rank& self) {
    Model model(self.comm, 1);
    model.MakeEdit(static_cast<float>(2 * self.rank));
    int32_t syncing = 0;
    if (self.rank == 1) {
      tried.wait();
    }
    ASSERT_OK(entrain_edit_begin_forward(model.edit, 1, 1, &syncing, nullptr));
    if (self.rank == 0) {
      entrain_work_t* work = nullptr;
      ASSERT_OK(entrain_edit_layer_work(model.edit, 0, &work));
      EXPECT_EQ(entrain_work_wait(work, 1'000'000), ENTRAIN_IN_PROGRESS);
      entrain_work_free(work);  // not over
      tried.count_down();
    }
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      EXPECT_OK(entrain_edit_wait_layer(model.edit, layer));
    }
    EXPECT_THAT(model.params, testing::Each(1.0f));
  });
}

TEST(StartedTrainingCalls, ALayerWhoseExchangeFailsSaysWhoDidNotCome) {
  std::latch over(1);
  RunWorld(2, [&](const Rank& self) {
    Model model(self.comm, 1, kShortNs);
    model.MakeEdit(0);
    if (self.rank == 1) {
      over.wait();
      return;
    }
    int32_t syncing = 0;
    ASSERT_OK(entrain_edit_begin_forward(model.edit, 1, 1, &syncing, nullptr));
    entrain_work_t* work = nullptr;
    ASSERT_OK(entrain_edit_layer_work(model.edit, 2, &work));
    EXPECT_FAILS(entrain_work_wait(work, -1), ENTRAIN_TIMED_OUT, "rank 1");
    EXPECT_FAILS(entrain_edit_wait_layer(model.edit, 2), ENTRAIN_TIMED_OUT, "rank 1");
    entrain_work_free(work);
    over.count_down();
  });
}

TEST_P(StartedTraining, GathersAreWaitedForByWorksAlsoBehindAnExchange) {
  RunWorld(
      4,
      [](const Rank& self) {
        Model model(self.comm, 2);
        for (float& param : model.params) {
          param = static_cast<float>(self.rank % 2);
        }
        model.MakeEdit(static_cast<float>(2 * (self.rank / 2)));
        int32_t syncing = 0;
        ASSERT_OK(entrain_edit_begin_forward(model.edit, 1, 1, &syncing, nullptr));
        std::vector<entrain_work_t*> works(kLayers);
        for (int32_t layer = 0; layer < kLayers; ++layer) {
          ASSERT_OK(
              entrain_shard_gather_work(model.shard, layer, &works[static_cast<size_t>(layer)]));
        }
        for (int32_t layer = 0; layer < kLayers; ++layer) {
          entrain_work_t*& work = works[static_cast<size_t>(layer)];
          EXPECT_OK(entrain_work_wait(work, -1));
          entrain_work_free(work);
          void* params = nullptr;
          ASSERT_OK(entrain_shard_wait(model.shard, layer, &params));
          const auto* const whole = static_cast<const float*>(params);
          EXPECT_EQ(whole[0], 1.0f);  // rank 0's part: the mean of 0 and 2
          if (kCounts[layer] > 1) {
            EXPECT_EQ(whole[kCounts[layer] - 1], 2.0f);
          }
          EXPECT_OK(entrain_shard_release(model.shard, layer));
        }
      },
      options());
}

TEST(StartedTrainingCalls, AGatherThatNobodyElseMakesNamesThem) {
  std::latch over(1);
  RunWorld(2, [&](const Rank& self) {
    Model model(self.comm, 2, kShortNs);
    if (self.rank == 1) {
      over.wait();
      return;
    }
    entrain_work_t* work = nullptr;
    ASSERT_OK(entrain_shard_gather_work(model.shard, 2, &work));
    EXPECT_EQ(entrain_work_wait(work, 1'000'000), ENTRAIN_IN_PROGRESS);
    EXPECT_FAILS(entrain_work_wait(work, -1), ENTRAIN_TIMED_OUT, "rank 1");
    entrain_work_free(work);
    void* params = nullptr;
    EXPECT_FAILS(entrain_shard_wait(model.shard, 2, &params), ENTRAIN_TIMED_OUT, "layer 2 gather");
    over.count_down();
  });
}

void AddOne(entrain_status_t status, void* user) {
  EXPECT_EQ(status, ENTRAIN_OK);
  static_cast<std::atomic<int>*>(user)->fetch_add(1);
}

TEST_P(StartedTraining, GradientsAreOverWhenTheyHaveBeenAdded) {
  RunWorld(
      2,
      [](const Rank& self) {
        Model model(self.comm, 2);
        entrain_work_t* nothing = nullptr;
        ASSERT_OK(entrain_shard_gradients_work(model.shard, &nothing));
        EXPECT_OK(entrain_work_wait(nothing, -1));
        entrain_work_free(nothing);
        for (int32_t layer = 0; layer < kLayers; ++layer) {
          void* grads = nullptr;
          ASSERT_OK(entrain_shard_gradients(model.shard, layer, &grads));
          for (size_t i = 0; i < kCounts[layer]; ++i) {
            static_cast<float*>(grads)[i] = static_cast<float>(1 + 2 * self.rank);
          }
          ASSERT_OK(entrain_shard_reduce_gradients(model.shard, layer));
        }
        entrain_work_t* work = nullptr;
        ASSERT_OK(entrain_shard_gradients_work(model.shard, &work));
        std::atomic<int> told{0};
        ASSERT_OK(entrain_work_notify(work, AddOne, &told));
        EXPECT_OK(entrain_work_wait(work, -1));
        EXPECT_EQ(model.grads[0], 2.0f);
        EXPECT_OK(entrain_shard_finish_gradients(model.shard));
        EXPECT_TRUE(Becomes([&] { return told == 1; }));
        entrain_work_free(work);
      },
      options());
}

TEST(StartedTrainingCalls, GradientsThatNobodyElseReducesNameThem) {
  std::latch over(1);
  RunWorld(2, [&](const Rank& self) {
    Model model(self.comm, 2, kShortNs);
    if (self.rank == 1) {
      over.wait();
      return;
    }
    void* grads = nullptr;
    ASSERT_OK(entrain_shard_gradients(model.shard, 0, &grads));
    ASSERT_OK(entrain_shard_reduce_gradients(model.shard, 0));
    entrain_work_t* work = nullptr;
    ASSERT_OK(entrain_shard_gradients_work(model.shard, &work));
    EXPECT_FAILS(entrain_work_wait(work, -1), ENTRAIN_TIMED_OUT, "rank 1");
    entrain_work_free(work);
    over.count_down();
  });
}

TEST_P(StartedTraining, BroadcastIsACallThatIsStarted) {
  RunWorld(
      2,
      [](const Rank& self) {
        Model model(self.comm, 1);
        for (float& param : model.params) {
          param = static_cast<float>(5 + self.rank);
        }
        entrain_work_t* work = nullptr;
        ASSERT_OK(entrain_shard_broadcast(model.shard, &work));
        EXPECT_OK(entrain_work_wait(work, -1));
        entrain_work_free(work);
        EXPECT_THAT(model.params, testing::Each(5.0f));
        EXPECT_OK(entrain_shard_broadcast(model.shard, nullptr));  // the shard is idle again
      },
      options());
}

// A creation that is over on this rank may go on on another one.
void AwaitCreation(const Rank& self) {
  EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
}

TEST(StartedTrainingCalls, DestroyedUnderAStartedBroadcastEndsIt) {
  RunWorld(2, [](const Rank& self) {
    Model model(self.comm, 1);
    AwaitCreation(self);
    entrain_work_t* work = nullptr;
    if (self.rank == 0) {
      EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
      return;
    }
    ASSERT_OK(entrain_shard_broadcast(model.shard, &work));  // waits for replica 0
    EXPECT_FAILS(entrain_shard_broadcast(model.shard, nullptr), ENTRAIN_FAILED_PRECONDITION,
                 "is not over");
    EXPECT_EQ(entrain_work_wait(work, 1'000'000), ENTRAIN_IN_PROGRESS);
    entrain_shard_destroy(model.shard);
    model.shard = nullptr;
    EXPECT_FAILS(entrain_work_wait(work, -1), ENTRAIN_ABORTED, "destroyed during a call");
    entrain_work_free(work);
    EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
  });
}

void Async(entrain_edit_config_t* options) {
  options->use_async = 1;
  options->local_sgd_sync_time = 1e-3;
  options->min_total_global_steps = 1;
}

// The rendezvous and the end of A-EDiT, with waits that time out in between.
TEST_P(StartedTraining, RendezvousAndLeaveAreCallsThatAreStarted) {
  std::latch tried(1);
  RunWorld(
      2,
      [&](const Rank& self) {
        Model model(self.comm, 1);
        Async(&model.options);
        model.MakeEdit(static_cast<float>(2 * self.rank));
        if (self.rank == 1) {
          tried.wait();
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(2));  // tau has to pass
        int32_t syncing = -1;
        entrain_work_t* work = nullptr;
        ASSERT_OK(entrain_edit_begin_forward(model.edit, 1, 1, &syncing, &work));
        if (self.rank == 0) {
          EXPECT_EQ(entrain_work_wait(work, 5'000'000), ENTRAIN_IN_PROGRESS);
          EXPECT_FAILS(entrain_edit_end_step(model.edit), ENTRAIN_FAILED_PRECONDITION,
                       "is not over");
          tried.count_down();
        }
        EXPECT_OK(entrain_work_wait(work, -1));
        entrain_work_free(work);
        EXPECT_EQ(syncing, 1);
        for (int32_t layer = 0; layer < kLayers; ++layer) {
          EXPECT_OK(entrain_edit_wait_layer(model.edit, layer));
        }
        EXPECT_THAT(model.params, testing::Each(1.0f));
        EXPECT_OK(entrain_edit_end_step(model.edit));
        ASSERT_OK(entrain_edit_leave(model.edit, &work));
        EXPECT_OK(entrain_work_wait(work, -1));
        entrain_work_free(work);
        EXPECT_FAILS(entrain_edit_begin_forward(model.edit, 1, 1, &syncing, nullptr),
                     ENTRAIN_FAILED_PRECONDITION, "after leave");
      },
      options());
}

TEST(StartedTrainingCalls, DestroyedUnderAStartedRendezvousEndsItEverywhere) {
  RunWorld(2, [](const Rank& self) {
    Model model(self.comm, 1);
    Async(&model.options);
    model.MakeEdit(0);
    AwaitCreation(self);
    if (self.rank == 0) {
      entrain_work_t* work = nullptr;
      ASSERT_OK(entrain_edit_leave(model.edit, &work));
      EXPECT_EQ(entrain_work_wait(work, 1'000'000), ENTRAIN_IN_PROGRESS);
      entrain_edit_destroy(model.edit);
      model.edit = nullptr;
      // The worker may have been about to begin.
      EXPECT_FAILS(entrain_work_wait(work, -1), ENTRAIN_ABORTED, "destroyed ");
      entrain_work_free(work);
      EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
    } else {
      EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
      EXPECT_FAILS(entrain_edit_leave(model.edit, nullptr), ENTRAIN_ABORTED,
                   "destroyed during a call");
    }
  });
}

#define EXPECT_NOT_OVER(call) \
  EXPECT_FAILS(call, ENTRAIN_FAILED_PRECONDITION, "edit_leave, which was started, is not over")

// As long as a started call on an EDiT object is not over, a thread of the library uses the object
// and its shard.
TEST(StartedTrainingCalls, KeepTheirObjectsToThemselves) {
  std::latch tried(1);
  RunWorld(2, [&](const Rank& self) {
    Model model(self.comm, 1);
    Async(&model.options);
    model.MakeEdit(0);
    entrain_state_t* state = nullptr;
    ASSERT_OK(entrain_edit_open_state(model.edit, ENTRAIN_CHECKPOINT_PORTABLE, &state, nullptr));
    if (self.rank == 1) {
      tried.wait();
      EXPECT_OK(entrain_edit_leave(model.edit, nullptr));
      entrain_state_destroy(state);
      return;
    }
    entrain_work_t *work = nullptr, *other = nullptr;
    ASSERT_OK(entrain_edit_leave(model.edit, &work));
    int32_t number = 0;
    size_t index = 0;
    double norm = 0;
    void* pointer = nullptr;
    std::vector<float> room(model.params.size());
    entrain_edit_info_t info;
    entrain_edit_info_init(&info);
    entrain_edit_replica_t replica;
    entrain_edit_replica_init(&replica);
    entrain_shard_stats_t stats;
    entrain_shard_stats_init(&stats);
    entrain_state_t* opened = nullptr;
    entrain_checkpoint_functions_t functions;
    entrain_checkpoint_functions_init(&functions);
    entrain_edit_t* edit = model.edit;
    entrain_shard_t* shard = model.shard;
    EXPECT_NOT_OVER(entrain_edit_begin_forward(edit, 1, 1, &number, nullptr));
    EXPECT_NOT_OVER(entrain_edit_wait_layer(edit, 0));
    EXPECT_NOT_OVER(entrain_edit_layer_work(edit, 0, &other));
    EXPECT_NOT_OVER(entrain_edit_end_step(edit));
    EXPECT_NOT_OVER(entrain_edit_record(edit, 1, 1, 1));
    EXPECT_NOT_OVER(entrain_edit_gradient_scope(edit, &number));
    EXPECT_NOT_OVER(entrain_edit_replica(edit, 0, &replica));
    EXPECT_NOT_OVER(entrain_edit_info(edit, &info));
    EXPECT_NOT_OVER(entrain_edit_anchor(edit, room.data(), ENTRAIN_F32));
    EXPECT_NOT_OVER(entrain_edit_layer_report(edit, 0, nullptr, nullptr, nullptr));
    EXPECT_NOT_OVER(entrain_edit_layer_score(edit, 0, nullptr, nullptr));
    EXPECT_NOT_OVER(
        entrain_edit_add_state(edit, "x", room.data(), 1, ENTRAIN_F32, ENTRAIN_STATE_RANK));
    EXPECT_NOT_OVER(entrain_edit_save(edit, nullptr, nullptr, nullptr));
    EXPECT_NOT_OVER(entrain_edit_load(edit, nullptr, nullptr, nullptr));
    EXPECT_NOT_OVER(entrain_edit_save(edit, nullptr, &functions, nullptr));
    EXPECT_NOT_OVER(entrain_edit_load(edit, nullptr, &functions, nullptr));
    EXPECT_NOT_OVER(entrain_edit_open_state(edit, ENTRAIN_CHECKPOINT_PORTABLE, &opened, nullptr));
    EXPECT_NOT_OVER(entrain_state_get(state, 0, room.data(), 1, ENTRAIN_F32));
    EXPECT_NOT_OVER(entrain_state_set(state, 0, room.data(), 1, ENTRAIN_F32));
    EXPECT_NOT_OVER(entrain_state_commit(state, 0, nullptr));
    EXPECT_NOT_OVER(entrain_shard_bind(shard, room.data(), nullptr, ENTRAIN_F32));
    EXPECT_NOT_OVER(entrain_shard_bind_layers(shard, &pointer, nullptr, ENTRAIN_F32));
    EXPECT_NOT_OVER(entrain_shard_load(shard, 0, room.data(), ENTRAIN_F32));
    EXPECT_NOT_OVER(entrain_shard_broadcast(shard, nullptr));
    EXPECT_NOT_OVER(entrain_shard_broadcast(shard, &other));
    EXPECT_NOT_OVER(entrain_shard_begin_pass(shard, ENTRAIN_PASS_FORWARD));
    EXPECT_NOT_OVER(entrain_shard_gather(shard, 0));
    EXPECT_NOT_OVER(entrain_shard_wait(shard, 0, &pointer));
    EXPECT_NOT_OVER(entrain_shard_gather_work(shard, 0, &other));
    EXPECT_NOT_OVER(entrain_shard_release(shard, 0));
    EXPECT_NOT_OVER(entrain_shard_gradients(shard, 0, &pointer));
    EXPECT_NOT_OVER(entrain_shard_reduce_gradients(shard, 0));
    EXPECT_NOT_OVER(entrain_shard_finish_gradients(shard));
    EXPECT_NOT_OVER(entrain_shard_gradients_work(shard, &other));
    EXPECT_NOT_OVER(entrain_shard_set_buffers(shard, 0, nullptr, nullptr));
    EXPECT_NOT_OVER(entrain_shard_gradient_norm(shard, &norm, nullptr));
    EXPECT_NOT_OVER(entrain_shard_set_gradients(shard, ENTRAIN_GRADIENTS_LOCAL));
    EXPECT_NOT_OVER(entrain_shard_stats(shard, &stats));
    // Values that do not change may be read.
    entrain_shard_layer_t layer;
    entrain_shard_layer_init(&layer);
    EXPECT_OK(entrain_shard_layer_info(shard, 0, &layer));
    EXPECT_OK(entrain_shard_slab_count(shard, &index));
    EXPECT_OK(entrain_state_count(state, &index));
    tried.count_down();
    EXPECT_OK(entrain_work_wait(work, -1));
    entrain_work_free(work);
    EXPECT_OK(entrain_edit_info(edit, &info));
    EXPECT_OK(entrain_shard_stats(shard, &stats));
    entrain_state_destroy(state);
  });
}

// A checkpoint in memory, which other threads read and write.
struct Bytes {
  std::string data;
  static int32_t WriteAt(void* user, int64_t offset, const void* from, size_t bytes) {
    std::string& to = static_cast<Bytes*>(user)->data;
    to.resize(std::max(to.size(), static_cast<size_t>(offset) + bytes));
    to.replace(static_cast<size_t>(offset), bytes, static_cast<const char*>(from), bytes);
    return 0;
  }
  static int32_t ReadAt(void* user, int64_t offset, void* to, size_t bytes) {
    static_cast<Bytes*>(user)->data.copy(static_cast<char*>(to), bytes,
                                         static_cast<size_t>(offset));
    return 0;
  }
  entrain_checkpoint_functions_t functions() {
    entrain_checkpoint_functions_t functions;
    entrain_checkpoint_functions_init(&functions);
    functions.user = this;
    functions.write_at = WriteAt;
    functions.finish = [](void*) { return 0; };
    functions.read_at = ReadAt;
    functions.bytes = static_cast<int64_t>(data.size());
    return functions;
  }
};

void WaitAndFree(entrain_work_t* work) {
  EXPECT_OK(entrain_work_wait(work, -1));
  entrain_work_free(work);
}

// All checkpoint calls of an object with these functions.
template <typename Object>
struct CheckpointCalls {
  entrain_status_t (*save)(Object*, const entrain_checkpoint_config_t*,
                           const entrain_checkpoint_functions_t*, entrain_work_t**);
  entrain_status_t (*load)(Object*, const entrain_checkpoint_config_t*,
                           const entrain_checkpoint_functions_t*, entrain_work_t**);
  entrain_status_t (*open)(Object*, int32_t, entrain_state_t**, entrain_work_t**);

  void TryAll(Object* object, const std::string& name) const {
    static const std::string directory = testing::TempDir();
    entrain_checkpoint_config_t config;
    entrain_checkpoint_config_init(&config);
    config.save_dir = directory.c_str();
    config.ckpt_name = name.c_str();
    entrain_work_t* work = nullptr;
    ASSERT_OK(save(object, &config, nullptr, &work));
    WaitAndFree(work);
    ASSERT_OK(load(object, &config, nullptr, &work));
    WaitAndFree(work);
    Bytes bytes;
    entrain_checkpoint_functions_t functions = bytes.functions();
    ASSERT_OK(save(object, nullptr, &functions, &work));
    functions = {};  // the call has copied them
    WaitAndFree(work);
    functions = bytes.functions();
    ASSERT_OK(load(object, nullptr, &functions, &work));
    WaitAndFree(work);
    entrain_state_t* state = nullptr;
    ASSERT_OK(open(object, ENTRAIN_CHECKPOINT_PORTABLE, &state, &work));
    WaitAndFree(work);
    ASSERT_NE(state, nullptr);
    size_t count = 0;
    ASSERT_OK(entrain_state_count(state, &count));
    for (size_t i = 0; i < count; ++i) {
      entrain_state_info_t info;
      entrain_state_info_init(&info);
      ASSERT_OK(entrain_state_info(state, i, &info));
      std::vector<double> room(info.count + 1);
      ASSERT_OK(entrain_state_get(state, i, room.data(), info.count, info.dtype));
      ASSERT_OK(entrain_state_set(state, i, room.data(), info.count, info.dtype));
    }
    ASSERT_OK(entrain_state_commit(state, 0, &work));
    entrain_state_destroy(state);  // the commit continues
    WaitAndFree(work);
  }
};

struct Channel {
  explicit Channel(entrain_comm_t* comm, entrain_acco_schedule_fn schedule = nullptr) {
    entrain_optim_config_t optim_config;
    entrain_optim_config_init(&optim_config);
    EXPECT_OK(entrain_optim_create(&optim_config, &optim));
    entrain_acco_config_t config;
    entrain_acco_config_init(&config);
    config.params = params;
    config.count = std::size(params);
    config.optim = optim;
    config.schedule = schedule;
    EXPECT_OK(entrain_acco_create(comm, &config, &acco));
  }
  ~Channel() {
    entrain_acco_destroy(acco);
    entrain_optim_destroy(optim);
  }
  float params[6] = {};
  entrain_optim_t* optim = nullptr;
  entrain_acco_t* acco = nullptr;
};

TEST_P(StartedTraining, CheckpointsAndStatesAreCallsThatAreStarted) {
  RunWorld(
      2,
      [](const Rank& self) {
        Model model(self.comm, 2);
        model.MakeEdit(0);
        int32_t syncing = 0;
        ASSERT_OK(entrain_edit_begin_forward(model.edit, 1, 1, &syncing, nullptr));
        for (int32_t layer = 0; layer < kLayers; ++layer) {
          ASSERT_OK(entrain_edit_wait_layer(model.edit, layer));
        }
        CheckpointCalls<entrain_edit_t>{entrain_edit_save, entrain_edit_load,
                                        entrain_edit_open_state}
            .TryAll(model.edit, "started-edit");
        Channel channel(self.comm);
        CheckpointCalls<entrain_acco_t>{entrain_acco_save, entrain_acco_load,
                                        entrain_acco_open_state}
            .TryAll(channel.acco, "started-acco");
      },
      options());
}

// Rank 0 starts a call that rank 1 never makes.
TEST(StartedTrainingCalls, DestroyedUnderAStartedSaveEndsItEverywhere) {
  RunWorld(2, [](const Rank& self) {
    Model model(self.comm, 1);
    model.MakeEdit(0);
    Channel channel(self.comm);
    int32_t syncing = 0;
    ASSERT_OK(entrain_edit_begin_forward(model.edit, 1, 1, &syncing, nullptr));
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      ASSERT_OK(entrain_edit_wait_layer(model.edit, layer));
    }
    EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
    if (self.rank == 0) {
      Bytes bytes;
      const entrain_checkpoint_functions_t functions = bytes.functions();
      entrain_work_t *edit = nullptr, *acco = nullptr;
      ASSERT_OK(entrain_edit_save(model.edit, nullptr, &functions, &edit));
      ASSERT_OK(entrain_acco_save(channel.acco, nullptr, &functions, &acco));
      EXPECT_EQ(entrain_work_wait(edit, 1'000'000), ENTRAIN_IN_PROGRESS);
      EXPECT_EQ(entrain_work_wait(acco, 1'000'000), ENTRAIN_IN_PROGRESS);
      int32_t ready = 0;
      EXPECT_FAILS(entrain_acco_poll(channel.acco, &ready), ENTRAIN_FAILED_PRECONDITION,
                   "acco_save, which was started, is not over");
      entrain_edit_destroy(std::exchange(model.edit, nullptr));
      entrain_acco_destroy(std::exchange(channel.acco, nullptr));
      EXPECT_FAILS(entrain_work_wait(edit, -1), ENTRAIN_ABORTED, "destroyed during a call");
      EXPECT_FAILS(entrain_work_wait(acco, -1), ENTRAIN_ABORTED, "destroyed during a call");
      entrain_work_free(edit);
      entrain_work_free(acco);
      EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
    } else {
      EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
      EXPECT_FAILS(entrain_edit_save(model.edit, nullptr, nullptr, nullptr), ENTRAIN_ABORTED,
                   "destroyed during a call");
      EXPECT_FAILS(entrain_acco_save(channel.acco, nullptr, nullptr, nullptr), ENTRAIN_ABORTED,
                   "destroyed during a call");
    }
  });
}

// A commit continues when its state's handle is destroyed, and ends when its object is destroyed.
TEST(StartedTrainingCalls, DestroyedUnderAStartedCommitEndsIt) {
  RunWorld(2, [](const Rank& self) {
    Channel channel(self.comm);
    AwaitCreation(self);
    if (self.rank == 0) {
      entrain_state_t* state = nullptr;
      ASSERT_OK(
          entrain_acco_open_state(channel.acco, ENTRAIN_CHECKPOINT_PORTABLE, &state, nullptr));
      entrain_work_t* work = nullptr;
      ASSERT_OK(entrain_state_commit(state, 0, &work));
      EXPECT_EQ(entrain_work_wait(work, 1'000'000), ENTRAIN_IN_PROGRESS);
      entrain_state_destroy(state);
      EXPECT_EQ(entrain_work_wait(work, 1'000'000), ENTRAIN_IN_PROGRESS);
      entrain_acco_destroy(std::exchange(channel.acco, nullptr));
      EXPECT_FAILS(entrain_work_wait(work, -1), ENTRAIN_ABORTED, "destroyed during a call");
      entrain_work_free(work);
    }
    EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
  });
}

TEST_P(StartedTraining, RoundsOfAccoAreWaitedForByWorks) {
  RunWorld(
      2,
      [](const Rank& self) {
        Channel channel(self.comm);
        for (int round = 0; round < 4; ++round) {
          ASSERT_OK(entrain_acco_add(channel.acco, 1, 1));
          entrain_work_t* work = nullptr;
          ASSERT_OK(entrain_acco_work(channel.acco, &work));
          entrain_work_info_t info;
          entrain_work_info_init(&info);
          ASSERT_OK(entrain_work_info(work, &info));
          EXPECT_STREQ(info.operation, "acco_round");
          WaitAndFree(work);
          int32_t ready = 0, finished = 1;
          EXPECT_OK(entrain_acco_poll(channel.acco, &ready));
          EXPECT_EQ(ready, 1);
          if (round < 3) {  // no round follows the last one
            ASSERT_OK(entrain_acco_install(channel.acco, &finished));
          }
        }
        EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
      },
      options());
}

TEST(StartedTrainingCalls, ARoundThatEndsBadlyIsWhatItsWorkSays) {
  RunWorld(2, [](const Rank& self) {
    // With a schedule the destruction waits for the round for 1 s.
    Channel channel(self.comm, [](void*, int64_t) { return 0.1; });
    int32_t finished = 0;
    if (self.rank == 0) {
      entrain_work_t* work = nullptr;
      EXPECT_FAILS(entrain_acco_work(channel.acco, &work), ENTRAIN_FAILED_PRECONDITION,
                   "0 of at least 1");
      ASSERT_OK(entrain_acco_add(channel.acco, 1, 1));
      ASSERT_OK(entrain_acco_install(channel.acco, &finished));
      ASSERT_OK(entrain_acco_add(channel.acco, 1, 1));
      ASSERT_OK(entrain_acco_work(channel.acco, &work));
      EXPECT_EQ(entrain_work_wait(work, 1'000'000), ENTRAIN_IN_PROGRESS);
      entrain_acco_destroy(std::exchange(channel.acco, nullptr));
      EXPECT_FAILS(entrain_work_wait(work, -1), ENTRAIN_ABORTED,
                   "destroyed ");  // during a round, or before it began
      entrain_work_free(work);
    }
    EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
  });
}

TEST_P(StartedTraining, TheGradientNormIsACallThatIsStarted) {
  RunWorld(
      2,
      [](const Rank& self) {
        Model model(self.comm, 2);
        std::fill(model.grads.begin(), model.grads.end(), 0.0f);
        model.grads[0] = self.rank == 0 ? 3 : 4;
        double norm = 0;
        entrain_work_t* work = nullptr;
        ASSERT_OK(entrain_shard_gradient_norm(model.shard, &norm, &work));
        WaitAndFree(work);
        EXPECT_EQ(norm, 5);
      },
      options());
}

TEST(StartedTrainingCalls, DestroyedUnderAStartedNormEndsIt) {
  RunWorld(2, [](const Rank& self) {
    Model model(self.comm, 2);
    AwaitCreation(self);
    if (self.rank == 0) {
      double norm = 0;
      entrain_work_t* work = nullptr;
      ASSERT_OK(entrain_shard_gradient_norm(model.shard, &norm, &work));
      EXPECT_EQ(entrain_work_wait(work, 1'000'000), ENTRAIN_IN_PROGRESS);
      entrain_shard_destroy(std::exchange(model.shard, nullptr));
      EXPECT_FAILS(entrain_work_wait(work, -1), ENTRAIN_ABORTED, "destroyed during a call");
      entrain_work_free(work);
    }
    EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
  });
}

TEST(StartedTrainingCalls, WorksMadeInDone) {
  struct Next {
    entrain_edit_t* edit;
    entrain_work_t *first = nullptr, *layer = nullptr;
    std::atomic<int> over{0};
  };
  RunWorld(2, [](const Rank& self) {
    Model model(self.comm, 1);
    model.MakeEdit(static_cast<float>(2 * self.rank));
    int32_t syncing = 0;
    ASSERT_OK(entrain_edit_begin_forward(model.edit, 1, 1, &syncing, nullptr));
    Next next{.edit = model.edit};
    ASSERT_OK(entrain_barrier(self.comm, nullptr, &next.first));
    ASSERT_OK(entrain_work_notify(
        next.first,
        [](entrain_status_t, void* user) {
          auto* const made = static_cast<Next*>(user);
          ASSERT_OK(entrain_edit_layer_work(made->edit, kLayers - 1, &made->layer));
          EXPECT_OK(entrain_work_notify(made->layer, AddOne, &made->over));
        },
        &next));
    EXPECT_TRUE(Becomes([&] { return next.over == 1; }));
    EXPECT_EQ(model.params.back(), 1.0f);
    entrain_work_free(next.first);
    entrain_work_free(next.layer);
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      EXPECT_OK(entrain_edit_wait_layer(model.edit, layer));
    }
  });
}

TEST(StartedTrainingCalls, RefusesWhatTheBlockingCallsRefuse) {
  RunWorld(1, [](const Rank& self) {
    Model model(self.comm, 1);
    model.MakeEdit(0);
    entrain_work_t* work = nullptr;
    EXPECT_FAILS(entrain_edit_layer_work(model.edit, 9, &work), ENTRAIN_INVALID_ARGUMENT,
                 "layer 9 is not one of 3");
    EXPECT_FAILS(entrain_edit_layer_work(model.edit, 0, nullptr), ENTRAIN_INVALID_ARGUMENT,
                 "work is NULL");
    EXPECT_FAILS(entrain_shard_gather_work(model.shard, -1, &work), ENTRAIN_INVALID_ARGUMENT,
                 "layer -1");
    EXPECT_FAILS(entrain_shard_gradients_work(nullptr, &work), ENTRAIN_INVALID_ARGUMENT,
                 "shard is NULL");
    EXPECT_FAILS(entrain_edit_begin_forward(model.edit, 1, 1, nullptr, &work),
                 ENTRAIN_INVALID_ARGUMENT, "syncing is NULL");
    EXPECT_FAILS(entrain_edit_leave(nullptr, &work), ENTRAIN_INVALID_ARGUMENT, "edit is NULL");
    EXPECT_FAILS(entrain_shard_gradient_norm(model.shard, nullptr, &work), ENTRAIN_INVALID_ARGUMENT,
                 "norm is NULL");
    EXPECT_FAILS(entrain_edit_open_state(model.edit, ENTRAIN_CHECKPOINT_PORTABLE, nullptr, &work),
                 ENTRAIN_INVALID_ARGUMENT, "state is NULL");
    EXPECT_EQ(work, nullptr);
  });
}

// The main thread returns while calls are under way that nothing will end: a collective, a started
// call, an exchange, and a round of ACCO. Their objects are never destroyed, and other threads
// continue.
using StartedTrainingDeathTest = StartedTraining;

void LeaveCallsUnderWay(const Rank& self, std::latch& all_began) {
  auto* const model = new Model(self.comm, 1);
  auto* const leaves = new Model(self.comm, 1);
  auto* const channel = new Channel(self.comm);
  static std::array<std::array<void*, 3>, 2> left;  // avoids a leak report
  left.at(static_cast<size_t>(self.rank)) = {model, leaves, channel};
  Async(&leaves->options);
  model->MakeEdit(0);
  leaves->MakeEdit(0);
  if (self.rank == 0) {
    static float data[1000] = {};
    static std::array<entrain_work_t*, 3> works;
    int32_t number = 0;
    EXPECT_OK(entrain_edit_begin_forward(model->edit, 1, 1, &number, nullptr));
    EXPECT_EQ(number, 1);
    EXPECT_OK(entrain_edit_layer_work(model->edit, 0, &works[0]));
    EXPECT_OK(entrain_edit_leave(leaves->edit, &works[1]));
    EXPECT_OK(entrain_acco_add(channel->acco, 1, 1));
    EXPECT_OK(entrain_acco_install(channel->acco, &number));
    EXPECT_OK(entrain_all_reduce(self.comm, data, data, 1000, ENTRAIN_F32, ENTRAIN_SUM, nullptr,
                                 &works[2]));
    EXPECT_EQ(entrain_work_wait(works[2], 20'000'000), ENTRAIN_IN_PROGRESS);
  }
  all_began.count_down();
}

[[noreturn]] void ExitWithCallsUnderWay(const WorldOptions& options) {
  static std::latch all_began(2), never(1);
  static const WorldOptions world = options;
  const auto rank = [](const Rank& self) {
    LeaveCallsUnderWay(self, all_began);
    never.wait();
  };
  std::thread([rank] { RunWorld(2, rank, world); }).detach();
  all_began.wait();
  std::exit(testing::Test::HasFailure() ? 1 : 0);
}

TEST_P(StartedTrainingDeathTest, ExitWithCallsUnderWay) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(ExitWithCallsUnderWay(options()), testing::ExitedWithCode(0), "");
}
INSTANTIATE_TEST_SUITE_P(Progress, StartedTrainingDeathTest,
                         testing::Values(ENTRAIN_PROGRESS_THREAD, ENTRAIN_PROGRESS_CALLER));

}  // namespace
}  // namespace entrain_test
