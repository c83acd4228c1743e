// Prepares each call before it starts: gives the call its deadline, its plan, its scratch memory
// and its number. If the number of a receive is not known yet, the receive waits in a line instead.
// A line is a queue of receives.
//
// Each rank numbers its calls in program order, so all ranks give a call the same number
// (call_numbers.h). A receive from any peer has no number until its sender is known. Until then the
// receive waits in a line, and later receives with the same tag wait behind it. Each tag has its
// own line.
//
// Thread safety: any thread, except for functions marked [driver]. Lock order: a thread that holds
// mutex_ may take only the locks that CommShell::Submit takes.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "lib/base/call.h"
#include "lib/base/callback_thread.h"
#include "lib/comm/call_numbers.h"
#include "lib/comm/call_work.h"
#include "lib/comm/comm_shell.h"
#include "lib/comm/core_config.h"
#include "lib/comm/failure/blame.h"
#include "lib/comm/failure/comm_end.h"
#include "lib/comm/peers.h"
#include "lib/comm/plan/planner.h"
#include "lib/memory/buffer.h"

namespace entrain {

// Returns true if a rank's contribution to a reduction is not the input buffer itself: a sum with a
// factor, or a merging on a communicator of one rank, which multiplies the input by the rank's weight.
// The caller must then call Contribute. `size`: the number of ranks.
bool ContributionDiffers(const Call& call, int size);
// Returns true if the call's contributions are sent packed (packed_call.h).
bool IsPacked(const Call& call);
// Writes the contribution of `count` elements to `dst`, which may be `src`. Not for packed calls.
void Contribute(const Call& call, void* dst, const void* src, int64_t count);

// The kind of call in a query from one rank to another (respondent.h). The query is about a
// collective, or about the send or receive that matches a call of the asking rank.
enum class Asked : uint8_t { kCollective = 0, kSend = 1, kRecv = 2 };

// A call that the library refused to start, because of its arguments or for lack of memory. The
// caller may try again or exit. If the caller exits, the ranks that wait for this call use the
// refusal to report the reason.
struct Refusal {
  static constexpr int64_t kMaxWhy = 512;
  Asked kind = Asked::kCollective;
  CallId call;      // with the number that the call would have got
  std::string why;  // empty: no call was refused
  friend bool operator==(const Refusal&, const Refusal&) = default;
};

class CallFunnel final {
 public:
  // No call has this id. Every rank answers that it has started kPing. So a query about kPing tests
  // whether a rank answers at all.
  static constexpr CallId kPing{0xffffffff, 0};

  // All arguments must outlive this object.
  CallFunnel(CommShell& shell, const CoreConfig& config, const Topology& topology,
             const Peers& peers, const CommEnd& end, BufferPool& pool);

  // ---- Calls
  // If the call has no timeout, gives it the communicator's default. If the call has no deadline,
  // computes the deadline from the timeout.
  void SetDeadline(Call* call, int64_t now_ns) const;
  // Admits and submits a call whose deadline is set. On an error no call was started and no number
  // was used.
  absl::StatusOr<RefPtr<Work>> Start(Call call, int64_t now_ns) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns true if the communicator has ended, so that no call may start.
  bool ended() const { return end_.ended(); }
  // Gives the call its plan, its scratch memory and its number. If the call must wait in a line,
  // only sets admitted->waits.
  absl::Status Admit(const Call& call, Admitted* admitted) ABSL_LOCKS_EXCLUDED(mutex_);
  // Gives the next number of this series to a call that already has its plan and scratch memory.
  void Number(CallNumbers::Series series, Wiring* wiring);
  // Takes `count` numbers for a call that consists of several calls (packed_call.h,
  // device_calls.h). calls() counts this call once.
  absl::StatusOr<std::vector<Wiring>> TakeNumbers(const Call& call, size_t count)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Starts one part of a call that consists of several calls. `number`: one of the numbers from
  // TakeNumbers. On an error the part was not started.
  absl::StatusOr<RefPtr<Work>> LaunchPart(const Call& part, const Wiring& number,
                                          RefPtr<Work> whole, int64_t started_ns)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the number of started calls. Calls of the inline path are not counted.
  uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }
  // Returns the default timeout of calls that are started from now on.
  int64_t timeout_ns() const { return timeout_ns_.load(std::memory_order_relaxed); }
  void SetTimeout(int64_t timeout_ns) { timeout_ns_.store(timeout_ns, std::memory_order_relaxed); }

  // ---- Numbers
  // Returns the number of the last untagged collective that this rank has started. 0: no
  // collective.
  uint64_t last_sequence() const { return numbers_.Next(CallNumbers::Collectives(Tag::kUntagged)); }
  std::vector<CallNumbers::Count> counts() const { return numbers_.Counts(); }
  // Returns the number that the peer gives this call. If the call is a receive in a line, returns
  // the number of the peer's next message.
  CallId CallIdWith(const CallWork& work, int peer) const;
  // Returns the number of the next message with this tag from the peer, in its wire form
  // (CallNumbers::OnWire).
  uint32_t NextFrom(uint32_t tag, int peer) const;
  bool HasStarted(CallId call) const;
  // Returns true if this rank has made the call about which the peer asks.
  bool HasMade(int peer, Asked asked, CallId call) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Records that the call could not start. Returns the refusal that the caller must send to the
  // peers. The refusal has the number by which the peers know the call. Returns nullopt if no peer
  // waits for the call, if the last refusal was equal, or if the communicator has ended.
  std::optional<Refusal> Refuse(const Call& call, absl::string_view why)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- [driver] Receives in line
  // Returns the receives whose turn has come. Removes each of these receives from its line and
  // gives it the number of its message. `sender` returns a peer whose next message with this tag
  // has begun to arrive. -1: no such peer.
  std::vector<CallWork*> TakeTurns(absl::FunctionRef<int(uint32_t tag)> sender)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Removes a receive that ends while it waits in a line.
  void LeaveLine(CallWork* work) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the thread that runs the caller's own reductions. Null until the first call with such a
  // reduction is admitted.
  std::shared_ptr<CallbackThread> Reductions() const ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- Plans (planner.h)
  absl::StatusOr<const char*> AlgorithmFor(CallKind kind, int64_t count, DType dtype)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::string> Explain(CallKind kind, int64_t count, DType dtype)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // SetPaths and SetProbed discard the planner's plans. The caller must also call
  // CallRunner::ForgetPlans, because inline calls have a cache of plans.
  void SetPaths(const Paths& paths) ABSL_LOCKS_EXCLUDED(mutex_);
  void SetProbed(const CostModel& model) ABSL_LOCKS_EXCLUDED(mutex_);
  CostModel model() const ABSL_LOCKS_EXCLUDED(mutex_);
  Paths paths() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Computes this rank's contribution into a buffer of the pool, and makes this buffer the input of
  // `call`. ContributionDiffers(*call) must be true (contribution.h).
  absl::StatusOr<OwnedBuffer> Stage(Call* call);
  // Gives the call its plan and its scratch.
  absl::Status Furnish(const Call& call, Admitted* admitted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status AdmitLocked(const Call& call, Admitted* admitted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Wiring Unnumbered(const Call& call) const;
  Wiring Numbered(const Call& call);
  // Returns true for a receive from any peer. Also returns true for a receive from one peer if
  // receives with this tag already wait in a line.
  bool MustWait(const Call& call) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  CommShell& shell_;
  const CoreConfig& config_;
  const Peers& peers_;
  const CommEnd& end_;
  BufferPool& pool_;
  std::atomic<int64_t> timeout_ns_;
  std::atomic<uint64_t> calls_{0};
  // CallNumbers has its own lock. If the order of a number must agree with other state, for example
  // with lines_, the thread must also hold mutex_ while it takes the number.
  CallNumbers numbers_;

  mutable absl::Mutex mutex_;
  Planner planner_ ABSL_GUARDED_BY(mutex_);
  // Receives without a number, by tag, in program order. The first receive of a line accepts a
  // message from any peer. A message goes to the first receive that accepts it. So if no message
  // has come for the first receive, no message has come for the receives behind it.
  absl::flat_hash_map<uint32_t, std::deque<CallWork*>> lines_ ABSL_GUARDED_BY(mutex_);
  Refusal last_refused_ ABSL_GUARDED_BY(mutex_);
  // Created for the first call whose reduction is a function of the caller.
  std::shared_ptr<CallbackThread> reductions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace entrain
