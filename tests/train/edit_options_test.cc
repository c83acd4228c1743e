#include "lib/train/edit/edit_options.h"

#include <functional>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/train/identity.h"

namespace entrain {
namespace {

using testing::HasSubstr;

EditOptions Whole() {
  EditOptions options;
  options.reducer = ReducerKind::kLinear;
  options.pseudo_gradnorm_reduce = true;
  options.weight_softmax_temperature = 2;
  options.clip_pseudo_grad = 10;
  options.outer_optimizer = OuterKind::kSgd;
  options.outer_nesterov = true;
  options.outer_weight_decay = 0.1;
  return options;
}

TEST(EditOptions, DefaultsAndTheWholeMethodAreAccepted) {
  EXPECT_EQ(CheckOptions(EditOptions()), absl::OkStatus());
  EXPECT_EQ(CheckOptions(Whole()), absl::OkStatus());
}

struct Case {
  const char* says;
  std::function<void(EditOptions& o)> change;
};

TEST(EditOptions, RefusesValuesOutOfRangeByNameAndValue) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Case cases[] = {
      {"local_sgd_sync_interval: 0", [](auto& o) { o.local_sgd_sync_interval = 0; }},
      {"local_sgd_warmup_steps: -1", [](auto& o) { o.local_sgd_warmup_steps = -1; }},
      {"gradient_accumulation_steps: 0", [](auto& o) { o.gradient_accumulation_steps = 0; }},
      {"prefetch: -2", [](auto& o) { o.prefetch = -2; }},
      {"timeout_ns: -1", [](auto& o) { o.timeout_ns = -1; }},
      {"weight_softmax_temperature: -1", [](auto& o) { o.weight_softmax_temperature = -1; }},
      {"clip_pseudo_grad: nan", [&](auto& o) { o.clip_pseudo_grad = nan; }},
      {"outer_lr: 0", [](auto& o) { o.outer_lr = 0; }},
      {"outer_momentum: 1", [](auto& o) { o.outer_momentum = 1; }},
      {"outer_momentum: -0.5", [](auto& o) { o.outer_momentum = -0.5; }},
      {"outer_weight_decay: -1", [](auto& o) { o.outer_weight_decay = -1; }},
      {"reducer 7 is not an ENTRAIN_", [](auto& o) { o.reducer = ReducerKind{7}; }},
      {"outer_optimizer 9 is not an ENTRAIN_", [](auto& o) { o.outer_optimizer = OuterKind{9}; }},
      {"outer_optimizer -1 is not an ENTRAIN_", [](auto& o) { o.outer_optimizer = OuterKind{-1}; }},
      {"outer_schedule: a function needs an outer_optimizer",
       [](auto& o) {
         o.outer_optimizer = OuterKind::kNone;
         o.outer_schedule = [](void*, int32_t, int64_t, double*, double*) { return 0; };
       }},
      {"interval_schedule: a function with local_sgd_sync_interval",
       [](auto& o) {
         o.local_sgd_sync_interval = 2;
         o.interval_schedule = [](void*, int64_t, int64_t) { return 1.0; };
       }},
      {"interval_schedule: a function with fragments",
       [](auto& o) {
         o.fragments = 2;
         o.interval_schedule = [](void*, int64_t, int64_t) { return 1.0; };
       }},
      {"outer_step: NULL", [](auto& o) { o.outer_optimizer = OuterKind::kCallback; }},
      {"consensus_method 3 is not an ENTRAIN_", [](auto& o) { o.consensus_method = Consensus{3}; }},
      {"overlap_steps: -1", [](auto& o) { o.overlap_steps = -1; }},
      {"overlap_steps: 2", [](auto& o) { o.overlap_steps = 2; }},  // H is 1
      {"overlap_mix: 1", [](auto& o) { o.overlap_mix = 1; }},
      {"outer_momentum_clip: -1", [](auto& o) { o.outer_momentum_clip = -1; }},
      {"fragments: 0", [](auto& o) { o.fragments = 0; }},
      {"fragments: 2 with use_async",
       [](auto& o) {
         o.fragments = 2;
         o.use_async = true;
       }},
      {"fragment_intervals: 2 numbers for 3 fragments",
       [](auto& o) {
         o.fragments = 3;
         o.fragment_intervals = {4, 4};
       }},
      {"fragment_intervals: 0",
       [](auto& o) {
         o.fragments = 2;
         o.fragment_intervals = {4, 0};
       }},
      {"fragment_offsets: -1",
       [](auto& o) {
         o.fragments = 2;
         o.fragment_offsets = {1, -1};
       }},
      {"overlap_steps: 4 is more than the shortest of fragment_intervals 3",
       [](auto& o) {
         o.fragments = 2;
         o.fragment_intervals = {8, 3};
         o.overlap_steps = 4;
       }},
      {"outer_weight_decay: 0.1 does not go with staleness_penalty",
       [](auto& o) {
         o.overlap_steps = 1;
         o.staleness_penalty = true;
       }},
      {"outer_beta1: 1", [](auto& o) { o.outer_beta1 = 1; }},
      {"outer_beta2: nan", [&](auto& o) { o.outer_beta2 = nan; }},
      {"outer_eps: 0", [](auto& o) { o.outer_eps = 0; }},
      {"local_sgd_sync_time: 0", [](auto& o) { o.local_sgd_sync_time = 0; }},
      {"local_sgd_sync_time: nan", [&](auto& o) { o.local_sgd_sync_time = nan; }},
      {"local_sgd_sync_time: 1e+10", [](auto& o) { o.local_sgd_sync_time = 1e10; }},
      {"min_total_global_steps: 0", [](auto& o) { o.min_total_global_steps = 0; }},
      {"step_weight_ratio: 1.5", [](auto& o) { o.step_weight_ratio = 1.5; }},
      {"ewma_alpha: 1", [](auto& o) { o.ewma_alpha = 1; }},
      {"ewma_alpha: 0", [](auto& o) { o.ewma_alpha = 0; }},
      {"ewma_warmup_steps: 1", [](auto& o) { o.ewma_warmup_steps = 1; }},
      {"ewma_warmup_steps: 2000000", [](auto& o) { o.ewma_warmup_steps = 2000000; }},
      {"ewma_threshold: 0", [](auto& o) { o.ewma_threshold = 0; }},
  };
  for (const Case& c : cases) {
    EditOptions options = Whole();
    c.change(options);
    const absl::Status status = CheckOptions(options);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << c.says;
    EXPECT_THAT(std::string(status.message()), testing::StartsWith(c.says));
    // The error is not that of an option without effect, which would also refuse this value.
    EXPECT_THAT(std::string(status.message()), testing::Not(testing::HasSubstr("no effect")));
  }
}

TEST(EditOptions, RefusesOptionsWithoutEffect) {
  const Case cases[] = {
      {"pseudo_gradnorm_reduce: 1", [](auto& o) { o.pseudo_gradnorm_reduce = true; }},
      {"weight_softmax_temperature: 2", [](auto& o) { o.weight_softmax_temperature = 2; }},
      {"normalize: 0", [](auto& o) { o.normalize = false; }},
      {"normalize: 0",
       [](auto& o) {
         o.reducer = ReducerKind::kLinear;
         o.pseudo_gradnorm_reduce = true;
         o.normalize = false;
       }},
      {"clip_pseudo_grad: 1", [](auto& o) { o.clip_pseudo_grad = 1; }},
      {"outer_nesterov: 1", [](auto& o) { o.outer_nesterov = true; }},
      {"outer_weight_decay: 0.5", [](auto& o) { o.outer_weight_decay = 0.5; }},
      {"outer_lr: 1", [](auto& o) { o.outer_lr = 1; }},
      {"outer_momentum: 0 has no effect without outer_optimizer sgd; set both",
       [](auto& o) { o.outer_momentum = 0; }},
      {"outer_lr: 0.5",
       [](auto& o) {
         o.reducer = ReducerKind::kLinear;
         o.outer_lr = 0.5;
       }},
      {"outer_step: a function",
       [](auto& o) {
         o.outer_step = [](void*, int32_t, int64_t, float*, const float*, size_t) { return 0; };
       }},
      {"outer_beta1: 0.8",
       [](auto& o) {
         o.outer_optimizer = OuterKind::kSgd;
         o.outer_beta1 = 0.8;
       }},
      {"outer_momentum: 0.5",
       [](auto& o) {
         o.outer_optimizer = OuterKind::kAdamw;
         o.outer_momentum = 0.5;
       }},
      {"consensus_method: 2",
       [](auto& o) {
         o.reducer = ReducerKind::kLinear;
         o.consensus_method = Consensus::kCount;
       }},
      {"sparsification_method: 1",
       [](auto& o) {
         o.reducer = ReducerKind::kLinear;
         o.sparsification_method = Sparsification::kMagnitude;
       }},
      {"overlap_steps: 2",
       [](auto& o) {
         o.use_async = true;
         o.reducer = ReducerKind::kGta;
         o.overlap_steps = 2;
       }},
      {"overlap_merge: 2", [](auto& o) { o.overlap_merge = OverlapMerge::kRestart; }},
      {"overlap_mix: 0.25", [](auto& o) { o.overlap_mix = 0.25; }},
      {"staleness_penalty: 1", [](auto& o) { o.staleness_penalty = true; }},
      {"outer_momentum_clip: 2", [](auto& o) { o.outer_momentum_clip = 2; }},
      {"outer_momentum_clip: 1",
       [](auto& o) {
         o.outer_optimizer = OuterKind::kSgd;
         o.outer_nesterov = true;
         o.outer_momentum_clip = 1;
       }},
      {"fragment_pattern: 1", [](auto& o) { o.fragment_pattern = FragmentPattern::kStrided; }},
      {"fragment_of_layer: 1", [](auto& o) { o.fragment_of_layer = {0}; }},
      {"fragment_pattern: 1",
       [](auto& o) {
         o.fragments = 2;
         o.fragment_pattern = FragmentPattern::kStrided;
         o.fragment_of_layer = {0, 1};
       }},
      {"skip_anomaly: 1", [](auto& o) { o.skip_anomaly = true; }},
      {"ewma_alpha: 0.5", [](auto& o) { o.ewma_alpha = 0.5; }},
      {"ewma_warmup_steps: 7", [](auto& o) { o.ewma_warmup_steps = 7; }},
      {"ewma_threshold: 4", [](auto& o) { o.ewma_threshold = 4; }},
      {"local_sgd_sync_interval: 5",
       [](auto& o) {
         o.use_async = true;
         o.local_sgd_sync_interval = 5;
       }},
      {"local_sgd_sync_time: 5", [](auto& o) { o.local_sgd_sync_time = 5; }},
      {"min_total_global_steps: 5", [](auto& o) { o.min_total_global_steps = 5; }},
      {"use_step_weight: 1", [](auto& o) { o.use_step_weight = true; }},
      {"step_weight_ratio: 0.25",
       [](auto& o) {
         o.use_async = o.use_step_weight = true;
         o.step_weight_ratio = 0.25;
       }},
  };
  for (const Case& c : cases) {
    EditOptions options;
    c.change(options);
    const absl::Status status = CheckOptions(options);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << c.says;
    EXPECT_THAT(std::string(status.message()),
                testing::AllOf(testing::StartsWith(c.says), testing::HasSubstr("has no effect"),
                               testing::HasSubstr("set ")));
  }
}

TEST(EditOptions, HowDeltasTravelIsCheckedLikeTheReductions) {
  EditOptions options;
  options.reducer = ReducerKind::kGta;
  options.sparsification_method = Sparsification::kRandom;
  EXPECT_THAT(std::string(CheckOptions(options).message()), testing::StartsWith("density 1"));
  options.density = 0.25;
  EXPECT_EQ(CheckOptions(options), absl::OkStatus());
  options.wire_format = WireFormat::kInt4;
  options.wire_block = 7;
  EXPECT_THAT(std::string(CheckOptions(options).message()), testing::StartsWith("wire_block 7"));
  options = {};
  options.wire_format = WireFormat::kBF16;
  EXPECT_THAT(std::string(CheckOptions(options).message()),
              testing::HasSubstr("plain averaging sends parameters"));
}

TEST(EditOptions, EveryShardKeepsSomethingOfItsLargest) {
  EditOptions options;
  options.reducer = ReducerKind::kGta;
  options.sparsification_method = Sparsification::kMagnitude;
  options.density = 0.1;
  EXPECT_EQ(CheckDensity(options, 1, {10, 1000}), absl::OkStatus());
  EXPECT_EQ(CheckDensity(options, 2, {20, 1000}), absl::OkStatus());
  // 25 and 25 elements; 13 and 12; 30, 30 and 2.
  EXPECT_EQ(CheckDensity(options, 2, {50}), absl::OkStatus());
  EXPECT_EQ(CheckDensity(options, 2, {25}), absl::OkStatus());
  EXPECT_THAT(std::string(CheckDensity(options, 3, {29}).message()),
              testing::HasSubstr("density: 0.1 leaves nothing of a shard of 9 elements (a layer of "
                                 "29 over 3 ranks)"));
}

TEST(EditOptions, OnLossFinishNeedsAnAnchorAndStateThatCanBeSent) {
  EditOptions options;
  options.on_loss = OnLoss::kFinish;
  EXPECT_THAT(std::string(CheckOptions(options).message()),
              HasSubstr("on_loss: 1 needs an anchor"));
  options.outer_optimizer = OuterKind::kSgd;
  EXPECT_EQ(CheckOptions(options), absl::OkStatus());
  EditOptions impatient = options;
  impatient.silence = 0.05;
  EXPECT_THAT(std::string(CheckOptions(impatient).message()),
              HasSubstr("silence: 0.05 s is too short"));
  EditOptions feedback = options;
  feedback.wire_format = WireFormat::kInt8;
  EXPECT_EQ(CheckOptions(feedback), absl::OkStatus());
  feedback.error_feedback = true;
  EXPECT_THAT(std::string(CheckOptions(feedback).message()), HasSubstr("error_feedback"));
  EditOptions compat = options;
  compat.compat = true;
  EXPECT_THAT(std::string(CheckOptions(compat).message()), HasSubstr("compat"));
  EditOptions callback = options;
  callback.outer_optimizer = OuterKind::kCallback;
  callback.outer_step = [](void*, int32_t, int64_t, float*, const float*, size_t) { return 0; };
  EXPECT_EQ(CheckOptions(callback), absl::OkStatus());
  callback.admit = Admit::kExchange;
  EXPECT_THAT(std::string(CheckOptions(callback).message()),
              HasSubstr("admit: 1 (exchange) does not go with outer_optimizer callback"));
}

TEST(EditOptions, AnchorsAreRepairedOnlyWithStateThatCanBeSent) {
  EditOptions options;
  options.anchor_check = AnchorCheck::kRepair;
  EXPECT_THAT(std::string(CheckOptions(options).message()),
              HasSubstr("anchor_check: 1 needs an anchor"));
  options.outer_optimizer = OuterKind::kSgd;
  EXPECT_EQ(CheckOptions(options), absl::OkStatus());
  EditOptions restart = options;
  restart.overlap_steps = 1;
  EXPECT_EQ(CheckOptions(restart), absl::OkStatus());
  restart.overlap_merge = OverlapMerge::kRestart;
  EXPECT_THAT(std::string(CheckOptions(restart).message()), HasSubstr("overlap_merge restart"));
  EditOptions callback = options;
  callback.outer_optimizer = OuterKind::kCallback;
  callback.outer_step = [](void*, int32_t, int64_t, float*, const float*, size_t) { return 0; };
  EXPECT_THAT(std::string(CheckOptions(callback).message()), HasSubstr("callback"));
}

TEST(Identity, IsLinesOfKeysAndValues) {
  const auto identity = ParseIdentity("seed=7\ndata=book.txt, 12 bytes\n\nlr=2e-3\n");
  ASSERT_TRUE(identity.ok()) << identity.status();
  ASSERT_EQ(identity->size(), 3u);
  EXPECT_EQ((*identity)[0].name, "identity: seed");
  EXPECT_EQ((*identity)[0].value, 7);
  EXPECT_EQ((*identity)[1].name, "identity: data (hash of a text)");
  EXPECT_EQ((*identity)[2].value, 2e-3);
  const auto other = ParseIdentity("seed=7\ndata=book.txt, 13 bytes\nlr=2e-3");
  EXPECT_NE((*identity)[1].value, (*other)[1].value);
  EXPECT_EQ(SizeOfIdentity(*identity).value, SizeOfIdentity(*other).value);
  EXPECT_NE(SizeOfIdentity(*identity).value,
            SizeOfIdentity(*ParseIdentity("seed=7\ndata=x\nrate=1")).value);
  EXPECT_TRUE(ParseIdentity("")->empty());
  EXPECT_EQ(IdentityDiffers("seed=7\ndata=a b\nlr=1", "data= a b\nseed=8\nwidth=2"),
            "lr: 1 there, none here; seed: 7 there, 8 here; width: none there, 2 here");
  EXPECT_EQ(IdentityDiffers("seed=7\nlr=1", "lr=1\nseed=7\n"), "");
  EXPECT_EQ(IdentityDiffers("", "seed=7"), "") << "an older checkpoint";
}

TEST(Identity, RefusesOtherTexts) {
  const auto refused = [](const std::string& text) {
    return std::string(ParseIdentity(text).status().message());
  };
  EXPECT_EQ(refused("seed"), "identity: \"seed\" is not KEY=VALUE");
  EXPECT_EQ(refused("=7"), "identity: \"=7\" is not KEY=VALUE");
  EXPECT_EQ(refused("a=1\nb=2\na=3"), "identity: a comes twice");
  EXPECT_EQ(refused(std::string(5000, 'x')), "identity: has 5000 bytes, and may have 4096");
  std::string lines;
  for (int i = 0; i < 65; ++i) {
    lines += std::to_string(i) + "=1\n";
  }
  EXPECT_EQ(refused(lines), "identity: has 65 lines, and may have 64");
}

}  // namespace
}  // namespace entrain
