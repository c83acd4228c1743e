#include "lib/train/edit/layer_gates.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/clock.h"
#include "lib/base/status.h"

namespace entrain {

void LayerGates::Begin(std::shared_ptr<ExchangeRound> round,
                       absl::FunctionRef<uint64_t()> post_turn) {
  round_ = std::move(round);
  round_->Allow(prefetch_ - 1);
  const int allowed = round_->allowed();
  worker_.Limit(allowed == round_->last_turn()
                    ? Worker::kNoLimit
                    : worker_.last() + static_cast<uint64_t>(allowed + 1));
  for (const int layer : round_->order()) {
    jobs_[static_cast<size_t>(layer)] = post_turn();
    waited_[static_cast<size_t>(layer)] = false;
  }
}

absl::Status LayerGates::CheckLayer(int layer) const {
  const int layers = static_cast<int>(jobs_.size());
  if (layer < 0 || layer >= layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("edit: layer: ", layer, " is not in [0, ", layers, ")"));
  }
  return absl::OkStatus();
}

int LayerGates::FirstPending() const {
  if (!error_.status().ok()) {
    return -1;
  }
  const auto pending = std::find_if(jobs_.begin(), jobs_.end(),
                                    [this](uint64_t job) { return !worker_.IsDone(job); });
  return pending == jobs_.end() ? -1 : static_cast<int>(pending - jobs_.begin());
}

int LayerGates::FirstWithoutWait() const {
  const auto without = std::find(waited_.begin(), waited_.end(), false);
  return without == waited_.end() || !error_.status().ok()
             ? -1
             : static_cast<int>(without - waited_.begin());
}

int LayerGates::FirstHeldBack() const {
  return round_ == nullptr || round_->allowed() == round_->last_turn() || !error_.status().ok()
             ? -1
             : round_->order()[static_cast<size_t>(round_->allowed() + 1)];
}

void LayerGates::Expect(int layer) {
  if (round_ == nullptr || round_->allowed() == round_->last_turn()) {
    return;
  }
  const int last = round_->last_turn();
  round_->Allow(std::min(round_->TurnOf(layer), last - prefetch_) + prefetch_);
  const int allowed = round_->allowed();
  if (allowed == last) {
    worker_.Limit(Worker::kNoLimit);
  } else if (allowed >= 0) {
    worker_.Limit(JobOf(round_->order()[static_cast<size_t>(allowed)]));
  }
}

void LayerGates::WhenOpen(int layer, absl::AnyInvocable<void(const absl::Status&)> then) {
  waited_[static_cast<size_t>(layer)] = true;
  worker_.WhenDone(JobOf(layer), [this, then = std::move(then)](const absl::Status& over) mutable {
    then(error_.Or(over));
  });
}

void LayerGates::WhenOver(int layer, Worker::Continuation then) {
  Expect(layer);
  WhenOpen(layer, std::move(then));
}

absl::Status LayerGates::Hold(int layer) {
  waited_[static_cast<size_t>(layer)] = true;
  Expect(layer);
  return error_.Or(Annotate(worker_.Hold(JobOf(layer)), "edit"));
}

absl::Status LayerGates::WaitOpen(int layer) {
  const AddTime stopwatch(&waited_ns_);
  return Hold(layer);
}

}  // namespace entrain
