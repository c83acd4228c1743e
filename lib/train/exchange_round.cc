#include "lib/train/exchange_round.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"

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

absl::Status ExchangeRound::Judge(LayerExchange& exchange, int64_t extra_ns) {
  if (behind_) {
    exchange.UseSnapshot(order_);
  }
  ENTRAIN_ASSIGN_OR_RETURN(const bool exchanges, exchange.Judge(order_, standing_, extra_ns));
  SetJudged(exchanges);
  return absl::OkStatus();
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

absl::StatusOr<int> ExchangeRound::RunTurn(LayerExchange& exchange) {
  if (!exchanges_) {
    Become(State::kArrived);
    return kNoLayer;
  }
  Become(State::kUnderWay);
  const int layer = LayerAt(turn_);
  if (next_finish_ == turn_) {
    ENTRAIN_RETURN_IF_ERROR(BeginAhead(exchange));
    ENTRAIN_RETURN_IF_ERROR(Annotate(exchange.Finish(layer), absl::StrCat("layer ", layer)));
    ++next_finish_;
  }
  if (++turn_ > last_turn()) {
    Become(State::kArrived);
  }
  return layer;
}

absl::Status ExchangeRound::BeginAhead(LayerExchange& exchange) {
  int64_t bytes = 0;
  for (int turn = next_finish_; turn < next_begin_; ++turn) {
    bytes += exchange.DeltaBytes(LayerAt(turn));
  }
  const int last = in_flight_.ahead ? last_turn() : allowed();
  for (; next_begin_ <= last; ++next_begin_) {
    const int layer = LayerAt(next_begin_);
    bytes += exchange.DeltaBytes(layer);
    if (next_begin_ >= next_finish_ + in_flight_.layers && bytes > in_flight_.bytes) {
      break;
    }
    ENTRAIN_RETURN_IF_ERROR(Annotate(exchange.Begin(layer), absl::StrCat("layer ", layer)));
  }
  return absl::OkStatus();
}

void ExchangeRound::Merge(LayerExchange& exchange) {
  if (exchanges_) {
    exchange.Merge(order_);
  } else {
    exchange.DropSnapshot(order_);
  }
  Become(State::kMerged);
}

}  // namespace entrain
