#include "lib/train/edit/exchange_round.h"

#include <algorithm>
#include <map>
#include <utility>

namespace entrain {

std::shared_ptr<ExchangeRound> ExchangeRound::Arrived(std::vector<int> order, int64_t begun) {
  auto round = std::make_shared<ExchangeRound>(
      std::move(order), Standing{.steps = static_cast<uint64_t>(begun)}, true, InFlight{});
  round->exchanges_ = true;
  round->Become(State::kArrived);
  return round;
}

int ExchangeRound::TurnOf(int layer) const {
  return static_cast<int>(std::upper_bound(order_.begin(), order_.end(), layer) - order_.begin()) -
         1;
}

void ExchangeRound::Allow(int turn) {
  // Only the caller's thread writes allowed_. Because of the release order, a turn sees the
  // caller's earlier writes.
  allowed_.store(std::max(allowed(), std::min(turn, last_turn())), std::memory_order_release);
}

void ExchangeRound::SetJudged(bool exchanges) {
  exchanges_ = exchanges;
  Become(State::kJudged);
}

void ExchangeRound::SetMissed(bool dropped) {
  missed_ = true;
  dropped_ = dropped;
  SetJudged(false);
}

int ExchangeRound::finished() const {
  return state() == State::kBegun ? -1 : exchanges_ ? next_finish_ : last_turn() + 1;
}

int ExchangeRound::BeginTurn() {
  if (!exchanges_) {
    Become(State::kArrived);
    return kNoLayer;
  }
  Become(State::kUnderWay);
  return LayerAt(turn_);
}

int ExchangeRound::NextToBegin(absl::FunctionRef<int64_t(int layer)> delta_bytes) const {
  if (next_begin_ > (in_flight_.ahead ? last_turn() : allowed())) {
    return kNoLayer;
  }
  int64_t bytes = 0;
  for (int turn = next_finish_; turn <= next_begin_; ++turn) {
    bytes += delta_bytes(LayerAt(turn));
  }
  return next_begin_ < next_finish_ + in_flight_.layers || bytes <= in_flight_.bytes
             ? LayerAt(next_begin_)
             : kNoLayer;
}

void ExchangeRound::EndTurn() {
  if (++turn_ > last_turn()) {
    Become(State::kArrived);
  }
}

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
