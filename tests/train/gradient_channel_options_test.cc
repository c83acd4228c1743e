// The options of a gradient channel: refused values, values that must be equal on all ranks, and
// the learning rate.
#include "lib/train/acco/gradient_channel_options.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

constexpr int64_t kCount = 10007;
float params[1];  // any valid address

ChannelOptions Whole() {
  ChannelOptions options;
  options.count = kCount;
  options.params = params;
  options.optimizer = *MakeOptimizer({});
  return options;
}

int32_t NoStep(void*, int32_t, int64_t, double, size_t, size_t, const void*, void*, void*) {
  return 0;
}

TEST(ChannelOptions, AreRefusedByNameAndValue) {
  struct Case {
    const char* says;
    std::function<void(ChannelOptions& o)> change;
  };
  const Case cases[] = {
      {"count: 0", [](auto& o) { o.count = 0; }},
      {"params: NULL", [](auto& o) { o.params = nullptr; }},
      {"optim: NULL", [](auto& o) { o.optimizer = nullptr; }},
      {"optim: given", [](auto& o) { o.step = NoStep; }},
      {"params_dtype: i32", [](auto& o) { o.params_dtype = DType::kI32; }},
      {"params_dtype: f64", [](auto& o) { o.params_dtype = DType::kF64; }},
      {"grads_dtype: bf16", [](auto& o) { o.grads_dtype = DType::kBF16; }},
      {"wire_dtype: f64", [](auto& o) { o.wire_dtype = DType::kF64; }},
      {"min_microbatches: 0 is less than 1", [](auto& o) { o.min_microbatches = 0; }},
      {"max_microbatches: 1",
       [](auto& o) {
         o.min_microbatches = 2;
         o.max_microbatches = 1;
       }},
      {"scripted_counts: 0",
       [](auto& o) {
         o.scripted = {1, 0};
       }},
      {"scripted_counts: 3",
       [](auto& o) {
         o.scripted = {3};
         o.max_microbatches = 3;
       }},
      {"max_microbatches: -1 is below min_microbatches 1; 0: no limit",
       [](auto& o) { o.max_microbatches = -1; }},
      {"warmup_rounds: -1 is negative", [](auto& o) { o.warmup_rounds = -1; }},
      {"warmup_rounds: 2 has no effect with method zero1",
       [](auto& o) {
         o.warmup_rounds = 2;
         o.method = DelayMethod::kZero1;
       }},
      {"clip_norm: nan is not a finite number of at least 0", [](auto& o) { o.clip_norm = NAN; }},
      {"lr: -1 is not a finite number of at least 0", [](auto& o) { o.lr = -1; }},
      {"min_lr: 5 is above lr", [](auto& o) { o.min_lr = 5; }},
      {"min_lr: 0.001 has no effect without schedule_total; set both",
       [](auto& o) { o.min_lr = 0.001; }},
      {"schedule_warmup: 9 is not below schedule_total 9",
       [](auto& o) { o.schedule_warmup = o.schedule_total = 9; }},
      {"limit: -1 is negative", [](auto& o) { o.limit = -1; }},
      {"timeout_ns: -1 is negative", [](auto& o) { o.timeout_ns = -1; }},
      {"groups[0].first: -1",
       [](auto& o) {
         o.groups = {{-1, 3, o.optimizer}};
       }},
      {"groups[0].count: 10008",
       [](auto& o) {
         o.groups = {{0, kCount + 1, o.optimizer}};
       }},
      {"groups[0].count: 0",
       [](auto& o) {
         o.groups = {{0, 0, o.optimizer}};
       }},
      {"groups[1].first: 4 is below 5",
       [](auto& o) {
         o.groups = {{0, 5, nullptr}, {4, 5, nullptr}};
       }},
      {"groups[0].lr_scale: 0",
       [](auto& o) {
         o.groups = {{0, 5, nullptr, 0}};
       }},
      {"groups[1].optim: NULL",
       [](auto& o) {
         o.groups = {{0, 5, o.optimizer}, {5, kCount - 5, nullptr}};
         o.optimizer = nullptr;
       }},
      {"optim: NULL and element 5 lies in no group",
       [](auto& o) {
         o.groups = {{0, 5, o.optimizer}, {6, kCount - 6, o.optimizer}};
         o.optimizer = nullptr;
       }},
      {"group_count: 1 with a step",
       [](auto& o) {
         o.groups = {{0, 5, o.optimizer}};
         o.optimizer = nullptr;
         o.step = NoStep;
       }},
      {"on_loss: 1 (finish) does not go with a step of the caller's",
       [](auto& o) {
         o.on_loss = OnLoss::kFinish;
         o.optimizer = nullptr;
         o.step = NoStep;
       }},
      {"admit: 1 (exchange) needs admit_store", [](auto& o) { o.admit = Admit::kExchange; }},
  };
  for (const Case& c : cases) {
    ChannelOptions options = Whole();
    c.change(options);
    const absl::Status status = CheckOptions(options);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << c.says;
    EXPECT_THAT(std::string(status.message()), testing::StartsWith(c.says));
  }
}

TEST(ChannelOptions, OnlySoManyRanksTakeNewcomersIn) {
  ChannelOptions options = Whole();
  EXPECT_EQ(CheckRanks(options, 1501), absl::OkStatus());
  options.admit = Admit::kExchange;
  EXPECT_EQ(CheckRanks(options, 1500), absl::OkStatus());
  EXPECT_EQ(CheckRanks(options, 1501),
            absl::InvalidArgumentError("admit: 1 (exchange) is for at most 1500 ranks, and the "
                                       "communicator has 1501"));
}

TEST(ChannelOptions, WhatRanksMustGiveAlikeIsInTheirRows) {
  std::vector<std::string> names;
  for (const NamedValue& value : SharedOptions(Whole())) {
    names.push_back(value.name);
  }
  EXPECT_THAT(names,
              testing::ElementsAre("count", "params_dtype", "wire_dtype", "method", "warmup_rounds",
                                   "clip_norm", "lr", "min_lr", "schedule_warmup", "schedule_total",
                                   "schedule_unit", "limit_unit", "limit", "on_loss", "admit",
                                   "group_count", "identity: which keys"));
}

TEST(ChannelOptions, TheRateRisesLinearlyAndFallsAsACosine) {
  ChannelOptions options = Whole();
  EXPECT_EQ(RateAt(options, 1000), 1e-3);
  options.lr = 2;
  options.min_lr = 1;
  options.schedule_warmup = 4;
  options.schedule_total = 12;
  EXPECT_DOUBLE_EQ(RateAt(options, 0), 0);
  EXPECT_DOUBLE_EQ(RateAt(options, 1), 0.5);
  EXPECT_DOUBLE_EQ(RateAt(options, 4), 2);
  EXPECT_DOUBLE_EQ(RateAt(options, 8), 1.5);
  EXPECT_DOUBLE_EQ(RateAt(options, 100), 1);
  options.schedule = [](void* user, int64_t progress) {
    return *static_cast<double*>(user) * static_cast<double>(progress);
  };
  double slope = 0.25;
  options.schedule_user = &slope;
  EXPECT_EQ(RateAt(options, 8), 2);
}

}  // namespace
}  // namespace entrain
