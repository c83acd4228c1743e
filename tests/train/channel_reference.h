// A reference of a gradient channel, and the gradients of the ranks. The reference steps all
// parameters at once, one commit after the other, with the micro-batches of the ranks that each
// commit has counted. Sums of these gradients are exact in any order, so parameters can be compared
// bit for bit.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "lib/kernels/kernels.h"
#include "lib/optim/optimizer.h"
#include "lib/train/edit/penalty.h"

namespace entrain {

constexpr double kChannelRate = 0.01;
// The bounds of a group with SGD, at half the rate.
constexpr int64_t kGroupBegin = 1000, kGroupEnd = 10'000;

inline float InitialOf(int64_t i) {
  return 0.125f * static_cast<float>(i % 17) - 1;
}

inline float GradientOf(int rank, int64_t round, int64_t i) {
  return static_cast<float>((7 * round + 3 * i + 5 * rank) % 32 - 16) / 64;
}

inline std::shared_ptr<const Optimizer> MakeRule(OptimizerKind kind, double weight_decay) {
  OptimizerConfig config;
  config.kind = kind;
  config.momentum = kind == OptimizerKind::kSgd ? 0.5 : 0;
  config.weight_decay = weight_decay;
  return *MakeOptimizer(config);
}

class ChannelReference {
 public:
  struct Options {
    int64_t count = 0;
    OptimizerKind kind = OptimizerKind::kAdamw;
    double clip_norm = 0;
    bool bf16 = false;    // parameters
    bool groups = false;  // elements [kGroupBegin, kGroupEnd) are a group
  };
  explicit ChannelReference(const Options& options)
      : options_(options),
        rule_(MakeRule(options.kind, 0.1)),
        group_(MakeRule(OptimizerKind::kSgd, 0)),
        state_(static_cast<size_t>(std::max(rule_->state_arrays(), group_->state_arrays())),
               std::vector<float>(static_cast<size_t>(options.count))) {
    for (int64_t i = 0; i < options.count; ++i) {
      masters_.push_back(InitialOf(i));
    }
  }
  // Adds the micro-batches that these ranks made for `round` to the next commit. Rounds count from
  // 0.
  void Add(const std::vector<int>& ranks, int64_t round) {
    sum_.resize(masters_.size());
    for (const int rank : ranks) {
      for (size_t i = 0; i < sum_.size(); ++i) {
        sum_[i] += GradientOf(rank, round, static_cast<int64_t>(i));
      }
    }
    microbatches_ += static_cast<double>(ranks.size());
  }
  void Commit() {
    std::vector<float> mean = std::exchange(sum_, {});
    const double n = std::exchange(microbatches_, 0);
    double square = 0;
    for (const float value : mean) {
      square += static_cast<double>(value) * value;
    }
    const double norm = std::sqrt(square) * (1 / n);
    const double clip = options_.clip_norm > 0 ? ClipFactor(norm, options_.clip_norm) : 1;
    BestKernels().scale_any(DType::kF32, mean.data(), mean.data(), options_.count, 1 / n * clip);
    ++commits_;
    Step(*rule_, mean, 0, options_.groups ? kGroupBegin : options_.count, 1);
    if (options_.groups) {
      Step(*group_, mean, kGroupBegin, kGroupEnd, 0.5);
      Step(*rule_, mean, kGroupEnd, options_.count, 1);
    }
  }
  std::vector<float> params() const {
    std::vector<float> params = masters_;
    if (options_.bf16) {
      std::vector<uint16_t> narrow(params.size());
      BestKernels().cast(narrow.data(), DType::kBF16, params.data(), DType::kF32, options_.count);
      BestKernels().cast(params.data(), DType::kF32, narrow.data(), DType::kBF16, options_.count);
    }
    return params;
  }

 private:
  void Step(const Optimizer& rule, const std::vector<float>& mean, int64_t first, int64_t end,
            double lr_scale) {
    std::vector<float*> state;
    for (int i = 0; i < rule.state_arrays(); ++i) {
      state.push_back(state_[static_cast<size_t>(i)].data() + first);
    }
    rule.Step({.count = end - first,
               .master = masters_.data() + first,
               .grads = mean.data() + first,
               .state = state,
               .step = commits_,
               .lr = kChannelRate * lr_scale},
              Apply::kCommit);
  }

  const Options options_;
  const std::shared_ptr<const Optimizer> rule_, group_;
  std::vector<float> masters_, sum_;
  std::vector<std::vector<float>> state_;
  double microbatches_ = 0;  // in sum_
  int64_t commits_ = 0;
};

}  // namespace entrain
