// The rounds that overlap with further steps (option overlap_steps) and are not merged yet, in the
// order in which they began.
//
// Thread safety: one thread at a time, the caller's.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"

#include "lib/checkpoint/state_visitor.h"
#include "lib/train/exchange_round.h"

namespace entrain {

class RoundsBehind {
 public:
  explicit RoundsBehind(int layers) : begun_(static_cast<size_t>(layers), -1) {}

  bool empty() const { return rounds_.empty(); }
  const std::shared_ptr<ExchangeRound>& first() const { return rounds_.front(); }
  void Add(std::shared_ptr<ExchangeRound> round) { rounds_.push_back(std::move(round)); }
  void RemoveFirst() { rounds_.pop_front(); }
  bool AllArrived() const;

  // For checkpoints. VisitState visits, for each layer, the step at which its round began. Prepare
  // must be called before VisitState.
  void Prepare();
  void VisitState(StateVisitor& visitor);
  // Must be called after loading. Restores the saved rounds; the exchanges of these rounds are
  // over. Calls `resume` for each layer of these rounds. `layers` lists all layers that may belong
  // to such a round.
  void GoOn(const std::vector<int>& layers, absl::FunctionRef<void(int layer)> resume);

 private:
  std::deque<std::shared_ptr<ExchangeRound>> rounds_;
  std::vector<int64_t> begun_;  // by layer, set by Prepare or a load; -1: no round
};

}  // namespace entrain
