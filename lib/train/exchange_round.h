// One rendezvous, and the exchange that may follow, layer by layer.
//
//   kBegun --Judge--> kJudged --RunTurn--> kUnderWay --the last RunTurn--> kArrived --Merge--> kMerged
//                        └── nothing to exchange: RunTurn ─────────────────────┘     (behind further steps only)
//
// Layers have turns, in their order. A layer that has begun travels while the one before it is finished; the caller says how far
// turns are allowed to begin.
//
// Thread safety: Judge, RunTurn and Merge by one thread at a time, of which each has waited for the one before. Allow is the
// caller's. state and the constants from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/train/layer_exchange.h"
#include "lib/train/rendezvous.h"

namespace entrain {

class ExchangeRound {
 public:
  enum class State { kBegun, kJudged, kUnderWay, kArrived, kMerged };
  static constexpr int kNoLayer = -1;

  // `order`: by turn the layer, ascending. `standing`: what this rank says; its steps are those at which the round begins.
  // `behind`: it runs behind further steps. `in_flight`: layers that may be between Begin and Finish, at least 1.
  ExchangeRound(std::vector<int> order, const Standing& standing, bool behind, int in_flight)
      : order_(std::move(order)), standing_(standing), behind_(behind), in_flight_(in_flight) {}
  // One behind further steps that had arrived when it was saved.
  static std::shared_ptr<ExchangeRound> Arrived(std::vector<int> order, int64_t begun);

  const std::vector<int>& order() const { return order_; }
  const Standing& standing() const { return standing_; }
  int last_turn() const { return static_cast<int>(order_.size()) - 1; }
  // The turn of the layer, or of the last one before it that has any; -1: there is none.
  int TurnOf(int layer) const;
  // The step at which it began.
  int64_t begun() const { return static_cast<int64_t>(standing_.steps); }
  bool behind() const { return behind_; }
  State state() const { return state_.load(std::memory_order_acquire); }
  // All its layers have been exchanged, or there was nothing to exchange.
  bool arrived() const { return state() >= State::kArrived; }
  // Whether the replicas exchange; after Judge, by a thread that has waited for it.
  bool exchanges() const { return exchanges_; }

  // The caller's: turns up to this one may begin; never fewer than before. By default none may.
  void Allow(int turn);
  int allowed() const { return allowed_.load(std::memory_order_acquire); }
  // The number of the job of its last turn; 0: it was over when it was loaded.
  void set_last_job(uint64_t job) { last_job_ = job; }
  uint64_t last_job() const { return last_job_; }

  absl::Status Judge(LayerExchange& exchange, int64_t extra_ns);
  // Finishes the next layer in turn, with those after it begun as far as that is allowed. To be called once a turn. Gives the layer;
  // kNoLayer: there is nothing to exchange.
  absl::StatusOr<int> RunTurn(LayerExchange& exchange);
  // What was exchanged becomes part of the live parameters, or, where nothing was, the snapshot is dropped.
  void Merge(LayerExchange& exchange);

 private:
  absl::Status BeginAhead(LayerExchange& exchange);
  void Become(State state) { state_.store(state, std::memory_order_release); }

  const std::vector<int> order_;
  const Standing standing_;
  const bool behind_;
  const int in_flight_;
  bool exchanges_ = false;                // written before the state becomes kJudged
  int next_begin_ = 0, next_finish_ = 0;  // turns
  uint64_t last_job_ = 0;
  std::atomic<int> allowed_{-1};
  std::atomic<State> state_{State::kBegun};
};

}  // namespace entrain
