// Runs one schedule for one call: lanes, rounds, local operations. Knows nothing of communicators.
//
// Everything here is [driver] (lib/engine/engine.h). The lanes' transfers run concurrently. When
// the last transfer of a round has completed, the lane is ready: Advance does the round's local
// operations and posts the next round. If the operations write nothing that is being sent, Advance
// does them already when the last receive has completed. At most `window` lanes are active. Scratch
// belongs to window slots, so it stays in the cache however long the call is.
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

// The progress of a call with one lane. `round` is the round under way. Bit i of `done` is set if
// transfer i of this round is done. `lent` has the sends whose messages the peers may still read in
// this rank's memory, so this memory must not be written yet.
struct Progress {
  struct LentSend {
    uint32_t transfer;  // index in the round
    SendRequest request;
  };
  uint32_t round = 0;
  uint64_t done = 0;
  absl::InlinedVector<LentSend, 2> lent{};
  // The operations of `round` are done while its sends are under way.
  bool ops_done = false;
  int64_t bytes_sent = 0, bytes_received = 0;
};

class Executor {
 public:
  // `ready` is called from completions when Advance has something to do. The plan, the wiring's
  // arrays and the buffers of the call must outlive the executor's last completion. `scratch` has
  // plan->SlotBytes(call.reduction) * plan->window bytes, or is empty if this number is 0.
  // TakeScratch returns the scratch.
  Executor(std::shared_ptr<const Plan> plan, const Call& call, const Wiring& wiring,
           const Kernels& kernels, OwnedBuffer scratch, std::function<void()> ready);

  // Sets the thread on which the caller's own reduction runs. Must be called before Start if the
  // call has such a reduction.
  void CombineBy(UserFunctions functions) { functions_ = std::move(functions); }
  // Posts the first rounds. `from` is the part of the call that the inline path has done. If the
  // inline path has begun a round, Start posts only the rest of this round. The call may be over
  // when Start returns.
  void Start(const Progress& from = {});
  // Advances every lane that is ready. Returns true when the call is over: all lanes are done, or
  // the call has failed and nothing more will be posted.
  bool Advance();
  // Posts no further rounds. Transfers under way still complete. A running function of the caller
  // continues, and the executor does not wait for it.
  void Stop(absl::Status why);

  const absl::Status& status() const { return status_; }
  const Descriptor& descriptor() const { return descriptor_; }
  const char* algorithm() const { return plan_->algorithm; }
  // Number of posted transfers whose completions have not run, and of combinations by the caller's
  // function that have not returned. The executor must live until this is 0.
  int pending() const { return pending_; }
  int64_t bytes_sent() const { return bytes_sent_; }
  int64_t bytes_received() const { return bytes_received_; }
  // Returns the value with which the caller's own reduction failed, or 0 if the reduction has not
  // failed.
  int32_t reduction_failed() const { return reduction_failed_; }
  // Returns true while the call waits for the caller's own function.
  bool combining() const;
  // Returns the time at which the caller's running function was called, or 0 if none is running.
  int64_t combining_since_ns() const;
  // Returns the peer of the transfer that failed first. If none has failed, returns the peer of a
  // transfer that has not completed, preferably of a receive, or -1 if all have completed.
  int WaitingFor() const;
  // Calls `each` for each transfer that is posted and has not completed, with its peer.
  void EachOpenTransfer(absl::FunctionRef<void(int peer, Direction direction)> each) const;
  // Returns true if a receive is posted and the lanes have not seen its completion yet.
  bool receiving() const;
  // Returns the scratch, or an empty buffer if the caller's own function may still use the scratch.
  // Must be called once, when pending() is 0.
  OwnedBuffer TakeScratch();

 private:
  struct LaneRun {
    int lane = -1;        // index in the schedule; -1: the slot is free
    uint32_t round = 0;   // round of the lane
    int outstanding = 0;  // transfers of this round that have not completed
    int receives = 0;     // the receives among them
    std::byte* scratch = nullptr;
    bool ready = false;
    // The operations of this round are done while its sends are under way.
    bool ops_done = false;
    uint32_t op = 0;                       // next operation of this round
    std::shared_ptr<UserCombine> combine;  // runs that operation
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
  // `lent` is the request of a send that the inline path has begun, or null.
  void PostTransfer(LaneRun& run, uint32_t transfer, const SendRequest* lent);
  bool NextLane(LaneRun& run);
  void StepLane(LaneRun& run);
  // Does the operations of the lane's round and returns the loans of its receives. Returns false if
  // the caller's own function is under way. The rest is done after this function has returned.
  bool DoOps(LaneRun& run);
  void Combine(LaneRun& run, uint32_t op);
  void OnCombined(LaneRun& run, uint32_t op, std::byte* result, int32_t returned);
  // Returns true if the transfer that has just completed (`completed`: its direction) was the
  // round's last receive, and the round's operations need not wait for the round's sends.
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
  // For small calls, runs_ and slots_ need no allocation. One allocation would cost a tenth of the
  // time of the smallest call.
  absl::InlinedVector<LaneRun, 2> runs_;
  absl::InlinedVector<Pending, 8> slots_;  // one per transfer of the schedule
  int next_lane_ = 0;
  // Set during Start: the transfers of the first round that the inline path has done or begun.
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
