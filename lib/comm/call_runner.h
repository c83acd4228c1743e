// Runs the calls of a communicator. CallRunner makes the works, starts the calls on the driver,
// advances a call when its transfers complete, and finishes calls. CallRunner also handles failed
// transfers. If a member is lost, an inquiry (inquiry.h) finds the rank to blame. If the
// descriptors of two ranks differ, a vote (mismatch.h) finds the rank to blame. Any other failure
// ends the communicator at once.
//
// Small blocking calls run inline: the calling thread becomes the engine's driver, sends and
// receives the messages of the call itself (lib/engine/inline_call.h), and leaves the driver's
// seat. If a call differs from an earlier call only in its addresses, a cache provides its plan. A
// send or receive may also differ in length. A call that cannot finish inline gets an executor,
// which continues it.
//
//   RunAgain ── key is cached ──> become driver ── verify ──┐
//   Run ── become driver ── funnel: plan, scratch, number ──┴─> InlineCall ── kDone ──> OverInline
//                                                                          └─ else ──> GoOn
//
// Thread safety: any thread, except for functions marked [driver].
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"

#include "lib/comm/call_cache.h"
#include "lib/comm/call_funnel.h"
#include "lib/comm/call_work.h"
#include "lib/comm/comm_shell.h"
#include "lib/comm/core_config.h"
#include "lib/comm/failure/call_notes.h"
#include "lib/comm/failure/comm_end.h"
#include "lib/comm/failure/failure_words.h"
#include "lib/comm/failure/inquiry.h"
#include "lib/comm/failure/mismatch.h"
#include "lib/comm/flight/flight_recorder.h"
#include "lib/comm/open_calls.h"
#include "lib/comm/peers.h"
#include "lib/comm/plan/cost_model.h"
#include "lib/comm/plan/topology.h"
#include "lib/engine/engine.h"
#include "lib/engine/inline_call.h"

namespace entrain {

class CallRunner final {
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
  // `pays`: the result of InlinePays.
  CallRunner(CommShell& shell, std::shared_ptr<Engine> engine, const Parts& parts, bool pays);
  ~CallRunner();

  // ---- Inline calls
  // Returns true if it is cheap to poll every peer repeatedly: if all ranks share memory, or if
  // there are at most 8 ranks. With sockets each poll is a system call, so epoll is faster for many
  // ranks.
  static bool InlinePays(const Topology& topology, const Paths& paths);
  void SetInlinePays(bool pays) { pays_.store(pays, std::memory_order_relaxed); }
  // Invalidates all plans in the cache.
  void ForgetPlans() { plans_made_.fetch_add(1, std::memory_order_release); }
  // Repeats a call from the cache with new addresses. Only calls without options are in the cache.
  // Returns nullopt without any effect if this is not possible now. Examples: the call is not in
  // the cache, an address is invalid, or the engine is busy. The caller must then check the call
  // and start it in another way.
  std::optional<absl::Status> RunAgain(const CallKey& key, const void* in, void* out);
  // Runs a checked call. Returns nullopt without any effect if the call does not run inline, or if
  // the engine is busy. The caller must then start the call (CommCore::Start).
  std::optional<absl::Status> Run(const Call& call);
  // Returns the number of inline calls that ended with `end`.
  uint64_t inlined(InlineEnd end) const {
    return ends_[static_cast<size_t>(end)].load(std::memory_order_relaxed);
  }

  // Return the number of bytes of all finished calls.
  uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }
  uint64_t bytes_received() const { return bytes_received_.load(std::memory_order_relaxed); }

  // See CommShell.
  RefPtr<CallWork> Submit(Admitted admitted, CallBegin begin);
  // [driver]
  void StartWork(CallWork* work);
  // [driver] Continues all calls that can continue.
  void Attend();
  // [driver] Ends all open calls. The communicator has ended.
  void Stop(const absl::Status& why);
  // ---- [driver] Calls that do not match
  // Every message carries the descriptor of its call. Compares a peer's call with this rank's call of
  // the same number. If this rank's call is open, compares at once. If it has not started, compares
  // when it starts. If it is over, compares only while this rank remembers it (call_notes.h).
  void Compare(const Endpoint& from, CallId call, const Descriptor& theirs);
  // Returns this rank's call, open or over.
  std::optional<OwnCall> Own(CallId call) const;
  bool HasForgotten(CallId call) const { return notes_.HasForgotten(call); }
  // Returns the time limit of a vote that begins now.
  Deadline VoteLimit() const;
  // Must be called when a vote is over. Ends the call that waits for its end.
  void VoteIsOver();
  // [driver] Returns the time at which OnTick must log that the caller's own reduction is slow.
  Deadline next_tick() const;
  void OnTick(int64_t now_ns);

 private:
  class VoteWork;
  uint64_t plans_made() const { return plans_made_.load(std::memory_order_acquire); }
  // Returns true if this call may run inline.
  bool MayRunInline(const Call& call) const;
  // [driver] Makes the scratch memory at least this large. Returns false if memory is short.
  bool ReserveScratch(int64_t bytes);
  // [driver] Finishes an inline call whose messages were all transferred. Compares the call with
  // the calls of the peers, and leaves the driver's seat.
  absl::Status OverInline(const Call& call, const Plan& plan, const Descriptor& descriptor,
                          const Wiring& wiring, const Progress& progress);
  // [driver] Waits until the vote is over, for a call whose messages were all transferred, and
  // leaves the driver's seat. Returns the status with which the vote has ended the communicator, or
  // OK.
  absl::Status AwaitVote();
  // [driver] Lets an executor continue the call from `progress`, because of `why`. Blocks until the
  // call is over, and leaves the driver's seat.
  absl::Status GoOn(InlineEnd why, const Call& call, Admitted admitted, const Progress& progress);
  // [driver] Compares a collective of this rank that starts, or an inline call that is over, with
  // the calls that peers have started under the same number.
  void Meet(const Wiring& call, const Descriptor& mine);
  // [driver] Remembers a collective of this rank that is over.
  void NoteOver(const Wiring& call, const Descriptor& mine);
  // [driver] Begins a vote about the call.
  void Differs(CallId call, const Endpoint& from, const Descriptor& theirs);
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
  std::atomic<bool> pays_;
  std::atomic<uint64_t> plans_made_{0};  // number of calls of ForgetPlans
  CallCache cache_;
  // [driver] The scratch memory of the last inline call, kept for the next one.
  OwnedBuffer scratch_;
  // Only the driver writes these counters.
  std::array<std::atomic<uint64_t>, kInlineEnds.size()> ends_{};
  std::atomic<uint64_t> bytes_sent_{0}, bytes_received_{0};

  // [driver]:
  CallNotes notes_;
  RefPtr<VoteWork> vote_end_;  // over when the vote is over; null: no call waits for it
  int last_source_ = -1;       // the last sender found for a receive from any peer
  // Calls that are over but still have open transfers. Holds one reference to each.
  std::vector<CallWork*> draining_;
  int64_t told_of_ns_ = 0;  // start time of the last slow reduction that was logged
};

}  // namespace entrain
