// Runs one schedule for one call: lanes, rounds, local operations. Knows nothing of communicators.
//
// Everything here is [driver] (lib/engine/engine.h). A lane's transfers run concurrently; when the
// last of a round has completed the lane is ready, and Advance does its local operations (where they
// write nothing that is being sent: when the last receive has completed) and posts the next round.
// At most `window` lanes are active; scratch belongs to window slots, so it stays in cache however
// long the call is.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"

#include "collectives/schedule.h"
#include "lib/base/call.h"
#include "lib/engine/plan.h"
#include "lib/engine/user_combine.h"
#include "lib/kernels/kernels.h"
#include "lib/memory/buffer.h"
#include "transports/transport.h"

namespace entrain {

// How far a call of one lane has come: `round` is under way, and of its transfers those are done
// whose bit is set, from the first. Those that are lent are sent, but may not be written yet.
struct Progress {
  struct LentSend {
    uint32_t transfer;  // of the round
    SendRequest request;
  };
  uint32_t round = 0;
  uint64_t done = 0;
  absl::InlinedVector<LentSend, 2> lent{};
  bool ops_done = false;  // of the round, while its sends are under way
  int64_t bytes_sent = 0, bytes_received = 0;
};

class Executor {
 public:
  // `ready` is called (from completions) when Advance has something to do. The plan, the wiring's
  // arrays and the buffers of the call outlive the executor's last completion. `scratch`:
  // plan->slot_bytes * plan->window bytes, empty when that is 0; TakeScratch gives it back.
  Executor(std::shared_ptr<const Plan> plan, const Call& call, const Wiring& wiring,
           const Kernels& kernels, OwnedBuffer scratch, std::function<void()> ready);

  // Before Start, of a call with the caller's own reduction: where that runs.
  void CombineBy(UserFunctions functions) { functions_ = std::move(functions); }
  // Posts the first rounds, or what is left of the one that somebody else has begun. The call may be
  // over at once.
  void Start(const Progress& from = {});
  // Does what is ready; true when the call is over: all lanes done, or failed() and nothing more
  // will be posted.
  bool Advance();
  // No further rounds are posted; transfers under way still complete. A function of the caller's that is running goes on,
  // and nothing waits for it.
  void Stop(absl::Status why);

  const absl::Status& status() const { return status_; }
  // Posted transfers whose completions have not run, and combinations by the caller's own function that have not come back.
  // The executor must live until this is 0.
  int pending() const { return pending_; }
  int64_t bytes_sent() const { return bytes_sent_; }
  int64_t bytes_received() const { return bytes_received_; }
  // What the caller's own reduction returned when it failed; 0: it has not.
  int32_t reduction_failed() const { return reduction_failed_; }
  // It waits for the caller's own function.
  bool combining() const;
  // When that was called, if it is running; 0: it is not.
  int64_t combining_since_ns() const;
  // The rank of the first transfer that failed or has not completed; -1: none.
  int WaitingFor() const;
  // Once, when pending() is 0. Empty where the caller's own function may still be using it.
  OwnedBuffer TakeScratch();

 private:
  struct LaneRun {
    int lane = -1;        // index in the schedule; -1: the slot is free
    uint32_t round = 0;   // of the lane
    int outstanding = 0;  // transfers of this round that have not completed
    int receives = 0;     // of these
    std::byte* scratch = nullptr;
    bool ready = false;
    bool ops_done = false;                 // of this round, while its sends are under way
    uint32_t op = 0;                       // the next of this round
    std::shared_ptr<UserCombine> combine;  // of that one, under way
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
  // `lent`: of a send that somebody else has begun.
  void PostTransfer(LaneRun& run, uint32_t transfer, const SendRequest* lent);
  bool NextLane(LaneRun& run);
  void StepLane(LaneRun& run);
  // The operations of the lane's round, and the end of what was lent for them. False: the caller's own function is under
  // way, and the rest comes after it.
  bool DoOps(LaneRun& run);
  void Combine(LaneRun& run, uint32_t op);
  void OnCombined(LaneRun& run, uint32_t op, std::byte* result, int32_t returned);
  // Whether the last of a round has completed that its operations wait for.
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
  // Small calls stay in the object: an allocation each is a tenth of the time of the smallest.
  absl::InlinedVector<LaneRun, 2> runs_;
  absl::InlinedVector<Pending, 8> slots_;  // one per transfer of the schedule
  int next_lane_ = 0;
  const Progress* before_ = nullptr;  // what of the first round has been done or begun; in Start
  int lanes_left_ = 0;
  int pending_ = 0;
  int64_t bytes_sent_ = 0, bytes_received_ = 0;
  int failed_peer_ = -1;
  int32_t reduction_failed_ = 0;
  bool stopped_ = false;
  absl::Status status_;
};

}  // namespace entrain
