// The calls of a communicator while they are under way: makes their works, starts them on the driver, lets them go on as
// their transfers complete, and finishes them. It also decides what a failed transfer means: the inquiry
// deals with a lost member, a vote with a difference that only two ranks know, and all else ends the communicator.
//
// Thread safety: what is marked [driver] runs on the engine's driver; the rest from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"

#include "lib/comm/call_funnel.h"
#include "lib/comm/call_work.h"
#include "lib/comm/comm_end.h"
#include "lib/comm/core_config.h"
#include "lib/comm/failure_words.h"
#include "lib/comm/inline_path.h"
#include "lib/comm/inquiry.h"
#include "lib/comm/mismatch.h"
#include "lib/comm/open_calls.h"
#include "lib/comm/peers.h"
#include "lib/engine/engine.h"

namespace entrain {

// The communicator, as its calls under way need it.
class RunnerOwner {
 public:
  virtual ~RunnerOwner() = default;
  // The communicator lives as long as this is held.
  virtual std::shared_ptr<void> Keep() = 0;
  // [driver] Soon calls CallRunner::Attend.
  virtual void NeedAttention() = 0;
  // [driver] Ends the communicator.
  virtual void Fail(const absl::Status& why) = 0;
};

class CallRunner final : public CallOwner, public FunnelOwner, public InlineOwner {
 public:
  // The other parts of the communicator. All outlive it.
  struct Parts {
    const CoreConfig& config;
    const Peers& peers;
    BufferPool& pool;
    const CommEnd& end;
    CallFunnel& funnel;
    OpenCalls& open;
    const FailureWords& words;
    Inquiry& inquiry;
    Mismatches& mismatches;
  };
  CallRunner(RunnerOwner& owner, std::shared_ptr<Engine> engine, const Parts& parts)
      : owner_(owner), engine_(std::move(engine)), with_(parts) {}

  // Of calls that are over, without those of the inline path.
  uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }
  uint64_t bytes_received() const { return bytes_received_.load(std::memory_order_relaxed); }

  // FunnelOwner
  RefPtr<CallWork> Submit(Admitted admitted, CallWork::Begin begin) override;
  // CallOwner [driver]
  void StartWork(CallWork* work) override;
  void NeedAttention() override { owner_.NeedAttention(); }
  // InlineOwner [driver]
  absl::Status Over(const Descriptor& descriptor, const Wiring& wiring) override;
  absl::Status GoOn(const Call& call, Admitted admitted, const Progress& progress) override;

  // [driver] Votes and calls go on.
  void Attend();
  // [driver] Ends all open calls.
  void Stop(const absl::Status& why);
  // [driver] When a function of the caller's has run for so long that the log is told.
  Deadline next_tick() const;
  void OnTick(int64_t now_ns);

 private:
  // Counted as open, with the engine's reference; to be submitted, or started by the driver.
  RefPtr<CallWork> Prepare(Admitted admitted, CallWork::Begin begin);
  // [driver]:
  // Starts the receives in line whose turn has come.
  void TendLines();
  // A peer of whose next message with this tag something has come; -1: none.
  int SenderTo(uint32_t tag);
  // When all others have left and their paths are gone, so that no message can come: one of them; -1: they have not.
  int LastOfAllGone() const;
  void CompleteReady();
  // A transfer of the call has failed.
  void OnBroken(const CallWork& work);
  void Finish(CallWork* work, const absl::Status& status);

  RunnerOwner& owner_;
  const std::shared_ptr<Engine> engine_;
  const Parts with_;
  std::atomic<uint64_t> bytes_sent_{0}, bytes_received_{0};

  // [driver]:
  int last_source_ = -1;  // of a receive from any peer
  std::vector<CallWork*>
      draining_;            // over, but transfers have not completed; each holds one reference
  int64_t told_of_ns_ = 0;  // when the function was called of which the log has been told
};

}  // namespace entrain
