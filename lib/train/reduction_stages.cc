#include "lib/train/reduction_stages.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace entrain {

void ReductionStages::BeginStep() {
  std::fill(stages_.begin(), stages_.end(), Stage::kNone);
}

void ReductionStages::Finished() {
  std::replace(stages_.begin(), stages_.end(), Stage::kReduced, Stage::kFinished);
}

absl::Status ReductionStages::CheckReduced() const {
  std::vector<int> missing, unfinished;
  size_t untouched = 0;
  for (const int layer : training_) {
    const Stage stage = stages_[static_cast<size_t>(layer)];
    untouched += stage == Stage::kNone ? 1 : 0;
    if (stage == Stage::kReduced) {
      unfinished.push_back(layer);
    } else if (stage != Stage::kFinished) {
      missing.push_back(layer);
    }
  }
  const auto named = [](const std::vector<int>& layers) {
    return absl::StrCat(layers.size() == 1 ? "layer " : "layers ", absl::StrJoin(layers, ", "));
  };
  if (untouched == training_.size() || (missing.empty() && unfinished.empty())) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      missing.empty()
          ? absl::StrCat("nobody has waited for the gradients of ", named(unfinished),
                         ": call finish_gradients before the optimizer")
          : absl::StrCat("the gradients of ", named(missing),
                         " were not reduced in this step, in which gradients were handed out"));
}

}  // namespace entrain
