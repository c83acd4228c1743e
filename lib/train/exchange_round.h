// One rendezvous, and the exchange that may follow, layer by layer.
//
//   kBegun --Judge--> kJudged --RunTurn--> kUnderWay --the last RunTurn--> kArrived --Merge--> kMerged
//                        └── nothing to exchange: RunTurn ─────────────────────┘     (behind further steps only)
//
// Each layer of the round has a turn, in ascending order of layers. The delta of a layer is reduced
// over the replicas while the previous layer is finished. The caller limits the turns that may
// begin.
//
// Thread safety: Judge, RunTurn and Merge, and after a loss SetJudged and Restart, run on one
// thread at a time. A thread that calls one of these functions must have waited for the last such
// call of another thread. The caller's thread calls Allow. Any thread may read state() and the
// values that never change.
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

  // `order` gives the layer of each turn, ascending. `standing` is this rank's standing, with the
  // steps at which the round begins. `behind` is true if the round runs behind further steps, that
  // is, while this replica trains (option overlap_steps). `in_flight`, at least 1, limits the
  // number of layers between Begin and Finish.
  ExchangeRound(std::vector<int> order, const Standing& standing, bool behind, int in_flight)
      : order_(std::move(order)), standing_(standing), behind_(behind), in_flight_(in_flight) {}
  // For loading: makes a round that ran behind further steps and had arrived when it was saved.
  static std::shared_ptr<ExchangeRound> Arrived(std::vector<int> order, int64_t begun);

  const std::vector<int>& order() const { return order_; }
  const Standing& standing() const { return standing_; }
  int last_turn() const { return static_cast<int>(order_.size()) - 1; }
  // Returns the turn of the layer, or of the last layer before it that has a turn; -1 if there is
  // none.
  int TurnOf(int layer) const;
  // Returns the step at which the round began.
  int64_t begun() const { return static_cast<int64_t>(standing_.steps); }
  bool behind() const { return behind_; }
  State state() const { return state_.load(std::memory_order_acquire); }
  // Returns true if all layers of the round have been exchanged, or there was nothing to exchange.
  bool arrived() const { return state() >= State::kArrived; }
  // Returns true if the replicas exchange. Valid after Judge, on a thread that has waited for
  // Judge.
  bool exchanges() const { return exchanges_; }

  // Returns the number of finished turns; -1 before Judge. If there is nothing to exchange, all
  // turns count as finished. Called on the thread of Judge.
  int finished() const;

  // Called by the caller's thread: allows all turns up to this one to begin. `turn` must not
  // decrease. Initially no turn may begin.
  void Allow(int turn);
  int allowed() const { return allowed_.load(std::memory_order_acquire); }
  // The number of the job of the last turn; 0 if the round was already over when it was loaded.
  void set_last_job(uint64_t job) { last_job_ = job; }
  uint64_t last_job() const { return last_job_; }

  // Sets the number of the round, which the replica did not know when it arrived.
  void SetNumber(uint64_t round) { standing_.round = round; }
  // Used in place of Judge if the replica goes on without a rendezvous. Either the replica came too
  // late for rounds and has taken up their results, or it came too early for a round that needs all
  // replicas. `dropped` is true if the result of its training was dropped. Afterwards there is
  // nothing to exchange.
  void SetMissed(bool dropped);
  // Return the values that SetMissed has set. Valid on a thread that has waited for the round's
  // first job.
  bool missed() const { return missed_; }
  bool dropped() const { return dropped_; }
  absl::Status Judge(LayerExchange& exchange, int64_t extra_ns);
  // Used in place of a Judge that has failed here and succeeded on other ranks.
  void SetJudged(bool exchanges);
  // Continues at turn `finished`: the turns before it are finished, and no other layer has begun.
  void Restart(int finished) { next_begin_ = next_finish_ = finished; }
  // Begins further layers as far as Allow and in_flight permit, and finishes the layer whose turn
  // it is. Must be called once per turn, and again after an error if the round continues. Returns
  // the layer, or kNoLayer if there is nothing to exchange.
  absl::StatusOr<int> RunTurn(LayerExchange& exchange);
  // Merges the exchanged layers into the live parameters, or drops the snapshot if nothing was
  // exchanged.
  void Merge(LayerExchange& exchange);

 private:
  absl::Status BeginAhead(LayerExchange& exchange);
  void Become(State state) { state_.store(state, std::memory_order_release); }

  const std::vector<int> order_;
  Standing standing_;
  const bool behind_;
  const int in_flight_;
  bool exchanges_ = false;                 // written before the state becomes kJudged
  bool missed_ = false, dropped_ = false;  // written before the state becomes kJudged
  int turn_ = 0;                           // turn of the next RunTurn
  int next_begin_ = 0, next_finish_ = 0;   // turns; next_finish_ > turn_ only after Restart
  uint64_t last_job_ = 0;
  std::atomic<int> allowed_{-1};
  std::atomic<State> state_{State::kBegun};
};

}  // namespace entrain
