#include "lib/train/edit_options.h"

#include <functional>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace entrain {
namespace {

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
      {"reducer: 7", [](auto& o) { o.reducer = ReducerKind{7}; }},
      {"outer_optimizer: 9", [](auto& o) { o.outer_optimizer = OuterKind{9}; }},
  };
  for (const Case& c : cases) {
    EditOptions options = Whole();
    c.change(options);
    const absl::Status status = CheckOptions(options);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << c.says;
    EXPECT_THAT(std::string(status.message()), testing::StartsWith(c.says));
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

}  // namespace
}  // namespace entrain
