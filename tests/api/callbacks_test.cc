// Functions of the caller that the library calls: one that fails, one that does not return, and one
// that calls the library.
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <latch>
#include <limits>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/api/world.h"
#include "tests/support/wait.h"

namespace entrain_test {
namespace {

using entrain::Becomes;
using testing::HasSubstr;

entrain_error_t ErrorOf(const entrain_comm_t* comm) {
  entrain_error_t error;
  entrain_error_init(&error);
  entrain_comm_error(comm, &error);
  return error;
}

// Expects that the last error of this thread blames `rank`, also in its text.
void ExpectGuilty(int rank) {
  entrain_error_t error;
  entrain_error_init(&error);
  ASSERT_OK(entrain_last_error_record(&error));
  EXPECT_EQ(error.guilty_rank, rank);
  EXPECT_THAT(error.text, HasSubstr("rank " + std::to_string(rank)));
}

// ---- Reductions

// Adds, then returns *user.
int32_t AddAndReturn(void* dst, const void* src, size_t count, entrain_dtype_t, void* user) {
  for (size_t i = 0; i < count; ++i) {
    static_cast<float*>(dst)[i] += static_cast<const float*>(src)[i];
  }
  return *static_cast<const int32_t*>(user);
}

struct Shape {
  size_t count;
  const char* algorithms;
};

class FailingReduction : public testing::TestWithParam<Shape> {};

// Blocking and started calls, each with one lane and with many.
TEST_P(FailingReduction, EndsTheCommunicatorEverywhereWithTheNumber) {
  for (const bool started : {false, true}) {
    std::barrier all_reduced(3);
    RunWorld(
        3,
        [&](const Rank& self) {
          std::vector<float> data(GetParam().count, 1);
          int32_t returns = 0;
          entrain_call_options_t options;
          entrain_call_options_init(&options);
          ASSERT_OK(entrain_reduction_user(AddAndReturn, &returns, 1, 1, &options.reduction));
          const auto reduce = [&] {
            entrain_work_t* work = nullptr;
            entrain_status_t code =
                entrain_all_reduce(self.comm, data.data(), data.data(), data.size(), ENTRAIN_F32,
                                   ENTRAIN_REDUCTION, &options, started ? &work : nullptr);
            if (started && code == ENTRAIN_OK) {
              code = entrain_work_wait(work, -1);
              entrain_work_free(work);
            }
            return code;
          };
          EXPECT_OK(reduce());
          EXPECT_EQ(data.back(), 3);
          all_reduced.arrive_and_wait();  // otherwise a rank may still be in the first call when
                                          // the communicator ends
          returns = self.rank == 1 ? 5 : 0;
          const entrain_status_t code = reduce();
          // A rank that needs nothing more from rank 1 may be done.
          if (self.rank == 1 || code != ENTRAIN_OK) {
            EXPECT_EQ(code, ENTRAIN_ABORTED);
            EXPECT_THAT(LastError(),
                        HasSubstr("rank 1: the user reduction of all_reduce #3 returned 5"));
          }
          EXPECT_FAILS(entrain_barrier(self.comm, nullptr, nullptr), ENTRAIN_ABORTED,
                       "rank 1: the user reduction of all_reduce #3 returned 5");
          const entrain_error_t error = ErrorOf(self.comm);
          EXPECT_EQ(error.guilty_rank, 1);
          EXPECT_EQ(error.phase, ENTRAIN_PHASE_REDUCE);
          entrain_reduction_destroy(options.reduction);
        },
        {.algorithms = GetParam().algorithms});
  }
}

INSTANTIATE_TEST_SUITE_P(Of, FailingReduction,
                         testing::Values(Shape{2, "all_reduce:two_step"},
                                         Shape{3'000'000, "all_reduce:ring"}),
                         [](const auto& test) { return std::to_string(test.param.count); });

// ---- EDiT

constexpr size_t kLayerCounts[] = {6, 5};

struct OuterStep {
  int32_t fails_in_layer = -1;
  int calls = 0;
  const Rank* self = nullptr;
};

void ExpectOnlyLooksInside(const std::string& name, const Rank& self);

int32_t TakeGradient(void* user, int32_t layer, int64_t, float* anchor, const float* grad,
                     size_t count) {
  auto& step = *static_cast<OuterStep*>(user);
  ++step.calls;
  ExpectOnlyLooksInside("the outer step of layer " + std::to_string(layer), *step.self);
  for (size_t i = 0; i < count; ++i) {
    anchor[i] -= grad[i];
  }
  return layer == step.fails_in_layer ? 7 : 0;
}

class Edit {
 public:
  // `step` null: without an outer optimizer, or with `outer_step`.
  Edit(const Rank& self, OuterStep* step, entrain_outer_step_fn outer_step = nullptr,
       void* outer_user = nullptr, int32_t shard_size = 1) {
    entrain_mesh_config_t mesh_config;
    entrain_mesh_config_init(&mesh_config);
    mesh_config.shard = shard_size;
    EXPECT_OK(entrain_mesh_create(self.comm, &mesh_config, &mesh_));
    entrain_shard_config_t shard_config;
    entrain_shard_config_init(&shard_config);
    shard_config.layers = 2;
    shard_config.layer_counts = kLayerCounts;
    EXPECT_OK(entrain_shard_create(mesh_, &shard_config, &shard));
    size_t count = 0;
    EXPECT_OK(entrain_shard_slab_count(shard, &count));
    params.assign(count, 1);
    grads.resize(count);
    EXPECT_OK(entrain_shard_bind(shard, params.data(), grads.data(), ENTRAIN_F32));
    entrain_edit_config_t config;
    entrain_edit_config_init(&config);
    config.shard = shard;
    if (step != nullptr || outer_step != nullptr) {
      config.outer_optimizer = ENTRAIN_OUTER_CALLBACK;
      config.outer_step = step != nullptr ? TakeGradient : outer_step;
      config.outer_user = step != nullptr ? step : outer_user;
    }
    EXPECT_OK(entrain_edit_create(mesh_, &config, &edit));
  }
  ~Edit() {
    entrain_edit_destroy(edit);
    entrain_shard_destroy(shard);
    entrain_mesh_destroy(mesh_);
  }
  Edit(const Edit&) = delete;
  Edit& operator=(const Edit&) = delete;

  std::vector<float> params, grads;
  entrain_shard_t* shard = nullptr;
  entrain_edit_t* edit = nullptr;

 private:
  entrain_mesh_t* mesh_ = nullptr;
};

TEST(FailingOuterStep, EndsTheExchangeEverywhereAndPublishesNothing) {
  RunWorld(2, [](const Rank& self) {
    OuterStep step{.fails_in_layer = self.rank == 0 ? 0 : -1, .self = &self};
    Edit made(self, &step);
    entrain_edit_t* const edit = made.edit;
    std::vector<float>& params = made.params;
    int32_t syncing = 0;
    ASSERT_OK(entrain_edit_begin_forward(edit, 1, 1, &syncing, nullptr));
    params.assign(params.size(), static_cast<float>(2 + self.rank));
    ASSERT_OK(entrain_edit_end_step(edit));
    entrain_status_t code = ENTRAIN_OK;
    // Rank 1 may have received all data of this exchange before rank 0 fails. Then the next
    // exchange returns the error.
    for (int round = 0; round < 2 && code == ENTRAIN_OK; ++round) {
      code = entrain_edit_begin_forward(edit, 1, 1, &syncing, nullptr);
      for (int32_t layer = 0; layer < 2 && code == ENTRAIN_OK; ++layer) {
        code = entrain_edit_wait_layer(edit, layer);
      }
      code = code == ENTRAIN_OK ? entrain_edit_end_step(edit) : code;
    }
    EXPECT_EQ(code, ENTRAIN_ABORTED);
    EXPECT_THAT(LastError(), HasSubstr("the outer step of layer 0, step 1, returned 7"));
    if (self.rank == 1) {
      ExpectGuilty(0);
    } else {
      EXPECT_EQ(step.calls, 1);
      EXPECT_THAT(params, testing::Each(2));
    }
  });
}

// ---- ACCO

struct AccoStep {
  int64_t fails_at = 0;
};

int32_t CountDown(void* user, int32_t preview, int64_t step, double, size_t, size_t count,
                  const void*, void* master, void* out) {
  for (size_t i = 0; i < count; ++i) {
    static_cast<float*>(preview != 0 ? out : master)[i] = static_cast<const float*>(master)[i] - 1;
  }
  return step == static_cast<AccoStep*>(user)->fails_at ? 9 : 0;
}

double RateOf(void*, int64_t progress) {
  return progress == 0 ? 1 : std::numeric_limits<double>::quiet_NaN();
}

class Acco {
 public:
  Acco(const Rank& self, AccoStep* step, entrain_acco_schedule_fn schedule) : rank_(self.rank) {
    entrain_acco_config_t config;
    entrain_acco_config_init(&config);
    config.method = ENTRAIN_ACCO_ZERO1;
    config.params = params.data();
    config.count = params.size();
    config.step = CountDown;
    config.user = step;
    config.schedule = schedule;
    EXPECT_OK(entrain_acco_create(self.comm, &config, &acco));
  }
  ~Acco() { entrain_acco_destroy(acco); }
  entrain_status_t Step() const {
    EXPECT_OK(entrain_acco_add(acco, 1, 1));
    int32_t finished = 0;
    return entrain_acco_install(acco, &finished);
  }

  std::vector<float> params = std::vector<float>(10'000, 5);
  entrain_acco_t* acco = nullptr;

 private:
  const int rank_;
};

TEST(FailingAccoStep, EndsTheChannelEverywhereAndInstallsNothing) {
  RunWorld(2, [](const Rank& self) {
    AccoStep step{.fails_at = self.rank == 1 ? 2 : 0};
    Acco acco(self, &step, nullptr);
    ASSERT_OK(acco.Step());
    EXPECT_THAT(acco.params, testing::Each(4));
    EXPECT_FAILS(acco.Step(), ENTRAIN_ABORTED, "the ACCO step of commit 2 returned 9");
    if (self.rank == 0) {
      ExpectGuilty(1);
    }
    EXPECT_THAT(acco.params, testing::Each(4));
    int32_t finished = 0;
    EXPECT_FAILS(entrain_acco_install(acco.acco, &finished), ENTRAIN_ABORTED, "returned 9");
  });
}

TEST(FailingAccoStep, ARateThatIsNoneEndsTheChannelToo) {
  RunWorld(2, [](const Rank& self) {
    AccoStep step;
    Acco acco(self, &step, RateOf);
    ASSERT_OK(acco.Step());
    EXPECT_FAILS(acco.Step(), ENTRAIN_ABORTED, "the schedule of rates returned nan at progress 1");
    EXPECT_THAT(acco.params, testing::Each(4));
  });
}

TEST(AccoOptimizer, MayBeDestroyedBeforeTheChannel) {
  RunWorld(2, [](const Rank& self) {
    entrain_optim_config_t optim_config;
    entrain_optim_config_init(&optim_config);
    entrain_optim_t* optim = nullptr;
    ASSERT_OK(entrain_optim_create(&optim_config, &optim));
    std::vector<float> params(1000, 1);
    entrain_acco_config_t config;
    entrain_acco_config_init(&config);
    config.method = ENTRAIN_ACCO_ZERO1;
    config.params = params.data();
    config.count = params.size();
    config.optim = optim;
    entrain_acco_t* acco = nullptr;
    ASSERT_OK(entrain_acco_create(self.comm, &config, &acco));
    entrain_optim_destroy(optim);
    void* grads = nullptr;
    ASSERT_OK(entrain_acco_gradients(acco, &grads));
    static_cast<float*>(grads)[3] = 1;
    ASSERT_OK(entrain_acco_add(acco, 1, 1));
    int32_t finished = 0;
    EXPECT_OK(entrain_acco_install(acco, &finished));
    EXPECT_LT(params[3], 1);
    entrain_acco_destroy(acco);
  });
}

// ---- done() of entrain_work_notify

// A sum of one element, and a function that is called when it is over.
class Notified {
 public:
  Notified(entrain_comm_t* comm, std::function<void(entrain_status_t)> done)
      : done_(std::move(done)) {
    EXPECT_OK(
        entrain_all_reduce(comm, &data_, &data_, 1, ENTRAIN_F32, ENTRAIN_SUM, nullptr, &work_));
    EXPECT_OK(entrain_work_notify(work_, Call, this));
  }
  ~Notified() {
    EXPECT_TRUE(Over());
    entrain_work_free(work_);
  }
  // Returns whether done() has returned within a short time. Makes progress if no thread does.
  bool Over() {
    return Becomes([this] {
      int32_t over = 0;
      EXPECT_OK(entrain_work_test(work_, &over));
      return called_.load();
    });
  }

 private:
  static void Call(entrain_status_t status, void* user) {
    auto& self = *static_cast<Notified*>(user);
    self.done_(status);
    self.called_ = true;
  }

  entrain_work_t* work_ = nullptr;
  float data_ = 1;
  const std::function<void(entrain_status_t)> done_;
  std::atomic<bool> called_{false};
};

// The parameter tells which thread makes progress.
class Done : public testing::TestWithParam<int32_t> {
 protected:
  static WorldOptions options() {
    WorldOptions options;
    options.progress = GetParam();
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Progress, Done,
                         testing::Values(ENTRAIN_PROGRESS_THREAD, ENTRAIN_PROGRESS_CALLER),
                         [](const auto& test) {
                           return test.param == ENTRAIN_PROGRESS_THREAD ? "Thread" : "Caller";
                         });

TEST_P(Done, MayNotWait) {
  std::latch notified(1);
  RunWorld(
      2,
      [&](const Rank& self) {
        float data = 1;
        if (self.rank == 1) {
          notified.wait();
          EXPECT_OK(entrain_all_reduce(self.comm, &data, &data, 1, ENTRAIN_F32, ENTRAIN_SUM,
                                       nullptr, nullptr));
          EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
          EXPECT_OK(entrain_send(self.comm, &data, 1, ENTRAIN_F32, 0, nullptr, nullptr));
          return;
        }
        entrain_work_t* later = nullptr;
        ASSERT_OK(entrain_recv(self.comm, &data, 1, ENTRAIN_F32, 1, nullptr, &later));
        Notified sum(self.comm, [&](entrain_status_t status) {
          EXPECT_OK(status);
          EXPECT_FAILS(
              entrain_barrier(self.comm, nullptr, nullptr), ENTRAIN_FAILED_PRECONDITION,
              "entrain_barrier: called from the done() of all_reduce #2, which must not wait");
          entrain_comm_t* part = nullptr;
          EXPECT_FAILS(entrain_comm_split(self.comm, 0, 0, &part, nullptr),
                       ENTRAIN_FAILED_PRECONDITION,
                       "entrain_comm_split: called from the done() of all_reduce #2");
          EXPECT_FAILS(entrain_comm_drain(self.comm, 1), ENTRAIN_FAILED_PRECONDITION, "not wait");
          entrain_batch_t* batch = nullptr;
          EXPECT_OK(entrain_batch_create(self.comm, &batch));
          EXPECT_FAILS(entrain_batch_start(batch, nullptr), ENTRAIN_FAILED_PRECONDITION,
                       "not wait");
          entrain_batch_destroy(batch);
          EXPECT_FAILS(entrain_work_wait(later, -1), ENTRAIN_FAILED_PRECONDITION, "not wait");
          EXPECT_EQ(entrain_work_wait(later, 0), ENTRAIN_IN_PROGRESS);
          int32_t size = 0;
          EXPECT_OK(entrain_comm_size(self.comm, &size));
          EXPECT_EQ(size, 2);
        });
        notified.count_down();
        EXPECT_TRUE(sum.Over());
        EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
        EXPECT_OK(entrain_work_wait(later, -1));
        entrain_work_free(later);
      },
      options());
}

TEST_P(Done, MayAskTrainingWhatDoesNotWait) {
  RunWorld(
      2,
      [](const Rank& self) {
        AccoStep step;
        Acco acco(self, &step, nullptr);
        Edit edit(self, nullptr);
        int32_t syncing = 0;
        ASSERT_OK(entrain_edit_begin_forward(edit.edit, 1, 1, &syncing, nullptr));
        Notified(self.comm, [&](entrain_status_t) {
          EXPECT_OK(entrain_edit_record(edit.edit, 100, 1, 1));
          EXPECT_OK(entrain_edit_wish(edit.edit, ENTRAIN_WISH_STOP));
          EXPECT_OK(entrain_edit_request_sync(edit.edit));
          EXPECT_FAILS(entrain_edit_wait_layer(edit.edit, 0), ENTRAIN_FAILED_PRECONDITION,
                       "which must not wait");
          EXPECT_OK(entrain_edit_end_step(edit.edit));
          EXPECT_OK(entrain_acco_add(acco.acco, 1, 1));
          int32_t ready = -1;
          EXPECT_OK(entrain_acco_poll(acco.acco, &ready));
          EXPECT_EQ(ready, 1);
          EXPECT_OK(entrain_acco_stop(acco.acco));
          EXPECT_FAILS(entrain_acco_install(acco.acco, &ready), ENTRAIN_FAILED_PRECONDITION,
                       "which must not wait");
        });
        EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
      },
      options());
}

// Like a communication hook: the gradients of a layer are reduced when another call is over.
TEST_P(Done, MayGatherAndReduceALayer) {
  RunWorld(
      2,
      [](const Rank& self) {
        Edit edit(self, nullptr, nullptr, nullptr, 2);
        void* grads = nullptr;
        ASSERT_OK(entrain_shard_gradients(edit.shard, 0, &grads));
        static_cast<float*>(grads)[0] = 4;
        Notified(self.comm, [&](entrain_status_t) {
          EXPECT_OK(entrain_shard_begin_pass(edit.shard, ENTRAIN_PASS_BACKWARD));
          EXPECT_OK(entrain_shard_reduce_gradients(edit.shard, 0));
          EXPECT_OK(entrain_shard_gradients(edit.shard, 1, &grads));
          EXPECT_OK(entrain_shard_reduce_gradients(edit.shard, 1));
          EXPECT_OK(entrain_shard_gather(edit.shard, 0));
        });
        EXPECT_OK(entrain_shard_finish_gradients(edit.shard));
        void* params = nullptr;
        EXPECT_OK(entrain_shard_wait(edit.shard, 0, &params));
        Notified(self.comm, [&](entrain_status_t) {  // this does not wait
          EXPECT_OK(entrain_shard_wait(edit.shard, 0, &params));
          EXPECT_OK(entrain_shard_release(edit.shard, 0));
          EXPECT_OK(entrain_shard_finish_gradients(edit.shard));
        });
        EXPECT_EQ(edit.grads[0], self.rank == 0 ? 4 : 0);
        EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
      },
      options());
}

TEST_P(Done, MayNotWaitForALayer) {
  std::latch refused(1);
  RunWorld(
      2,
      [&](const Rank& self) {
        Edit edit(self, nullptr, nullptr, nullptr, 2);
        void* at = nullptr;
        if (self.rank == 0) {
          EXPECT_OK(entrain_shard_gather(edit.shard, 0));
          EXPECT_OK(entrain_shard_gradients(edit.shard, 1, &at));
          EXPECT_OK(entrain_shard_reduce_gradients(edit.shard, 1));
        }
        Notified(self.comm, [&](entrain_status_t) {
          if (self.rank == 0) {
            EXPECT_FAILS(entrain_shard_wait(edit.shard, 0, &at), ENTRAIN_FAILED_PRECONDITION,
                         "which must not wait");
            EXPECT_FAILS(entrain_shard_release(edit.shard, 0), ENTRAIN_FAILED_PRECONDITION,
                         "which must not wait");
            EXPECT_FAILS(entrain_shard_finish_gradients(edit.shard), ENTRAIN_FAILED_PRECONDITION,
                         "which must not wait");
            refused.count_down();
          }
        });
        refused.wait();
        if (self.rank == 1) {
          EXPECT_OK(entrain_shard_gradients(edit.shard, 1, &at));
          EXPECT_OK(entrain_shard_reduce_gradients(edit.shard, 1));
        }
        for (int32_t layer = 0; layer < 2; ++layer) {
          EXPECT_OK(entrain_shard_wait(edit.shard, layer, &at));
          EXPECT_OK(entrain_shard_release(edit.shard, layer));
        }
        EXPECT_OK(entrain_shard_finish_gradients(edit.shard));
        EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
      },
      options());
}

// Each done() starts the next call.
struct Chain {
  void Start() {
    EXPECT_OK(entrain_all_reduce(comm, &data, &data, 1, ENTRAIN_F32, ENTRAIN_MAX, nullptr, &work));
    EXPECT_OK(entrain_work_notify(
        work,
        [](entrain_status_t status, void* user) {
          auto& self = *static_cast<Chain*>(user);
          EXPECT_OK(status);
          entrain_work_free(self.work);
          if (self.left.fetch_sub(1) > 1) {
            self.Start();
          }
        },
        this));
  }

  entrain_comm_t* comm = nullptr;
  float data = 0;
  entrain_work_t* work = nullptr;
  std::atomic<int> left{100};
};

TEST_P(Done, MayStartCallsAndBeToldOfThem) {
  RunWorld(
      2,
      [&](const Rank& self) {
        Chain chain{.comm = self.comm, .data = static_cast<float>(self.rank)};
        entrain_comm_t* beside = nullptr;
        ASSERT_OK(entrain_comm_duplicate(self.comm, &beside, nullptr));
        chain.Start();
        for (int32_t both_over = 0; both_over == 0;) {
          both_over = chain.left == 0 ? 1 : 0;
          ASSERT_OK(entrain_all_reduce(beside, &both_over, &both_over, 1, ENTRAIN_I32, ENTRAIN_MIN,
                                       nullptr, nullptr));
        }
        EXPECT_EQ(chain.data, 1);
        entrain_comm_destroy(beside);
      },
      options());
}

// A lock that the caller holds over blocking calls, like an interpreter's lock, and that done()
// needs.
TEST_P(Done, ThatWaitsForALockStopsNobody) {
  std::latch notified(1), over(1);
  RunWorld(
      2,
      [&](const Rank& self) {
        entrain_comm_t* copy = nullptr;
        ASSERT_OK(entrain_comm_duplicate(self.comm, &copy, nullptr));
        entrain_call_options_t soon;
        entrain_call_options_init(&soon);
        soon.timeout_ns = 1'000'000'000;
        if (self.rank == 1) {
          notified.wait();
          Notified sum(self.comm, [](entrain_status_t) {});
          EXPECT_TRUE(sum.Over());
          EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
          EXPECT_OK(entrain_barrier(copy, nullptr, nullptr));
          over.wait();  // makes no call of the last one
        } else {
          std::mutex interpreter;
          std::unique_lock<std::mutex> held(interpreter);
          Notified sum(self.comm, [&](entrain_status_t) {
            const std::lock_guard<std::mutex> lock(interpreter);
          });
          notified.count_down();
          EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));  // the sum is over as well
          EXPECT_OK(entrain_barrier(copy, nullptr, nullptr));
          EXPECT_EQ(entrain_barrier(copy, &soon, nullptr), ENTRAIN_TIMED_OUT);
          held.unlock();
          EXPECT_TRUE(sum.Over());
          over.count_down();
        }
        entrain_comm_destroy(copy);
      },
      options());
}

TEST_P(Done, MayDestroyItsCommunicator) {
  RunWorld(
      2,
      [&](const Rank& self) {
        entrain_comm_t* copy = nullptr;
        ASSERT_OK(entrain_comm_duplicate(self.comm, &copy, nullptr));
        Notified(copy, [&](entrain_status_t status) {
          EXPECT_OK(status);
          entrain_comm_destroy(copy);
        });
        EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
      },
      options());
}

// The runtime ends with its last communicator, on the thread of callbacks.
TEST_P(Done, MayEndTheRuntime) {
  const std::string url = NewStoreUrl();
  std::barrier both_stand(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      entrain_comm_t* comm = nullptr;
      CreateRank(url, rank, 2, options(), &comm);
      both_stand.arrive_and_wait();
      Notified(comm, [&](entrain_status_t) { entrain_comm_destroy(comm); });
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
}

using DoneDeathTest = Done;

TEST_P(DoneDeathTest, MayBeUnderWayAtExit) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        static std::mutex never_given;
        static std::atomic<bool> entered{false};
        std::latch notified(1);
        never_given.lock();
        RunWorld(
            2,
            [&notified](const Rank& self) {
              float data = 1;
              if (self.rank == 1) {
                notified.wait();
              }
              entrain_work_t* work = nullptr;
              ASSERT_OK(entrain_all_reduce(self.comm, &data, &data, 1, ENTRAIN_F32, ENTRAIN_SUM,
                                           nullptr, &work));
              if (self.rank == 0) {
                ASSERT_OK(entrain_work_notify(
                    work,
                    [](entrain_status_t, void*) {
                      entered = true;
                      never_given.lock();
                    },
                    nullptr));
                notified.count_down();
              }
              EXPECT_OK(entrain_work_wait(work, -1));
              entrain_work_free(work);
              EXPECT_TRUE(Becomes([] { return entered.load(); }));
            },
            options());
        std::exit(testing::Test::HasFailure() ? 1 : 0);
      },
      testing::ExitedWithCode(0), "");
}
INSTANTIATE_TEST_SUITE_P(Progress, DoneDeathTest, testing::Values(ENTRAIN_PROGRESS_THREAD));

// ---- Functions that run on the thread that makes progress

// Makes calls of all kinds.
void ExpectOnlyLooksInside(const std::string& name, const Rank& self) {
  EXPECT_FAILS(entrain_barrier(self.comm, nullptr, nullptr), ENTRAIN_FAILED_PRECONDITION,
               "entrain_barrier: called from " + name);
  float data = 0;
  entrain_work_t* work = nullptr;
  EXPECT_FAILS(
      entrain_all_reduce(self.comm, &data, &data, 1, ENTRAIN_F32, ENTRAIN_SUM, nullptr, &work),
      ENTRAIN_FAILED_PRECONDITION, "entrain_all_reduce: called from " + name);
  entrain_comm_t* copy = nullptr;
  EXPECT_FAILS(entrain_comm_duplicate(self.comm, &copy, nullptr), ENTRAIN_FAILED_PRECONDITION,
               "which must not wait");
  EXPECT_FAILS(entrain_comm_abort(self.comm, "no"), ENTRAIN_FAILED_PRECONDITION,
               "which must not use the engine");
  entrain_comm_destroy(self.comm);  // has no effect
  int32_t rank = -1;
  EXPECT_OK(entrain_comm_rank(self.comm, &rank));
  EXPECT_EQ(rank, self.rank);
}

void Add(void* dst, const void* src, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    static_cast<float*>(dst)[i] += static_cast<const float*>(src)[i];
  }
}

// A sum of f32 that calls a function first.
class Sum {
 public:
  explicit Sum(std::function<void()> first) : first_(std::move(first)) {
    EXPECT_OK(entrain_reduction_user(Combine, this, 1, 1, &reduction_));
  }
  ~Sum() {
    EXPECT_TRUE(Becomes([this] { return !Busy(); }));
    entrain_reduction_destroy(reduction_);
  }
  bool Busy() const {
    int32_t busy = 0;
    EXPECT_OK(entrain_reduction_busy(reduction_, &busy));
    return busy != 0;
  }
  int calls() const { return calls_; }
  // timeout_ns 0: the communicator's default.
  entrain_status_t Reduce(entrain_comm_t* comm, std::vector<float>& data, int64_t timeout_ns = 0,
                          entrain_work_t** work = nullptr) const {
    entrain_call_options_t options;
    entrain_call_options_init(&options);
    options.reduction = reduction_;
    options.timeout_ns = timeout_ns;
    return entrain_all_reduce(comm, data.data(), data.data(), data.size(), ENTRAIN_F32,
                              ENTRAIN_REDUCTION, &options, work);
  }

 private:
  static int32_t Combine(void* dst, const void* src, size_t count, entrain_dtype_t, void* user) {
    auto& self = *static_cast<Sum*>(user);
    ++self.calls_;
    self.first_();
    Add(dst, src, count);
    return 0;
  }

  const std::function<void()> first_;
  std::atomic<int> calls_{0};
  entrain_reduction_t* reduction_ = nullptr;
};

// The parameter tells which thread makes progress.
class UserReduction : public Done {};
INSTANTIATE_TEST_SUITE_P(Progress, UserReduction,
                         testing::Values(ENTRAIN_PROGRESS_THREAD, ENTRAIN_PROGRESS_CALLER),
                         [](const auto& test) {
                           return test.param == ENTRAIN_PROGRESS_THREAD ? "Thread" : "Caller";
                         });

TEST_P(UserReduction, MayOnlyLook) {
  RunWorld(
      2,
      [](const Rank& self) {
        Sum sum([&] { ExpectOnlyLooksInside("the user reduction of all_reduce #2", self); });
        std::vector<float> data(1, 1);
        EXPECT_OK(sum.Reduce(self.comm, data));
        EXPECT_EQ(sum.calls(), 1);
        EXPECT_EQ(data[0], 2);
        EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
      },
      options());
}

// A lock that the caller holds over calls of other communicators, like an interpreter's lock.
TEST_P(UserReduction, ThatWaitsForALockStopsNobody) {
  std::latch over(1);
  RunWorld(
      2,
      [&](const Rank& self) {
        entrain_comm_t *copy = nullptr, *third = nullptr;
        ASSERT_OK(entrain_comm_duplicate(self.comm, &copy, nullptr));
        ASSERT_OK(entrain_comm_duplicate(self.comm, &third, nullptr));
        std::mutex interpreter;
        std::unique_lock<std::mutex> held(interpreter, std::defer_lock);
        Sum sum([&] { const std::lock_guard<std::mutex> lock(interpreter); });
        Sum free([] {});
        if (self.rank == 0) {
          held.lock();
        }
        std::vector<float> data(3000, 1), beside(10, 1);
        entrain_work_t* work = nullptr;
        ASSERT_OK(sum.Reduce(self.comm, data, 0, &work));
        EXPECT_OK(entrain_barrier(copy, nullptr, nullptr));
        EXPECT_OK(free.Reduce(copy, beside));
        EXPECT_EQ(beside[9], 2);
        if (self.rank == 0) {
          EXPECT_TRUE(Becomes([&] {
            int32_t is_over = 0;
            EXPECT_OK(entrain_work_test(work, &is_over));
            return sum.Busy();
          }));
          entrain_call_options_t soon;
          entrain_call_options_init(&soon);
          soon.timeout_ns = 500'000'000;
          EXPECT_EQ(entrain_barrier(third, &soon, nullptr), ENTRAIN_TIMED_OUT);
          held.unlock();
          over.count_down();
        } else {
          over.wait();  // makes no call of the last one
        }
        EXPECT_OK(entrain_work_wait(work, -1));
        EXPECT_EQ(data[2999], 2);
        entrain_work_free(work);
        EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
        entrain_comm_destroy(copy);
        entrain_comm_destroy(third);
      },
      options());
}

// The call is ended either by the deadline of the rank whose function does not return, or by the
// deadline of the other rank.
TEST_P(UserReduction, ThatDoesNotReturnEndsItsCallAtTheDeadline) {
  for (const int hurried : {0, 1}) {
    std::latch timed_out(2);
    RunWorld(2,
             [&](const Rank& self) {
               entrain_comm_t* copy = nullptr;
               ASSERT_OK(entrain_comm_duplicate(self.comm, &copy, nullptr));
               std::latch release(1);
               Sum sum([&] {
                 if (self.rank == 0) {
                   release.wait();
                 }
               });
               Sum free([] {});
               std::vector<float> data(3000, 1), beside(10, 1);
               const auto started = std::chrono::steady_clock::now();
               EXPECT_FAILS(
                   sum.Reduce(self.comm, data, self.rank == hurried ? 500'000'000 : 0),
                   ENTRAIN_TIMED_OUT,
                   "it is in the user reduction of all_reduce #3, which has not returned for ");
               EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(5));
               EXPECT_THAT(LastError(), HasSubstr("timed out on rank " + std::to_string(hurried)));
               entrain_error_t error;
               entrain_error_init(&error);
               ASSERT_OK(entrain_last_error_record(&error));
               EXPECT_EQ(error.guilty_rank, 0);
               EXPECT_EQ(error.phase, ENTRAIN_PHASE_REDUCE);
               timed_out.arrive_and_wait();
               EXPECT_EQ(sum.Busy(), self.rank == 0);
               data.assign(data.size(), 7);  // the memory is the caller's again
               EXPECT_OK(free.Reduce(copy, beside));
               EXPECT_EQ(beside[9], 2);
               release.count_down();
               EXPECT_TRUE(Becomes([&] { return !sum.Busy(); }));
               EXPECT_OK(entrain_barrier(copy, nullptr, nullptr));
               EXPECT_EQ(sum.calls(), 1);
               EXPECT_THAT(data, testing::Each(7));
               entrain_comm_destroy(copy);
             },
             {.algorithms = "all_reduce:ring", .progress = GetParam()});
  }
}

// The function may also outlive the runtime, because this is its last communicator.
TEST_P(UserReduction, MayOutliveItsCommunicator) {
  const std::string url = NewStoreUrl();
  std::barrier both(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      entrain_comm_t* comm = nullptr;
      CreateRank(url, rank, 2, options(), &comm);
      std::latch release(1);
      Sum sum([&] { release.wait(); });
      std::vector<float> data(3000, 1);
      entrain_work_t* work = nullptr;
      ASSERT_OK(sum.Reduce(comm, data, 0, &work));
      EXPECT_TRUE(Becomes([&] {
        int32_t over = 0;
        EXPECT_OK(entrain_work_test(work, &over));
        return sum.Busy();
      }));
      both.arrive_and_wait();
      entrain_comm_destroy(comm);
      EXPECT_EQ(entrain_work_wait(work, -1), ENTRAIN_ABORTED);
      entrain_work_free(work);
      data.assign(data.size(), 7);
      both.arrive_and_wait();
      release.count_down();
      EXPECT_TRUE(Becomes([&] { return !sum.Busy(); }));
      EXPECT_THAT(data, testing::Each(7));
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
}

// The lines that the library has logged.
class Log {
 public:
  static void Sink(int32_t, const char* line, void* user) {
    auto& self = *static_cast<Log*>(user);
    const std::lock_guard<std::mutex> lock(self.mutex_);
    self.text_ += line;
  }
  bool Has(const std::string& part) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return text_.find(part) != std::string::npos;
  }

 private:
  std::mutex mutex_;
  std::string text_;
};
Log& TheLog() {
  static Log* const log = new Log();  // the process's log function from then on
  return *log;
}

TEST(UserReductionLog, NamesOneThatDoesNotReturn) {
  entrain_runtime_config_t runtime_config;
  entrain_runtime_config_init(&runtime_config);
  runtime_config.log = Log::Sink;
  runtime_config.log_user = &TheLog();
  entrain_runtime_t* runtime = nullptr;
  ASSERT_OK(entrain_runtime_create(&runtime_config, &runtime));
  entrain_runtime_destroy(runtime);
  RunWorld(2, [](const Rank& self) {
    EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
    Sum sum([] {
      EXPECT_TRUE(Becomes([] {
        return TheLog().Has("the user reduction of all_reduce #3 has been running for 1");
      }));
    });
    std::vector<float> data(1, 1);
    EXPECT_OK(sum.Reduce(self.comm, data));
    EXPECT_EQ(data[0], 2);
  });
}

TEST(DoneLog, NamesOneThatHoldsUpOthers) {
  entrain_runtime_config_t runtime_config;
  entrain_runtime_config_init(&runtime_config);
  runtime_config.log = Log::Sink;
  runtime_config.log_user = &TheLog();
  entrain_runtime_t* runtime = nullptr;
  ASSERT_OK(entrain_runtime_create(&runtime_config, &runtime));
  entrain_runtime_destroy(runtime);
  // If a work is over, done() runs at once, and no other done() waits for it.
  std::latch notified(1);
  RunWorld(2, [&](const Rank& self) {
    if (self.rank == 0) {
      Notified sum(self.comm, [](entrain_status_t) {
        EXPECT_TRUE(Becomes(
            [] { return TheLog().Has("the done() of all_reduce #2 has been running for "); }));
      });
      notified.count_down();
    } else {
      notified.wait();
      float data = 1;
      EXPECT_OK(entrain_all_reduce(self.comm, &data, &data, 1, ENTRAIN_F32, ENTRAIN_SUM, nullptr,
                                   nullptr));
    }
  });
}

// No thread waits for the log function. Calls inside it are refused.
TEST(LogFunction, MayBlockAndMayNotWait) {
  static std::mutex lock;
  static std::atomic<entrain_comm_t*> comm{nullptr};
  static std::atomic<bool> entered{false};
  entrain_runtime_config_t runtime_config;
  entrain_runtime_config_init(&runtime_config);
  runtime_config.log = [](int32_t, const char*, void*) {
    entered = true;
    const std::lock_guard<std::mutex> held(lock);
    if (comm != nullptr) {
      EXPECT_FAILS(entrain_barrier(comm, nullptr, nullptr), ENTRAIN_FAILED_PRECONDITION,
                   "entrain_barrier: called from the log function, which must not use the engine");
    }
  };
  entrain_runtime_t* runtime = nullptr;
  ASSERT_OK(entrain_runtime_create(&runtime_config, &runtime));
  RunWorld(2, [](const Rank& self) {
    if (self.rank == 0) {
      comm = self.comm;
      lock.lock();
      // This call logs a line.
      uint64_t none[4] = {};
      entrain_comm_destroy(reinterpret_cast<entrain_comm_t*>(none));
      EXPECT_TRUE(Becomes([] { return entered.load(); }));
    }
    EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
    if (self.rank == 0) {
      lock.unlock();
    }
    EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
  });
  runtime_config.log = Log::Sink;
  runtime_config.log_user = &TheLog();
  entrain_runtime_t* other = nullptr;
  ASSERT_OK(entrain_runtime_create(&runtime_config, &other));
  comm = nullptr;
  entrain_runtime_destroy(other);
  entrain_runtime_destroy(runtime);
}

int32_t StepAndCall(void* user, int32_t, int64_t step, double, size_t, size_t, const void*, void*,
                    void*) {
  ExpectOnlyLooksInside("the ACCO step of commit " + std::to_string(step),
                        *static_cast<const Rank*>(user));
  return 0;
}

double RateAndCall(void* user, int64_t) {
  ExpectOnlyLooksInside("the schedule of rates", *static_cast<const Rank*>(user));
  return 1;
}

// ---- Steps that do not return

using std::chrono::steady_clock;

// A lock that the caller holds while it destroys the object of the step, like an interpreter's
// lock.
struct LockedStep {
  void Enter() {
    entered = true;
    const std::lock_guard<std::mutex> lock(interpreter);
    returns = true;
  }

  std::mutex interpreter;
  std::atomic<bool> entered{false}, returns{false};
};

int32_t OuterStepUnderLock(void* user, int32_t, int64_t, float* anchor, const float* grad,
                           size_t count) {
  static_cast<LockedStep*>(user)->Enter();
  for (size_t i = 0; i < count; ++i) {
    anchor[i] -= grad[i];
  }
  return 0;
}

int32_t AccoStepUnderLock(void* user, int32_t, int64_t, double, size_t, size_t, const void*, void*,
                          void*) {
  static_cast<LockedStep*>(user)->Enter();
  return 0;
}

double RateUnderLock(void* user, int64_t) {
  static_cast<LockedStep*>(user)->Enter();
  return 1;
}

int32_t StepOfNothing(void*, int32_t, int64_t, double, size_t, size_t, const void*, void*, void*) {
  return 0;
}

// Destroys the object while its step waits for the lock. The destruction does not wait for the
// step. When the step returns later, the library's memory still exists, and the caller's memory
// does not change.
void ExpectDestroyLeaves(LockedStep& step, std::vector<float>& params,
                         const std::function<void()>& destroy) {
  ASSERT_TRUE(Becomes([&] { return step.entered.load(); }));
  const auto started = steady_clock::now();
  destroy();
  EXPECT_LT(steady_clock::now() - started, std::chrono::seconds(4));
  EXPECT_FALSE(step.returns);
  params.assign(params.size(), 7);
  step.interpreter.unlock();
  EXPECT_TRUE(Becomes([&] { return step.returns.load(); }));
  const std::lock_guard<std::mutex> unlocked(step.interpreter);
}

// As above, with a started call that waits for the step.
TEST(OuterStepUnderALock, StopsNobodyFromDestroyingItsObject) {
  for (const bool leaving : {false, true}) {
    SCOPED_TRACE(leaving ? "leaving" : "in an exchange");
    std::barrier both(2);
    RunWorld(2, [&](const Rank& self) {
      LockedStep step;
      Edit made(self, nullptr, OuterStepUnderLock, &step);
      int32_t syncing = 0;
      ASSERT_OK(entrain_edit_begin_forward(made.edit, 1, 1, &syncing, nullptr));
      made.params.assign(made.params.size(), static_cast<float>(2 + self.rank));
      ASSERT_OK(entrain_edit_end_step(made.edit));
      step.interpreter.lock();
      entrain_work_t* work = nullptr;
      if (leaving) {
        ASSERT_OK(entrain_edit_leave(made.edit, &work));
      } else {
        ASSERT_OK(entrain_edit_begin_forward(made.edit, 1, 1, &syncing, nullptr));
        ASSERT_OK(entrain_edit_layer_work(made.edit, 1, &work));
      }
      ASSERT_TRUE(Becomes([&] { return step.entered.load(); }));
      both.arrive_and_wait();
      ExpectDestroyLeaves(step, made.params, [&] {
        entrain_edit_destroy(std::exchange(made.edit, nullptr));
        EXPECT_EQ(entrain_work_wait(work, 1'000'000'000), ENTRAIN_ABORTED);
        entrain_work_free(work);
      });
      both.arrive_and_wait();
      EXPECT_THAT(made.params, testing::Each(7));
      EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
    });
  }
}

TEST(AccoStepUnderALock, StopsNobodyFromDestroyingItsChannel) {
  for (const bool schedule : {false, true}) {
    SCOPED_TRACE(schedule ? "schedule" : "step");
    std::barrier both(2);
    RunWorld(2, [&](const Rank& self) {
      LockedStep step;
      std::vector<float> params(10'000, 5);
      entrain_acco_config_t config;
      entrain_acco_config_init(&config);
      config.params = params.data();
      config.count = params.size();
      config.step = schedule ? StepOfNothing : AccoStepUnderLock;
      config.schedule = schedule ? RateUnderLock : nullptr;
      config.user = config.schedule_user = &step;
      entrain_acco_t* acco = nullptr;
      ASSERT_OK(entrain_acco_create(self.comm, &config, &acco));
      step.interpreter.lock();
      EXPECT_OK(entrain_acco_add(acco, 1, 1));
      int32_t finished = 0;
      EXPECT_OK(entrain_acco_install(acco, &finished));
      ASSERT_TRUE(Becomes([&] { return step.entered.load(); }));
      both.arrive_and_wait();
      ExpectDestroyLeaves(step, params, [&] { entrain_acco_destroy(acco); });
      both.arrive_and_wait();
      EXPECT_THAT(params, testing::Each(7));
      EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
    });
  }
}

// The peers wait for the rank whose step does not return, in the object's communicators and in
// other communicators.
TEST(OuterStep, ThatDoesNotReturnIsNamedByThePeersThatWait) {
  std::barrier both(2);
  const auto run = [&](const Rank& self) {
    entrain_comm_t* copy = nullptr;
    ASSERT_OK(entrain_comm_duplicate(self.comm, &copy, nullptr));
    LockedStep step;
    Edit made(self, nullptr, OuterStepUnderLock, &step);
    int32_t syncing = 0;
    ASSERT_OK(entrain_edit_begin_forward(made.edit, 1, 1, &syncing, nullptr));
    made.params.assign(made.params.size(), static_cast<float>(2 + self.rank));
    ASSERT_OK(entrain_edit_end_step(made.edit));
    if (self.rank == 0) {
      step.interpreter.lock();
    }
    ASSERT_OK(entrain_edit_begin_forward(made.edit, 1, 1, &syncing, nullptr));
    entrain_work_t* work = nullptr;
    ASSERT_OK(entrain_edit_layer_work(made.edit, 1, &work));
    entrain_work_free(work);
    EXPECT_TRUE(Becomes([&] { return step.entered.load(); }));
    both.arrive_and_wait();
    if (self.rank == 1) {
      const std::string in_step =
          "it has not started the call: it is in the outer step of layer 0, step 1, which has not "
          "returned for ";
      entrain_call_options_t soon;
      entrain_call_options_init(&soon);
      soon.timeout_ns = 500'000'000;
      EXPECT_FAILS(entrain_barrier(copy, &soon, nullptr), ENTRAIN_TIMED_OUT, in_step);
      ExpectGuilty(0);
      entrain_status_t code = ENTRAIN_OK;
      while (code == ENTRAIN_OK) {
        for (int32_t layer = 0; layer < 2 && code == ENTRAIN_OK; ++layer) {
          code = entrain_edit_wait_layer(made.edit, layer);
        }
        code = code == ENTRAIN_OK ? entrain_edit_end_step(made.edit) : code;
        code = code == ENTRAIN_OK ? entrain_edit_begin_forward(made.edit, 1, 1, &syncing, nullptr)
                                  : code;
      }
      EXPECT_EQ(code, ENTRAIN_TIMED_OUT);
      EXPECT_THAT(LastError(), HasSubstr(in_step));
      ExpectGuilty(0);
    }
    both.arrive_and_wait();
    if (self.rank == 0) {
      step.interpreter.unlock();
    }
    entrain_edit_destroy(std::exchange(made.edit, nullptr));
    entrain_comm_destroy(copy);
  };
  RunWorld(2, run, {.timeout_ns = 3'000'000'000});
}

TEST(AccoSchedule, ThatDoesNotReturnIsNamedAtTheLimit) {
  RunWorld(1, [](const Rank& self) {
    LockedStep step;
    std::vector<float> params(100, 5);
    entrain_acco_config_t config;
    entrain_acco_config_init(&config);
    config.method = ENTRAIN_ACCO_ZERO1;
    config.params = params.data();
    config.count = params.size();
    config.step = StepOfNothing;
    config.schedule = RateUnderLock;
    config.schedule_user = &step;
    config.timeout_ns = 200'000'000;
    entrain_acco_t* acco = nullptr;
    ASSERT_OK(entrain_acco_create(self.comm, &config, &acco));
    step.interpreter.lock();
    EXPECT_OK(entrain_acco_add(acco, 1, 1));
    int32_t finished = 0;
    EXPECT_FAILS(entrain_acco_install(acco, &finished), ENTRAIN_TIMED_OUT,
                 "the schedule of rates is not over after 12");
    ExpectDestroyLeaves(step, params, [&] { entrain_acco_destroy(acco); });
  });
}

TEST(AccoStepAndSchedule, MayOnlyLook) {
  RunWorld(2, [](const Rank& self) {
    Rank user = self;
    std::vector<float> params(100);
    entrain_acco_config_t config;
    entrain_acco_config_init(&config);
    config.method = ENTRAIN_ACCO_ZERO1;
    config.params = params.data();
    config.count = params.size();
    config.step = StepAndCall;
    config.schedule = RateAndCall;
    config.user = config.schedule_user = &user;
    entrain_acco_t* acco = nullptr;
    ASSERT_OK(entrain_acco_create(self.comm, &config, &acco));
    EXPECT_OK(entrain_acco_add(acco, 1, 1));
    int32_t finished = 0;
    EXPECT_OK(entrain_acco_install(acco, &finished));
    entrain_acco_destroy(acco);
    EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
  });
}

}  // namespace
}  // namespace entrain_test
