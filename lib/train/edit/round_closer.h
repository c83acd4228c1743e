// Lets the workers of all ranks agree when a round is closed (options quorum and round_deadline).
// At that time some callers may still compute. The worker of such a caller is idle, so it can take
// part.
//
//   session   the time from the first arrival until a decision after which no rank waits
//   ring      the message that begins a session. The first rank that arrives sends the session's
//             number to all other ranks. Idle workers look for this message every 50 ms
//   tick      an all_gather of the ranks' arrivals in a session. CloseRound (round_closing.h)
//             decides from the result
//
// Between sessions nothing is sent. Each rank has posted a receive for the next ring.
//
// After a loss, some ranks may have finished a tick that the others have not finished. The
// difference is one tick at most, because a tick needs all ranks. GoOn gives the decision of the
// last finished tick to all remaining ranks. So all ranks carry out the same decisions.
//
// Thread safety: Arrive, Offer, Withdraw, offers, SetReady, End and comm may be called from any
// thread. Only the worker calls the other functions.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "lib/comm/communicator.h"
#include "lib/train/edit/round_closing.h"
#include "lib/train/elastic/replica_world.h"

namespace entrain {

class RoundCloser {
 public:
  // `world` has the ranks of all replicas. Nothing else may use it. `timeout_ns` limits each call,
  // and the time from an arrival to a decision about it; 0: the communicator's default.
  RoundCloser(std::unique_ptr<ReplicaWorld> world, const ClosingRule& rule, int64_t timeout_ns);
  ~RoundCloser();

  // Must be called when this rank's caller comes to a rendezvous. `flags` are the flags of the
  // caller's standing.
  void Arrive(uint64_t flags);
  // Offers a fragment for an exchange (ClosingRule::fragments). The caller needs the result at
  // `due_ns` of the real clock. A fragment that is offered again keeps both of its times: otherwise
  // a replica of short steps would be waited for without end. Withdraw takes the offer back, or ends
  // it when a round has answered it. Offer and Withdraw must not run at the same time.
  void Offer(int fragment, int64_t due_ns);
  void Withdraw(int fragment);
  // Returns true if an offer has not been answered or taken back.
  bool offers() const;
  // Sets the time that a round of a fragment takes, from its decision to its end.
  void SetRoundTime(int64_t ns) { round_ns_.store(ns, std::memory_order_relaxed); }
  // Must be called when this rank has anchors.
  void SetReady() { ready_.store(true, std::memory_order_release); }  // see Mine
  // Ends the communicator with the error `why`, so that no rank waits there for this rank.
  void End(const absl::Status& why) { world_->End(why); }
  // May be called from any thread.
  std::shared_ptr<Communicator> comm() const { return world_->comm(); }

  // Returns true if a session is under way. Other ranks then wait for this rank in a tick.
  bool Called();
  // Takes part in a tick and returns its decision. If this rank has not carried out the last
  // decision yet (pending), returns the last decision without a tick.
  absl::StatusOr<Closing> Tick();
  // Returns true if this rank has not carried out the last decision yet. A decision kWait is never
  // pending.
  bool pending() const { return pending_; }
  // Must be called when this rank has carried out the decision.
  void Settle() { pending_ = impatient_ = false; }
  // Returns kDeadlineExceeded if this rank's arrival has waited too long for a decision. The
  // message names the replicas that have not come. In this case the communicator has ended with the
  // same error. The error blames a rank that has not come.
  absl::Status CheckWait();
  // Returns true if the decision is about this rank's replica.
  bool Includes(const Closing& closing) const { return closing.replicas[row_]; }
  // Returns the number of rounds for which this replica was late since its last answered arrival.
  // Does not include the last decision.
  int64_t missed() const { return missed_; }
  // ticks returns the number of finished ticks. attended returns the record of this replica.
  int64_t ticks() const { return ticks_; }
  const Attended& attended() const { return replicas_[row_]; }
  // Replaces the communicator by `larger`, which contains newcomers. A newcomer starts with no
  // arrivals. `places` has the place of each rank of `larger`.
  void Adopt(std::shared_ptr<Communicator> larger, const std::vector<ReplicaPlace>& places);
  // For a newcomer: sets the members' number of ticks and their records. `members` maps the number
  // of a replica to its record.
  void Join(int64_t ticks, const std::map<int, Attended>& members);
  // Must be called on each rank when all ranks have finished their last exchange. Ends the rank's
  // receive for a ring, so that the communicator can be destroyed without an error on other ranks.
  void Close();
  // Used after a loss. Collective over the remaining ranks, `left`. Replaces the communicator. If
  // other ranks have finished one more tick than this rank, this rank receives the decision of that
  // tick. The decision is then pending.
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
    // Blocks until no call is under way. If a call is under way, aborts the communicator first.
    void End(absl::string_view why);
  };
  void SetRows(const std::vector<int>& replicas);
  void BeginSessions();
  absl::Status ShareDecision(Communicator& all, int from);
  absl::Status Ring();
  void Listen();
  Attendance Mine() const;
  void Fill(std::vector<int64_t>* message) const;
  Closing Decide(absl::Span<const FragmentWait> waits) const;

  size_t RowOf(int replica) const;

  const std::unique_ptr<ReplicaWorld> world_;
  const ClosingRule rule_;
  const int64_t timeout_ns_;
  std::vector<int> numbers_;  // by row: the replica's number
  size_t row_ = 0;            // row of this replica
  std::vector<Attended> replicas_;
  std::vector<Attendance> told_;  // attendances of the last tick
  // The offers of this rank, by fragment. The caller's thread offers.
  struct FragmentOffer {
    std::atomic<int64_t> since_ns{0}, due_ns{0};  // since_ns 0: not offered
  };
  std::vector<FragmentOffer> fragments_;
  std::atomic<int64_t> round_ns_{0};
  int64_t missed_ = 0;
  int64_t ticks_ = 0;     // number of finished ticks
  Closing last_;          // decision of the last tick
  bool pending_ = false;  // last_ is other than kWait and has not been carried out
  // The time of the end of the last recovery. CheckWait does not count time before it. A recovery
  // that CheckWait has caused (impatient_) does not change it.
  int64_t patient_since_ns_ = 0;
  bool impatient_ = false;
  bool in_session_ = false;
  uint64_t session_ = 0;  // number of finished sessions on this communicator
  uint64_t heard_ = 0;    // 1 + number of the session of the ring received last
  // Set by Close. Close and Adopt must not end the communicator, because other ranks would regard
  // this as a loss. Instead each rank sends a last ring to the next rank. This ring ends the
  // receive on the next rank.
  bool closed_ = false;
  Calls calls_, former_;  // former_: on the communicator before Adopt
  // The caller's thread writes since_ns_ and flags_. Then it writes arrivals_ with release order.
  // So a tick that counts an arrival also sees the time and the flags of this arrival.
  std::atomic<int64_t> since_ns_{0}, flags_{0}, arrivals_{0};
  std::atomic<bool> ready_{false};
};

}  // namespace entrain
