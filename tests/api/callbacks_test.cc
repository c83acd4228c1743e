// Functions of the caller's that the library calls: what comes of one that fails, one that does not return, and one
// that calls the library.
#include <barrier>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/api/world.h"

namespace entrain_test {
namespace {

using testing::HasSubstr;

entrain_error_t ErrorOf(const entrain_comm_t* comm) {
  entrain_error_t error;
  entrain_error_init(&error);
  entrain_comm_error(comm, &error);
  return error;
}

// The last error of this thread blames another rank, in words too.
void ExpectGuilty(int rank) {
  entrain_error_t error;
  entrain_error_init(&error);
  ASSERT_OK(entrain_last_error_record(&error));
  EXPECT_EQ(error.guilty_rank, rank);
  EXPECT_THAT(error.text, HasSubstr("rank " + std::to_string(rank)));
}

// ---- Reductions

// Adds; returns *user.
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

// Blocking and started, of one lane and of many.
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
          all_reduced.arrive_and_wait();  // else a rank may still be in the first one when it ends
          returns = self.rank == 1 ? 5 : 0;
          const entrain_status_t code = reduce();
          // Who needs nothing of rank 1 any more may be done.
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
};

int32_t TakeGradient(void* user, int32_t layer, int64_t, float* anchor, const float* grad,
                     size_t count) {
  auto& step = *static_cast<OuterStep*>(user);
  ++step.calls;
  for (size_t i = 0; i < count; ++i) {
    anchor[i] -= grad[i];
  }
  return layer == step.fails_in_layer ? 7 : 0;
}

TEST(FailingOuterStep, EndsTheExchangeEverywhereAndPublishesNothing) {
  RunWorld(2, [](const Rank& self) {
    entrain_mesh_config_t mesh_config;
    entrain_mesh_config_init(&mesh_config);
    mesh_config.shard = 1;
    entrain_mesh_t* mesh = nullptr;
    ASSERT_OK(entrain_mesh_create(self.comm, &mesh_config, &mesh));
    entrain_shard_config_t shard_config;
    entrain_shard_config_init(&shard_config);
    shard_config.layers = 2;
    shard_config.layer_counts = kLayerCounts;
    entrain_shard_t* shard = nullptr;
    ASSERT_OK(entrain_shard_create(mesh, &shard_config, &shard));
    size_t count = 0;
    ASSERT_OK(entrain_shard_slab_count(shard, &count));
    std::vector<float> params(count, 1), grads(count);
    ASSERT_OK(entrain_shard_bind(shard, params.data(), grads.data(), ENTRAIN_F32));
    OuterStep step{.fails_in_layer = self.rank == 0 ? 0 : -1};
    entrain_edit_config_t config;
    entrain_edit_config_init(&config);
    config.shard = shard;
    config.outer_optimizer = ENTRAIN_OUTER_CALLBACK;
    config.outer_step = TakeGradient;
    config.outer_user = &step;
    entrain_edit_t* edit = nullptr;
    ASSERT_OK(entrain_edit_create(mesh, &config, &edit));
    int32_t syncing = 0;
    ASSERT_OK(entrain_edit_begin_forward(edit, 1, 1, &syncing));
    params.assign(count, static_cast<float>(2 + self.rank));
    ASSERT_OK(entrain_edit_end_step(edit));
    entrain_status_t code = ENTRAIN_OK;
    // Rank 1 may have had all that it needed for this exchange; then it learns of the end in the next.
    for (int round = 0; round < 2 && code == ENTRAIN_OK; ++round) {
      code = entrain_edit_begin_forward(edit, 1, 1, &syncing);
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
    entrain_edit_destroy(edit);
    entrain_shard_destroy(shard);
    entrain_mesh_destroy(mesh);
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

}  // namespace
}  // namespace entrain_test
