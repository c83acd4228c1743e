// ACCO through the C API: the loop, checkpoints, and the errors of bad input.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "include/entrain/entrain.h"
#include "tests/api/world.h"

namespace entrain_test {
namespace {

constexpr size_t kCount = 101;
constexpr entrain_status_t kUnready = ENTRAIN_FAILED_PRECONDITION;

struct Sum {
  int64_t steps = 0, previews = 0;
  size_t elements = 0;
};

// SGD with rate lr. Counts its steps.
int32_t SgdStep(void* user, int32_t preview, int64_t step, double lr, size_t first, size_t count,
                const void* grads, void* master, void* out) {
  auto* const sum = static_cast<Sum*>(user);
  (preview != 0 ? sum->previews : sum->steps) = step;
  sum->elements = first + count;
  for (size_t i = 0; i < count; ++i) {
    auto* const theta = static_cast<float*>(master);
    const float next = theta[i] - static_cast<float>(lr) * static_cast<const float*>(grads)[i];
    (preview != 0 ? static_cast<float*>(out)[i] : theta[i]) = next;
  }
  return 0;
}

double Falling(void*, int64_t progress) {
  return 1.0 / static_cast<double>(1 + progress);
}

// Each rank's gradient has the value rank + 1 in every element.
void Add(entrain_acco_t* acco, int rank) {
  void* gradients = nullptr;
  ASSERT_OK(entrain_acco_gradients(acco, &gradients));
  for (size_t i = 0; i < kCount; ++i) {
    static_cast<float*>(gradients)[i] += static_cast<float>(rank + 1);
  }
  ASSERT_OK(entrain_acco_add(acco, 1, 5));
}

TEST(Acco, OptionsDescribeThemselves) {
  entrain_acco_config_t config;
  entrain_acco_config_init(&config);
  std::map<std::string, int32_t> index;
  for (int32_t i = 0; i < entrain_option_count(ENTRAIN_METHOD_ACCO); ++i) {
    entrain_option_t option;
    entrain_option_init(&option);
    ASSERT_OK(entrain_option(ENTRAIN_METHOD_ACCO, i, &option));
    index[option.name] = i;
    EXPECT_EQ(option.type == ENTRAIN_OPTION_CHOICE, option.choices != nullptr) << option.name;
    EXPECT_STRNE(option.help, "");
    ASSERT_LT(option.offset, sizeof(config));
    const char* const field = reinterpret_cast<const char*>(&config) + option.offset;
    double value = -1;
    int64_t number = -1;
    if (option.type == ENTRAIN_OPTION_F64) {
      std::memcpy(&value, field, sizeof(value));
    } else if (option.type == ENTRAIN_OPTION_I64) {
      std::memcpy(&number, field, sizeof(number));
      value = static_cast<double>(number);
    } else {
      ASSERT_EQ(option.type, ENTRAIN_OPTION_CHOICE);
      int32_t place = -1;
      std::memcpy(&place, field, sizeof(place));
      value = place;
    }
    EXPECT_EQ(value, option.default_value) << option.name;
  }
  entrain_option_t option;
  entrain_option_init(&option);
  ASSERT_OK(entrain_option(ENTRAIN_METHOD_ACCO, index.at("method"), &option));
  EXPECT_STREQ(option.choices, "acco,dpu,wp,zero1");
  EXPECT_EQ(option.most, ENTRAIN_ACCO_ZERO1);
  ASSERT_OK(entrain_option(ENTRAIN_METHOD_ACCO, index.at("limit"), &option));
  EXPECT_EQ(option.offset, offsetof(entrain_acco_config_t, limit));
  int32_t matters = -1;
  ASSERT_OK(entrain_acco_option_matters(&config, index.at("warmup_rounds"), &matters));
  EXPECT_EQ(matters, 1);
  config.method = ENTRAIN_ACCO_ZERO1;
  ASSERT_OK(entrain_acco_option_matters(&config, index.at("warmup_rounds"), &matters));
  EXPECT_EQ(matters, 0);
  config.clip_norm = -1;
  EXPECT_FAILS(entrain_acco_option_matters(&config, 0, &matters), ENTRAIN_INVALID_ARGUMENT,
               "clip_norm: -1 is not a finite number of at least 0");
  EXPECT_FAILS(entrain_option(ENTRAIN_METHOD_ACCO, -1, &option), ENTRAIN_INVALID_ARGUMENT,
               "option -1 is not one of");
  EXPECT_FAILS(
      entrain_option(ENTRAIN_METHOD_ACCO, entrain_option_count(ENTRAIN_METHOD_ACCO), &option),
      ENTRAIN_INVALID_ARGUMENT, "is not one of");
}

// Two kinds of error texts for options: an invalid enumeration value is reported by the API, a
// value out of range begins with "acco".
TEST(Acco, WrongOptionsAreNamed) {
  RunWorld(1, [](const Rank& self) {
    const auto fails = [&](const char* sentence, auto change) {
      float params = 0;
      entrain_optim_config_t sgd;
      entrain_optim_config_init(&sgd);
      entrain_optim_t* optim = nullptr;
      ASSERT_OK(entrain_optim_create(&sgd, &optim));
      entrain_acco_config_t config;
      entrain_acco_config_init(&config);
      config.params = &params;
      config.count = 1;
      config.optim = optim;
      change(&config);
      entrain_acco_t* acco = nullptr;
      EXPECT_FAILS(entrain_acco_create(self.comm, &config, &acco), ENTRAIN_INVALID_ARGUMENT,
                   sentence);
      entrain_optim_destroy(optim);
    };
    fails("entrain_acco_create: method 4 is not an ENTRAIN_ACCO* value",
          [](auto* c) { c->method = 4; });
    fails("entrain_acco_create: limit_unit 256 is not an ENTRAIN_UNIT_* value",
          [](auto* c) { c->limit_unit = 256; });
    fails("entrain_acco_create: timeout_ns -1 is negative", [](auto* c) { c->timeout_ns = -1; });
    fails("entrain_acco_create: acco: limit: -1 is negative", [](auto* c) { c->limit = -1; });
    fails("entrain_acco_create: acco: lr: -1 is not a finite number of at least 0",
          [](auto* c) { c->lr = -1; });
  });
}

TEST(Acco, ARankThatEndsBecauseItsCallWasRefusedGivesTheReason) {
  RunWorld(2, [](const Rank& self) {
    std::vector<float> params(kCount);
    Sum sum;
    entrain_acco_config_t config;
    entrain_acco_config_init(&config);
    config.method = ENTRAIN_ACCO_ZERO1;
    config.params = params.data();
    config.count = kCount;
    config.step = SgdStep;
    config.user = &sum;
    entrain_acco_t* acco = nullptr;
    ASSERT_OK(entrain_acco_create(self.comm, &config, &acco));
    if (self.rank == 1) {
      EXPECT_FAILS(entrain_acco_add(acco, 0, 5), ENTRAIN_INVALID_ARGUMENT, "0 is less than 1");
    } else {
      Add(acco, self.rank);
      int32_t finished = 0;
      EXPECT_FAILS(entrain_acco_install(acco, &finished), ENTRAIN_PEER_LOST,
                   "its call failed: all_reduce: entrain_acco_add: acco: microbatches: 0 is less");
    }
    entrain_acco_destroy(acco);
  });
}

TEST(Acco, TheLoopWithACallersStepAndSchedule) {
  RunWorld(2, [](const Rank& self) {
    std::vector<float> params(kCount, self.rank == 0 ? 8.0f : -1.0f);
    Sum sum;
    entrain_acco_config_t config;
    entrain_acco_config_init(&config);
    config.params = params.data();
    config.count = kCount;
    config.step = SgdStep;
    config.user = &sum;
    config.schedule = Falling;
    config.limit = 2;
    entrain_acco_t* acco = nullptr;
    ASSERT_OK(entrain_acco_create(self.comm, &config, &acco));
    EXPECT_EQ(params[7], 8.0f);  // rank 0's value
    int32_t ready = -1, finished = 0;
    ASSERT_OK(entrain_acco_poll(acco, &ready));
    EXPECT_EQ(ready, 0);
    EXPECT_FAILS(entrain_acco_install(acco, &finished), kUnready, "0 of at least 1 micro-batches");
    entrain_work_t* work = nullptr;
    EXPECT_FAILS(entrain_acco_work(acco, &work), kUnready, "0 of at least 1 micro-batches");
    // The mean is always 3/2. The estimate and the commit of one step have the same rate.
    const float expected[] = {8.0f, 6.5f, 6.5f, 5.75f, 5.75f};
    for (int install = 0; install < 5; ++install) {
      Add(acco, self.rank);
      ASSERT_OK(entrain_acco_work(acco, &work));
      entrain_status_t waited = ENTRAIN_IN_PROGRESS;
      while (waited == ENTRAIN_IN_PROGRESS) {
        waited = entrain_work_wait(work, 1000);
      }
      ASSERT_OK(waited);
      entrain_work_free(work);
      ASSERT_OK(entrain_acco_poll(acco, &ready));
      EXPECT_EQ(ready, 1);
      ASSERT_OK(entrain_acco_install(acco, &finished));
      EXPECT_EQ(finished, install == 4 ? 1 : 0);
      EXPECT_EQ(params[kCount - 1], expected[install]) << install;
    }
    entrain_acco_info_t info;
    entrain_acco_info_init(&info);
    ASSERT_OK(entrain_acco_info(acco, &info));
    EXPECT_EQ(info.rounds, 4);
    EXPECT_EQ(info.commits, 2);
    EXPECT_EQ(info.gradients, 8);
    EXPECT_EQ(info.tokens, 40);
    EXPECT_EQ(info.dropped, 1);
    EXPECT_EQ(info.committed, 1);
    EXPECT_EQ(info.lr, 0.5);
    EXPECT_EQ(info.ranks, 2);
    EXPECT_EQ(info.losses, 0);
    EXPECT_FAILS(entrain_acco_loss(acco, 0, nullptr, nullptr, nullptr, 0), ENTRAIN_INVALID_ARGUMENT,
                 "index 0 is not one of 0 losses");
    EXPECT_EQ(sum.steps, 2);
    EXPECT_EQ(sum.previews, 2);
    EXPECT_EQ(sum.elements, self.rank == 0 ? 51u : 50u);
    EXPECT_FAILS(entrain_acco_add(acco, 1, 0), kUnready, "ended");
    entrain_acco_destroy(acco);
  });
}

// The channel shares the optimizers of its groups. They are destroyed here before it steps.
TEST(Acco, GroupsShareTheirOptimizers) {
  RunWorld(2, [](const Rank& self) {
    entrain_optim_t* optim[2] = {};
    for (entrain_optim_t*& one : optim) {
      entrain_optim_config_t rule;
      entrain_optim_config_init(&rule);
      rule.weight_decay = &one == &optim[1] ? 0.5 : 0;
      ASSERT_OK(entrain_optim_create(&rule, &one));
    }
    std::vector<float> params(kCount, 1.0f);
    const entrain_acco_group_t groups[] = {{3, 40, optim[1], 2}};
    entrain_acco_config_t config;
    entrain_acco_config_init(&config);
    config.method = ENTRAIN_ACCO_ZERO1;
    config.params = params.data();
    config.count = kCount;
    config.optim = optim[0];
    config.lr = 0.125;
    config.groups = groups;
    config.group_count = 1;
    entrain_acco_t* acco = nullptr;
    ASSERT_OK(entrain_acco_create(self.comm, &config, &acco));
    entrain_optim_destroy(optim[0]);
    entrain_optim_destroy(optim[1]);
    Add(acco, self.rank);
    int32_t finished = 0;
    ASSERT_OK(entrain_acco_install(acco, &finished));
    // The mean gradient is 3/2, and 2 with a decay of one half. The rates are 1/8 and 1/4.
    for (size_t i = 0; i < kCount; ++i) {
      EXPECT_EQ(params[i], i >= 3 && i < 43 ? 0.5f : 0.8125f) << i;
    }
    ASSERT_OK(entrain_barrier(self.comm, nullptr, nullptr));
    entrain_acco_destroy(acco);
  });
}

TEST(Acco, SavesAndLoads) {
  const std::string directory = testing::TempDir();
  RunWorld(2, [&](const Rank& self) {
    entrain_optim_t* optim = nullptr;
    entrain_optim_config_t rule;
    entrain_optim_config_init(&rule);
    rule.kind = ENTRAIN_OPTIM_ADAMW;
    ASSERT_OK(entrain_optim_create(&rule, &optim));
    entrain_checkpoint_config_t checkpoint;
    entrain_checkpoint_config_init(&checkpoint);
    checkpoint.save_dir = directory.c_str();
    checkpoint.ckpt_name = "entrain-acco";
    checkpoint.kind = ENTRAIN_CHECKPOINT_EXACT;
    const std::vector<int32_t> script = {1, 2, 1, 1, 3};
    std::vector<float> ends[2];
    for (int run = 0; run < 2; ++run) {
      std::vector<float>& params = ends[run];
      params.assign(kCount, 1.0f);
      int64_t cursor = 0;
      entrain_acco_config_t config;
      entrain_acco_config_init(&config);
      config.params = params.data();
      config.count = kCount;
      config.optim = optim;
      entrain_acco_t* acco = nullptr;
      ASSERT_OK(entrain_acco_create(self.comm, &config, &acco));
      ASSERT_OK(
          entrain_acco_add_state(acco, "cursor", &cursor, 1, ENTRAIN_I64, ENTRAIN_STATE_RANK));
      if (run == 1) {
        ASSERT_OK(entrain_acco_load(acco, &checkpoint, nullptr, nullptr));
        EXPECT_EQ(cursor, 3);
      }
      for (size_t round = static_cast<size_t>(cursor); round < script.size(); ++round) {
        for (int32_t i = 0; i < script[round]; ++i) {
          Add(acco, self.rank * static_cast<int>(round));
        }
        int32_t finished = 0;
        ASSERT_OK(entrain_acco_install(acco, &finished));
        ++cursor;
        if (run == 0 && cursor == 3) {
          ASSERT_OK(entrain_acco_save(acco, &checkpoint, nullptr, nullptr));
          int64_t values[] = {1, self.rank};
          int32_t ranks = 0;
          ASSERT_OK(entrain_acco_reduce(acco, values, values, 2, ENTRAIN_I64, ENTRAIN_SUM, 0,
                                        nullptr, &ranks, nullptr));
          EXPECT_EQ(values[0], ranks);
          EXPECT_EQ(values[1], ranks * (ranks - 1) / 2);
        }
      }
      ASSERT_OK(entrain_barrier(self.comm, nullptr, nullptr));
      entrain_acco_destroy(acco);
    }
    EXPECT_EQ(ends[0], ends[1]);
    entrain_optim_destroy(optim);
  });
  std::remove((directory + "/entrain-acco.ckpt").c_str());
}

TEST(Acco, BadInputIsNamed) {
  RunWorld(1, [](const Rank& self) {
    std::vector<float> params(kCount);
    const auto with = [&](auto change) {
      entrain_acco_config_t config;
      entrain_acco_config_init(&config);
      config.params = params.data();
      config.count = kCount;
      config.step = SgdStep;
      change(&config);
      entrain_acco_t* acco = nullptr;
      return entrain_acco_create(self.comm, &config, &acco);
    };
    const entrain_status_t bad = ENTRAIN_INVALID_ARGUMENT;
    EXPECT_FAILS(with([](auto* c) { c->method = 9; }), bad, "method 9 is not an ENTRAIN_ACCO*");
    EXPECT_FAILS(with([](auto* c) { c->schedule_unit = 3; }), bad, "schedule_unit 3");
    EXPECT_FAILS(with([](auto* c) { c->limit_unit = -1; }), bad, "limit_unit -1");
    EXPECT_FAILS(with([](auto* c) { c->on_loss = 2; }), bad,
                 "on_loss 2 is not an ENTRAIN_ON_LOSS_*");
    EXPECT_FAILS(with([](auto* c) { c->on_loss = ENTRAIN_ON_LOSS_FINISH; }), bad,
                 "on_loss: 1 (finish) does not go with a step of the caller's");
    EXPECT_FAILS(with([](auto* c) { c->admit = ENTRAIN_ADMIT_EXCHANGE; }), bad,
                 "admit: 1 (exchange) does not go with a step of the caller's");
    EXPECT_FAILS(with([](auto* c) { c->admit_name = ""; }), bad, "admit_name");
    EXPECT_FAILS(with([](auto* c) { c->admit_name = "here"; }), bad,
                 "admit_name: \"here\" has no effect without admit; set both");
    EXPECT_FAILS(with([](auto* c) { c->params = nullptr; }), bad, "params");
    EXPECT_FAILS(with([](auto* c) { c->count = 0; }), bad, "count: 0");
    EXPECT_FAILS(with([](auto* c) { c->wire_dtype = ENTRAIN_I32; }), bad, "wire_dtype: i32");
    EXPECT_FAILS(with([](auto* c) { c->step = nullptr; }), bad, "optim: NULL");
    EXPECT_FAILS(with([](auto* c) { c->timeout_ns = -5; }), bad, "timeout_ns");
    EXPECT_FAILS(with([](auto* c) { c->group_count = 2; }), bad, "group_count 2 without groups");
    const entrain_acco_group_t group = {~size_t{0}, 1, nullptr, 1};
    EXPECT_FAILS(with([&](auto* c) { c->groups = &group; }), bad, "group_count 0 of groups");
    EXPECT_FAILS(with([&](auto* c) {
                   c->groups = &group;
                   c->group_count = 1;
                 }),
                 bad, "groups[0].first: 18446744073709551615 is above count 101");
    EXPECT_FAILS(entrain_acco_create(self.comm, nullptr, nullptr), bad, "acco");
    EXPECT_FAILS(entrain_acco_poll(nullptr, nullptr), bad, "acco");
    EXPECT_FAILS(entrain_acco_work(nullptr, nullptr), bad, "acco");
  });
}

}  // namespace
}  // namespace entrain_test
