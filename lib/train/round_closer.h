// Lets the workers of all ranks agree on when rounds are closed, while some callers still compute
// (options quorum and round_deadline). The worker of such a caller is idle meanwhile, so it can
// answer.
//
//   session   from the first arrival to the decision after which no rank waits. The rank that
//             arrives rings: it sends the session's number to all other ranks, which look for it
//             every 50 ms
//   tick      in a session, an all_gather of the ranks' arrivals; round_closing decides
//
// Between sessions nothing is sent. Each rank has posted a receive for the next ring.
//
// After a loss some ranks may have finished a tick that others have not. They differ by one tick at
// most, because a tick needs all ranks. GoOn brings all remaining ranks to the last finished tick,
// so all carry out the same decisions.
//
// Thread safety: Arrive, SetReady and End may be called by any thread. The worker calls the others.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/comm/communicator.h"
#include "lib/train/replica_world.h"
#include "lib/train/round_closing.h"

namespace entrain {

class RoundCloser {
 public:
  // `world` has the ranks of all replicas and is for this object alone. `timeout_ns` limits each
  // call, and the wait of an arrival; 0: the communicator's default.
  RoundCloser(std::unique_ptr<ReplicaWorld> world, const ClosingRule& rule, int64_t timeout_ns);
  ~RoundCloser();

  // Must be called when this rank's caller comes to a rendezvous. `flags` are those of its
  // standing.
  void Arrive(uint64_t flags);
  // Must be called when this rank has anchors.
  void SetReady() { ready_.store(true, std::memory_order_release); }  // see Mine
  // Ends the communicator with an error, so that no rank waits in it for this rank.
  void End(const absl::Status& why) { world_->End(why); }
  // May be called from any thread.
  std::shared_ptr<Communicator> comm() const { return world_->comm(); }

  // Returns true if a session is under way, and a tick may decide.
  bool Called();
  // Takes part in a tick. If the last decision is pending, returns it without a tick.
  absl::StatusOr<Closing> Tick();
  // Returns true if this rank has not carried out the last decision yet. After kWait there is
  // nothing to carry out.
  bool pending() const { return pending_; }
  // Must be called when this rank has carried out the decision.
  void Settle() { pending_ = impatient_ = false; }
  // Returns kDeadlineExceeded, naming the replicas that have not come, if this rank's arrival has
  // waited for too long. The communicator then has ended with this error, which blames a rank that
  // has not come.
  absl::Status CheckWait();
  // Returns true if the decision is about this rank's replica.
  bool Includes(const Closing& closing) const { return closing.replicas[row_]; }
  // Returns the number of rounds for which this replica was late. Does not include the last
  // decision.
  int64_t missed() const { return missed_; }
  // Returns the number of finished ticks, and the record of this replica.
  int64_t ticks() const { return ticks_; }
  const Attended& attended() const { return replicas_[row_]; }
  // Replaces the communicator by `larger`, which contains newcomers. The newcomers have not arrived
  // yet. `places` has the place of each rank of `larger`.
  void Adopt(std::shared_ptr<Communicator> larger, const std::vector<ReplicaPlace>& places);
  // For a newcomer: sets the members' records, by number of the replica, and their number of ticks.
  void Join(int64_t ticks, const std::map<int, Attended>& members);
  // Called when all ranks have finished their last exchange. Ends each rank's receive for a ring,
  // so that the communicator can be destroyed without an error on other ranks.
  void Close();
  // Used after a loss. Collective over the remaining ranks, `left`. Replaces the communicator, and
  // brings all ranks to the last finished tick. If this rank had not finished that tick, the
  // decision of the tick is then pending.
  absl::Status GoOn(const ReplicaWorld& left);

 private:
  // The calls under way on a communicator, and their buffers.
  struct Calls {
    struct Numbers {
      uint64_t received = 0, rung = 0;
    };
    std::shared_ptr<Communicator> comm;
    std::unique_ptr<Numbers> numbers = std::make_unique<Numbers>();
    RefPtr<Work> listening;  // receives the next ring
    std::vector<RefPtr<Work>> rings;

    absl::Status Ring(int to, int64_t limit_ns);
    void AwaitRings();
    void SendLastRing(int64_t limit_ns);
    // Returns when no call is under way. Aborts the communicator if one is.
    void End(absl::string_view why);
  };
  void SetRows(const std::vector<int>& replicas);
  void BeginSessions();
  absl::Status ShareDecision(Communicator& all, int from);
  absl::Status Ring();
  void Listen();
  Attendance Mine() const;

  size_t RowOf(int replica) const;

  const std::unique_ptr<ReplicaWorld> world_;
  const ClosingRule rule_;
  const int64_t timeout_ns_;
  std::vector<int> numbers_;  // by row: the replica's number
  size_t row_ = 0;            // row of this replica
  std::vector<Attended> replicas_;
  std::vector<Attendance> told_;  // attendances of the last tick
  int64_t missed_ = 0;
  int64_t ticks_ = 0;     // number of finished ticks
  Closing last_;          // decision of the last tick
  bool pending_ = false;  // last_ is other than kWait and has not been carried out
  // The end of the last recovery. An arrival's time of waiting counts only from this time on. If a
  // recovery begins because this rank has waited too long (impatient_), the time stays as it was.
  int64_t patient_since_ns_ = 0;
  bool impatient_ = false;
  bool in_session_ = false;
  uint64_t session_ = 0;  // number of finished sessions on this communicator
  uint64_t heard_ = 0;    // 1 + number of the session of the ring received last
  // Close and Adopt must not end the communicator, because other ranks would take this for a loss.
  // Instead each rank sends a last ring to the next rank. This ring ends the receive on the next
  // rank.
  bool closed_ = false;
  Calls calls_, former_;  // former_: on the communicator before Adopt
  // The caller's thread writes these three. It writes `since_ns_` and `flags_` before `arrivals_`,
  // with release order. So a tick that counts an arrival sees the arrival's time and flags.
  std::atomic<int64_t> since_ns_{0}, flags_{0}, arrivals_{0};
  std::atomic<bool> ready_{false};
};

}  // namespace entrain
