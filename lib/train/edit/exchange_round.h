// One rendezvous and the exchange that may follow it, layer by layer.
//
//   kBegun --SetJudged--> kJudged --BeginTurn--> kUnderWay --the last EndTurn--> kArrived --SetMerged--> kMerged
//                            └── nothing to exchange: BeginTurn ─────────────────────┘    (if behind() only)
//
// The object only records progress; RoundRunner makes the round's calls. Each layer of the round
// has a turn. The turns are in ascending order of layers. While one layer is finished, the delta of
// the next layer is reduced over the replicas. The caller's thread limits which turns may begin
// (Allow).
//
// Thread safety: only the caller's thread calls Allow. Any thread may read state() and the values
// that never change. All other functions that change the object run on one thread at a time. Before
// a thread calls one of them, it must have waited for the end of the previous such call on another
// thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/checkpoint/state_visitor.h"
#include "lib/train/edit/rendezvous.h"

namespace entrain {

class ExchangeRound {
 public:
  enum class State { kBegun, kJudged, kUnderWay, kArrived, kMerged };
  static constexpr int kNoLayer = -1;

  // How many layers may be between Begin and Finish at a time: `layers`, at least 1, or more if
  // their deltas together have at most `bytes` bytes. With `ahead`, once the first turn runs,
  // further layers may begin before Allow covers their turns. Between distant sites a layer alone does not
  // fill the link.
  struct InFlight {
    int layers = 1;
    int64_t bytes = 0;
    bool ahead = false;
  };

  // `order` has the layer of each turn, ascending. `standing` is the standing of this rank; its
  // member `steps` is the replica's number of steps when the round begins. `behind` is true if the round overlaps with further steps
  // of this replica (option overlap_steps).
  ExchangeRound(std::vector<int> order, const Standing& standing, bool behind, InFlight in_flight)
      : order_(std::move(order)), standing_(standing), behind_(behind), in_flight_(in_flight) {}
  // For a load: makes a round that overlaps with further steps and had arrived when it was saved.
  static std::shared_ptr<ExchangeRound> Arrived(std::vector<int> order, int64_t begun);

  const std::vector<int>& order() const { return order_; }
  const Standing& standing() const { return standing_; }
  int last_turn() const { return static_cast<int>(order_.size()) - 1; }
  // Returns the turn of `layer`. If the layer has no turn, returns the turn of the last layer
  // before it that has one, or -1 if there is none.
  int TurnOf(int layer) const;
  // Returns the step at which the round began.
  int64_t begun() const { return static_cast<int64_t>(standing_.steps); }
  bool behind() const { return behind_; }
  State state() const { return state_.load(std::memory_order_acquire); }
  // Returns true if all layers of the round have been exchanged, or if there was nothing to
  // exchange.
  bool arrived() const { return state() >= State::kArrived; }
  // Returns true if an exchange follows the rendezvous. Valid on a thread that has waited for
  // the rendezvous.
  bool exchanges() const { return exchanges_; }

  // Returns the number of finished turns, or -1 before SetJudged. If there is nothing to exchange,
  // all turns count as finished. Must be called on the thread that has called SetJudged.
  int finished() const;

  // Called by the caller's thread. Allows all turns up to `turn` to begin. `turn` must not
  // decrease. At first no turn may begin.
  void Allow(int turn);
  int allowed() const { return allowed_.load(std::memory_order_acquire); }
  // The number of the job of the last turn, or 0 if the round was loaded after it had arrived.
  void set_last_job(uint64_t job) { last_job_ = job; }
  uint64_t last_job() const { return last_job_; }

  // Sets the number of the round. The replica did not know this number when it arrived.
  void SetNumber(uint64_t round) { standing_.round = round; }
  // Used in place of SetJudged if the replica continues without a rendezvous. Either the replica has
  // come too late for rounds, and has taken over their results. Or it has come too early for a
  // round that needs all replicas. `dropped` is true if the results of its training were dropped.
  // Afterwards there is nothing to exchange.
  void SetMissed(bool dropped);
  // Return the values that SetMissed has set. Valid on a thread that has waited for the first job
  // of the round.
  bool missed() const { return missed_; }
  bool dropped() const { return dropped_; }
  // Records the result of the rendezvous: whether an exchange follows.
  void SetJudged(bool exchanges);
  // Used after a loss. Continues at turn `finished`. The turns before this turn must be finished,
  // and no further layer may have begun.
  void Restart(int finished) { next_begin_ = next_finish_ = finished; }

  // ---- A turn, in this order. After an error the turn is made again, if the round continues.
  // Returns the layer of the turn, or kNoLayer if there is nothing to exchange.
  int BeginTurn();
  // Returns true if the layer of the turn is finished already, because a recovery has received its
  // result.
  bool has_result() const { return next_finish_ > turn_; }
  // Returns the next layer that must begin now, as Allow and InFlight say, or kNoLayer. Its delta
  // needs delta_bytes(layer) bytes. Begun must be called when it has begun.
  int NextToBegin(absl::FunctionRef<int64_t(int layer)> delta_bytes) const;
  void Begun() { ++next_begin_; }
  // The layer of the turn is finished.
  void Finished() { ++next_finish_; }
  void EndTurn();

  // The round was merged into the parameters, or its snapshot was dropped.
  void SetMerged() { Become(State::kMerged); }

 private:
  int LayerAt(int turn) const { return order_[static_cast<size_t>(turn)]; }
  void Become(State state) { state_.store(state, std::memory_order_release); }

  const std::vector<int> order_;
  Standing standing_;
  const bool behind_;
  const InFlight in_flight_;
  bool exchanges_ = false;                 // written before the state becomes kJudged
  bool missed_ = false, dropped_ = false;  // written before the state becomes kJudged
  int turn_ = 0;                           // the current turn
  int next_begin_ = 0, next_finish_ = 0;   // turns; next_finish_ > turn_ only after Restart
  uint64_t last_job_ = 0;
  std::atomic<int> allowed_{-1};
  std::atomic<State> state_{State::kBegun};
};

// The rounds that overlap with further steps (option overlap_steps) and are not merged yet, in the
// order in which they began.
//
// Thread safety: one thread at a time, the caller's.
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
