// Runs one schedule for one call: lanes, rounds, local operations. Knows nothing about
// communicators. Everything here is [driver] (lib/engine/engine.h).
//
// The transfers of all active lanes run concurrently; at most `window` lanes are active. A lane is
// ready when the last transfer of its round has completed. Advance then runs the local operations
// of the round and posts the next round. If these operations write to no memory that the round
// sends, Advance runs them earlier: when the last receive has completed.
//
// Each slot of the window has its own scratch, and lanes reuse it one after the other. So the
// scratch stays in the cache even for a long call.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

#include "collectives/schedule.h"
#include "lib/base/call.h"
#include "lib/engine/plan.h"
#include "lib/engine/user_combine.h"
#include "lib/kernels/kernels.h"
#include "lib/memory/buffer.h"
#include "transports/transport.h"

namespace entrain {

// The progress of a call with one lane. round: the current round. done: bit i is set if transfer i
// of this round is done. lent: the sends whose messages the peers may still be reading in this
// rank's memory. This memory must not be written.
struct Progress {
  struct LentSend {
    uint32_t transfer;  // index in the round
    SendRequest request;
  };
  uint32_t round = 0;
  uint64_t done = 0;
  absl::InlinedVector<LentSend, 2> lent{};
  // The operations of `round` have run, but some of its sends are not done.
  bool ops_done = false;
  int64_t bytes_sent = 0, bytes_received = 0;
};

class Executor {
 public:
  // `ready` is called by a completion if Advance has something to do. The plan, the arrays of
  // `wiring` and the buffers of the call must exist until the last completion of this executor.
  // `scratch` must have plan->SlotBytes(call.reduction) * plan->window bytes; it may be empty if
  // this is 0. TakeScratch returns it.
  Executor(std::shared_ptr<const Plan> plan, const Call& call, const Wiring& wiring,
           const Kernels& kernels, OwnedBuffer scratch, std::function<void()> ready);

  // Sets the thread that runs the caller's own reduction. If the call has such a reduction, must be
  // called before Start.
  void CombineBy(UserFunctions functions) { functions_ = std::move(functions); }
  // Posts the first rounds. `from` is what the inline path has already done. If the inline path has
  // begun a round, posts only the rest of that round. The call may be over when Start returns.
  void Start(const Progress& from = {});
  // Advances every lane that is ready. Returns true if the call is over: all lanes are done, or the
  // call has failed and posts nothing more.
  bool Advance();
  // Posts no more rounds. Transfers that are already posted still complete. Does not wait for a
  // running function of the caller.
  void Stop(absl::Status why);

  const absl::Status& status() const { return status_; }
  const Descriptor& descriptor() const { return descriptor_; }
  const char* algorithm() const { return plan_->algorithm; }
  // Returns the number of posted transfers whose completions have not run, plus the number of
  // combinations by the caller's function that have not returned. The executor must exist until
  // this is 0.
  int pending() const { return pending_; }
  int64_t bytes_sent() const { return bytes_sent_; }
  int64_t bytes_received() const { return bytes_received_; }
  // Returns the value with which the caller's own reduction has failed. Returns 0 if it has not
  // failed.
  int32_t reduction_failed() const { return reduction_failed_; }
  // Returns true while the call waits for the caller's own reduction.
  bool combining() const;
  // Returns the time at which the caller's own reduction was called. Returns 0 if it is not
  // running.
  int64_t combining_since_ns() const;
  // Returns the peer of the transfer that failed first. If none has failed, returns the peer of a
  // transfer that has not completed, a receive if there is one. Returns -1 if all have completed.
  int WaitingFor() const;
  // Calls `each` for each transfer that is posted and has not completed.
  void EachOpenTransfer(absl::FunctionRef<void(int peer, Direction direction)> each) const;
  // Returns true if a receive is posted and has not completed.
  bool receiving() const;
  // Returns the scratch. Returns an empty buffer if the caller's own reduction may still use the
  // scratch. Must be called once, when pending() is 0.
  OwnedBuffer TakeScratch();

 private:
  struct LaneRun {
    int lane = -1;        // index in the schedule; -1: no lane
    uint32_t round = 0;   // index in the lane
    int outstanding = 0;  // transfers of this round that have not completed
    int receives = 0;     // of these, the receives
    std::byte* scratch = nullptr;
    bool ready = false;
    // The operations of this round have run, but some of its sends have not completed.
    bool ops_done = false;
    uint32_t op = 0;                       // index of the next operation in this round
    std::shared_ptr<UserCombine> combine;  // runs that operation; null: none is running
  };
  struct Pending : Completion {
    Executor* executor = nullptr;
    uint16_t run = 0;  // index in runs_
    uint32_t transfer = 0;
    bool posted = false;
    Loan loan;
  };

  static void OnDone(Completion* self, const absl::Status& status, int64_t bytes);
  void PostRound(LaneRun& run);
  // `lent`: the request of a send that the inline path has begun; otherwise null.
  void PostTransfer(LaneRun& run, uint32_t transfer, const SendRequest* lent);
  bool NextLane(LaneRun& run);
  void StepLane(LaneRun& run);
  // Runs the operations of the round and returns the loans of its receives. Returns false if it has
  // posted a combination to the caller's own reduction. The remaining operations run after that has
  // returned.
  bool DoOps(LaneRun& run);
  void Combine(LaneRun& run, uint32_t op);
  void OnCombined(LaneRun& run, uint32_t op, std::byte* result, int32_t returned);
  // Returns true if the operations of the round can run now: the completed transfer was the last
  // receive, and the operations need not wait for sends. `completed` is the direction of that
  // transfer.
  bool ReadyForOps(const LaneRun& run, Direction completed) const;
  void ReleaseLoans();

  const std::shared_ptr<const Plan> plan_;
  const Schedule& schedule_;
  const Call call_;
  const Descriptor descriptor_;
  const Wiring wiring_;
  const Binding binding_;
  const std::function<void()> ready_;
  UserFunctions functions_;
  OwnedBuffer scratch_;
  // Inlined, so that small calls need no allocation. One allocation takes a tenth of the time of
  // the smallest call.
  absl::InlinedVector<LaneRun, 2> runs_;
  absl::InlinedVector<Pending, 8> slots_;  // one per transfer of the schedule
  int next_lane_ = 0;
  // Set only during Start: what the inline path has done of the first round.
  const Progress* before_ = nullptr;
  int lanes_left_ = 0;
  int pending_ = 0;
  int64_t bytes_sent_ = 0, bytes_received_ = 0;
  int failed_peer_ = -1;
  int32_t reduction_failed_ = 0;
  bool stopped_ = false;
  absl::Status status_;
};

}  // namespace entrain
