#include "lib/train/rounds_behind.h"

#include <algorithm>
#include <map>
#include <utility>

namespace entrain {

bool RoundsBehind::AllArrived() const {
  return std::all_of(rounds_.begin(), rounds_.end(),
                     [](const std::shared_ptr<ExchangeRound>& round) { return round->arrived(); });
}

void RoundsBehind::Prepare() {
  std::fill(begun_.begin(), begun_.end(), -1);
  for (const std::shared_ptr<ExchangeRound>& round : rounds_) {
    for (const int layer : round->order()) {
      begun_[static_cast<size_t>(layer)] = round->begun();
    }
  }
}

void RoundsBehind::VisitState(StateVisitor& visitor) {
  visitor.Array("behind/begun", Holder::kReplica, DType::kI64, begun_.data(),
                static_cast<int64_t>(begun_.size()));
}

void RoundsBehind::GoOn(const std::vector<int>& layers, absl::FunctionRef<void(int layer)> resume) {
  std::map<int64_t, std::vector<int>> rounds;
  for (const int layer : layers) {
    if (const int64_t begun = begun_[static_cast<size_t>(layer)]; begun >= 0) {
      rounds[begun].push_back(layer);
      resume(layer);
    }
  }
  for (auto& [begun, order] : rounds) {
    Add(ExchangeRound::Arrived(std::move(order), begun));
  }
}

}  // namespace entrain
