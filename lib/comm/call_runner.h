// Runs the open calls of a communicator. CallRunner makes the works, starts the calls on the
// driver, advances a call when its transfers complete, and finishes calls. CallRunner also handles
// failed transfers. If a member is lost, an inquiry (inquiry.h) finds the rank to blame. If the
// descriptors of two ranks differ, a vote (vote.h) finds the rank to blame. Any other failure ends
// the communicator at once.
//
// Thread safety: any thread, except for functions marked [driver].
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"

#include "lib/comm/call_funnel.h"
#include "lib/comm/call_work.h"
#include "lib/comm/comm_end.h"
#include "lib/comm/comm_shell.h"
#include "lib/comm/core_config.h"
#include "lib/comm/failure_words.h"
#include "lib/comm/flight_recorder.h"
#include "lib/comm/inline_path.h"
#include "lib/comm/inquiry.h"
#include "lib/comm/mismatch.h"
#include "lib/comm/open_calls.h"
#include "lib/comm/peers.h"
#include "lib/engine/engine.h"

namespace entrain {

class CallRunner final : public InlineOwner {
 public:
  // The other parts of the communicator. All must outlive this object.
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
    FlightRecorder& flight;
  };
  CallRunner(CommShell& shell, std::shared_ptr<Engine> engine, const Parts& parts)
      : shell_(shell), engine_(std::move(engine)), with_(parts) {}

  // Return the number of bytes of all finished calls. Calls of the inline path are not included.
  uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }
  uint64_t bytes_received() const { return bytes_received_.load(std::memory_order_relaxed); }

  // See CommShell.
  RefPtr<CallWork> Submit(Admitted admitted, CallBegin begin);
  // [driver]
  void StartWork(CallWork* work);
  // InlineOwner [driver]
  absl::Status Over(const Descriptor& descriptor, const Wiring& wiring) override;
  absl::Status GoOn(const Call& call, Admitted admitted, const Progress& progress) override;

  // [driver] Continues the vote and all calls that can continue.
  void Attend();
  // [driver] Ends all open calls.
  void Stop(const absl::Status& why);
  // [driver] Returns the time at which OnTick must log that the caller's own reduction is slow.
  Deadline next_tick() const;
  void OnTick(int64_t now_ns);

 private:
  // Makes the work of a call and counts it as open. The engine holds one reference. If the caller
  // is the driver, it must start the work. Any other caller must submit the work to the driver.
  RefPtr<CallWork> Prepare(Admitted admitted, CallBegin begin);
  // [driver] Starts the receives in lines (call_funnel.h) whose turn has come.
  void TendLines();
  // [driver] Returns a peer whose next message with this tag has begun to arrive. -1: no such peer.
  int SenderTo(uint32_t tag);
  // [driver] Returns one of the peers if all peers have left and all paths are lost, so that no
  // message can arrive any more. Otherwise returns -1.
  int LastOfAllGone() const;
  void CompleteReady();
  // [driver] Handles the failure of a transfer, or of the caller's own reduction.
  void OnBroken(const CallWork& work);
  void Finish(CallWork* work, const absl::Status& status);
  // If the call's state has changed, writes it to the flight recorder.
  void Record(CallWork* work, FlightState state);

  CommShell& shell_;
  const std::shared_ptr<Engine> engine_;
  const Parts with_;
  std::atomic<uint64_t> bytes_sent_{0}, bytes_received_{0};

  // [driver]:
  int last_source_ = -1;  // the last sender found for a receive from any peer
  // Calls that are over but still have open transfers. Holds one reference to each.
  std::vector<CallWork*> draining_;
  int64_t told_of_ns_ = 0;  // start time of the last slow reduction that was logged
};

}  // namespace entrain
