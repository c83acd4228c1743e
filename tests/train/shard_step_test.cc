// The three kinds of steps, compared with the equations of delay_rule.h with the library's
// optimizer on whole arrays.
#include "lib/train/acco/shard_step.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/kernels/kernels.h"

namespace entrain {
namespace {

// More than one piece. The second of two ranks has a shorter part.
constexpr int64_t kCount = 10007;
constexpr double kRate = 0.01;

using Floats = std::vector<float>;

Floats Params() {
  Floats values(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    values[static_cast<size_t>(i)] = 0.1f * static_cast<float>(i % 17) - 0.8f;
  }
  return values;
}

Floats Gradients(int64_t j) {
  Floats values(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    values[static_cast<size_t>(i)] = static_cast<float>((7 * j + 3 * i) % 32 - 16) / 64;
  }
  return values;
}

Floats Sum(const Floats& a, const Floats& b) {
  Floats sum = a;
  BestKernels().axpy(sum.data(), 1, b.data(), kCount);
  return sum;
}

ChannelOptions Whole() {
  ChannelOptions options;
  options.count = kCount;
  OptimizerConfig config;
  config.kind = OptimizerKind::kAdamw;
  config.weight_decay = 0.1;
  options.optimizer = *MakeOptimizer(config);
  return options;
}

// theta and the state of Opt, as arrays of all elements.
struct Reference {
  std::shared_ptr<const Optimizer> optimizer = Whole().optimizer;
  Floats theta = Params(), m = Floats(kCount), v = Floats(kCount);

  Floats Opt(Apply apply, Floats sum, int64_t n, double clip, int64_t t) {
    BestKernels().scale_any(DType::kF32, sum.data(), sum.data(), kCount,
                            1 / static_cast<double>(n) * clip);
    float* const state[] = {m.data(), v.data()};
    Floats out(kCount);
    optimizer->Step({.count = kCount,
                     .master = theta.data(),
                     .grads = sum.data(),
                     .state = state,
                     .out = apply == Apply::kPreview ? out.data() : nullptr,
                     .step = t,
                     .lr = kRate},
                    apply);
    return apply == Apply::kPreview ? out : theta;
  }
};

// One rank's shard of the elements.
class Shard {
 public:
  explicit Shard(const ChannelOptions& options, int rank = 1)
      : options_(options),
        slab_(*Slab::Make(std::vector<int64_t>{kCount}, 2, rank)),
        step_(options_, slab_.layer(0)),
        com_(static_cast<size_t>(slab_.layer(0).padded)) {
    EXPECT_EQ(step_.Allocate(), absl::OkStatus());
    const Floats params = Params();
    step_.Start(reinterpret_cast<const std::byte*>(params.data()));
  }
  ShardStep& step() { return step_; }
  GradientSum Send(const Floats& sum, int64_t n, double clip = 1) {
    std::copy(sum.begin(), sum.end(), com_.begin());
    return {reinterpret_cast<std::byte*>(com_.data()), n, clip};
  }
  // Return this rank's elements: of the step's result, of theta, and of a whole array.
  Floats made() const { return Part(com_); }
  Floats theta() const {
    const auto* const from = static_cast<const float*>(step_.theta());
    return Floats(from, from + slab_.layer(0).valid);
  }
  Floats Part(const Floats& all) const {
    const auto first = all.begin() + slab_.layer(0).first;
    return Floats(first, first + slab_.layer(0).valid);
  }

 private:
  const ChannelOptions options_;
  const Slab slab_;
  ShardStep step_;
  Floats com_;
};

TEST(ShardStep, AnEstimateIsOptOfThetaAndAAndKeepsNothing) {
  for (const int rank : {0, 1}) {
    Shard shard(Whole(), rank);
    Reference reference;
    const Floats a = Gradients(1), b = Gradients(2);
    ASSERT_EQ(shard.step().Estimate(shard.Send(a, 3), {1, kRate}), absl::OkStatus());
    EXPECT_EQ(shard.made(), shard.Part(reference.Opt(Apply::kPreview, a, 3, 1, 1)));
    EXPECT_EQ(shard.theta(), shard.Part(Params()));
    // So the commit gives the same result as without the estimate.
    ASSERT_EQ(shard.step().Commit(shard.Send(Sum(a, b), 5), {1, kRate}), absl::OkStatus());
    EXPECT_EQ(shard.made(), shard.Part(reference.Opt(Apply::kCommit, Sum(a, b), 5, 1, 1)));
    EXPECT_EQ(shard.theta(), shard.made());
    ASSERT_EQ(shard.step().Commit(shard.Send(a, 4, 0.25), {2, kRate}), absl::OkStatus());
    EXPECT_EQ(shard.made(), shard.Part(reference.Opt(Apply::kCommit, a, 4, 0.25, 2)));
  }
}

TEST(ShardStep, APredictionIsACommitAndTheSameStepOnceMore) {
  Shard shard(Whole());
  Reference reference;
  const Floats g = Gradients(3);
  ASSERT_EQ(shard.step().Predict(shard.Send(g, 2), {1, kRate}), absl::OkStatus());
  EXPECT_EQ(shard.theta(), shard.Part(reference.Opt(Apply::kCommit, g, 2, 1, 1)));
  EXPECT_EQ(shard.made(), shard.Part(reference.Opt(Apply::kPreview, g, 2, 1, 2)));
  shard.step().WriteTheta(shard.Send(g, 1).com);
  EXPECT_EQ(shard.made(), shard.theta());
}

TEST(ShardStep, GroupsHaveOptimizersAndRatesOfTheirOwn) {
  ChannelOptions options = Whole();
  constexpr int64_t kFirst = 6000, kSecond = 7000;  // within the second rank's part
  options.groups = {{kFirst, kSecond - kFirst, *MakeOptimizer({}), 10}};
  Shard shard(options);
  Reference reference;
  const Floats g = Gradients(4);
  ASSERT_EQ(shard.step().Commit(shard.Send(g, 1), {1, kRate}), absl::OkStatus());
  Floats want = reference.Opt(Apply::kCommit, g, 1, 1, 1);
  const Floats before = Params();
  for (auto i = static_cast<size_t>(kFirst); i < static_cast<size_t>(kSecond); ++i) {
    want[i] = before[i] - static_cast<float>(10 * kRate) * g[i];
  }
  EXPECT_EQ(shard.made(), shard.Part(want));
}

struct Called {
  std::vector<int32_t> previews;
  std::vector<int64_t> commits;
  int64_t elements = 0;
  int32_t result = 0;
};
int32_t Step(void* user, int32_t preview, int64_t commit, double, size_t, size_t count, const void*,
             void*, void* out) {
  Called& called = *static_cast<Called*>(user);
  called.previews.push_back(preview);
  called.commits.push_back(commit);
  called.elements += static_cast<int64_t>(count);
  EXPECT_EQ(out != nullptr, preview != 0);
  return called.result;
}

TEST(ShardStep, TheCallersStepIsToldWhatItMakes) {
  ChannelOptions options = Whole();
  Called called;
  options.optimizer = nullptr;
  options.step = Step;
  options.user = &called;
  Shard shard(options);
  ASSERT_EQ(shard.step().Predict(shard.Send(Gradients(1), 1), {7, kRate}), absl::OkStatus());
  EXPECT_THAT(called.previews, testing::ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(called.commits, testing::ElementsAre(7, 8, 7, 8));
  EXPECT_EQ(called.elements, 2 * (kCount / 2));
  called.result = 5;
  EXPECT_EQ(shard.step().Commit(shard.Send(Gradients(1), 1), {7, kRate}).message(),
            "the ACCO step of commit 7 returned 5");
  EXPECT_EQ(shard.step().Estimate(shard.Send(Gradients(1), 1), {8, kRate}).message(),
            "the ACCO step of a preview of commit 8 returned 5");
}

TEST(ShardStep, TheNormIsOfThisRanksPart) {
  Shard shard(Whole());
  const Floats g = Gradients(5);
  double want = 0;
  for (const float value : shard.Part(g)) {
    want += double{value} * double{value};
  }
  EXPECT_DOUBLE_EQ(shard.step().SumOfSquares(shard.Send(g, 1).com), want);
}

}  // namespace
}  // namespace entrain
