// What every call passes before it starts: its deadline, its plan and scratch, and its number or its place in line.
//
// Ranks number their calls alike because each gives out numbers in program order (call_numbers.h). A receive from any
// peer has no number until its sender is known: it waits in the line of its tag, and so do the receives behind it.
//
// Thread safety: any thread, except for what is marked [driver]. Lock order: mutex_, then nothing but what Submit takes.
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
#include "lib/comm/comm_end.h"
#include "lib/comm/core_config.h"
#include "lib/comm/membership.h"
#include "lib/comm/peers.h"
#include "lib/comm/planner.h"
#include "lib/memory/buffer.h"

namespace entrain {

// What a rank is asked whether it has made: a collective, or the send or receive that matches the asker's.
enum class Asked : uint8_t { kCollective = 0, kSend = 1, kRecv = 2 };

// A call that a rank's caller tried to make and that was refused there: by its arguments, or for want of memory. The
// caller may do better next time. When it is gone instead, the ranks that wait for this call learn why.
struct Refusal {
  static constexpr int64_t kMaxWhy = 512;
  Asked kind = Asked::kCollective;
  CallId call;      // the number that it would have got
  std::string why;  // empty: none
  friend bool operator==(const Refusal&, const Refusal&) = default;
};

// The communicator, as the funnel needs it.
class FunnelOwner {
 public:
  virtual ~FunnelOwner() = default;
  // Makes the work of an admitted call, counts it as open, and submits it to the driver.
  virtual RefPtr<CallWork> Submit(Admitted admitted, CallWork::Begin begin) = 0;
};

class CallFunnel final : public InlineFunnel {
 public:
  // Not a call: every rank answers that it has started it.
  static constexpr CallId kPing{0xffffffff, 0};

  // All outlive it.
  CallFunnel(FunnelOwner& owner, const CoreConfig& config, const Topology& topology,
             const Peers& peers, const CommEnd& end, BufferPool& pool);

  // ---- Calls
  // Fills in the communicator's default timeout.
  void SetDeadline(Call* call, int64_t now_ns) const;
  // Admits and submits a call that has its deadline. On an error nothing was started, and no number is used up.
  absl::StatusOr<RefPtr<Work>> Start(Call call, int64_t now_ns) ABSL_LOCKS_EXCLUDED(mutex_);
  // InlineFunnel
  bool ended() const override { return end_.ended(); }
  absl::Status Admit(const Call& call, Admitted* admitted) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Number(CallNumbers::Series series, Wiring* wiring) override;
  // For a call that is made of several (packed_call.h, device_calls.h): as many numbers; counted as one call.
  absl::StatusOr<std::vector<Wiring>> TakeNumbers(const Call& call, size_t count)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Starts one of them, under a number that the whole has got. `among`: whose ranks exchange it; its root is a place
  // among them; null: all. On an error nothing was started.
  absl::StatusOr<RefPtr<Work>> LaunchPart(const Call& part, const Wiring& number,
                                          RefPtr<Work> whole, int64_t started_ns,
                                          PartGroup* among = nullptr) ABSL_LOCKS_EXCLUDED(mutex_);
  // For LaunchPart; lives as long as this.
  PartGroup* AddGroup(Group group) ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls that were started, without those of the inline path.
  uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }
  // The default deadline of calls that are started from now on.
  int64_t timeout_ns() const { return timeout_ns_.load(std::memory_order_relaxed); }
  void SetTimeout(int64_t timeout_ns) { timeout_ns_.store(timeout_ns, std::memory_order_relaxed); }

  // ---- Numbers
  // The number of the last untagged collective that was started here; 0: none was.
  uint64_t last_sequence() const { return numbers_.Next(CallNumbers::Collectives(Tag::kUntagged)); }
  // How the peer numbers this call, or, for a receive in line, its next message.
  CallId CallIdWith(const CallWork& work, int peer) const;
  // The number, on the wire, of the next message of this tag from the peer.
  uint32_t NextFrom(uint32_t tag, int peer) const;
  bool HasStarted(CallId call) const;
  // Whether this rank has made the call that the peer asks about.
  bool HasMade(int peer, Asked asked, CallId call) const ABSL_LOCKS_EXCLUDED(mutex_);
  // The call that could not start, as peers number it. Nothing: no peer waits for it, or it was refused just before.
  std::optional<Refusal> Refuse(const Call& call, absl::string_view why)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- [driver] Receives in line
  // Takes those whose turn has come out of their lines, with the number of their message. `sender`: a peer whose next
  // message of this tag has begun to arrive; -1: none.
  std::vector<CallWork*> TakeTurns(absl::FunctionRef<int(uint32_t tag)> sender)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The receive ends without its turn.
  void LeaveLine(CallWork* work) ABSL_LOCKS_EXCLUDED(mutex_);
  // The thread of the caller's own reductions. Once a call with one was admitted.
  std::shared_ptr<CallbackThread> Reductions() const ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- Plans (planner.h)
  absl::StatusOr<const char*> AlgorithmFor(CallKind kind, int64_t count, DType dtype)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::string> Explain(CallKind kind, int64_t count, DType dtype)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Plans made before count no more: see InlinePath::Forget.
  void SetPaths(const Paths& paths) ABSL_LOCKS_EXCLUDED(mutex_);
  void SetProbed(const CostModel& model) ABSL_LOCKS_EXCLUDED(mutex_);
  CostModel model() const ABSL_LOCKS_EXCLUDED(mutex_);
  Paths paths() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // A copy of this rank's contribution, where that is not what its buffer has; `call` is pointed at it.
  absl::StatusOr<OwnedBuffer> Stage(Call* call);
  // The plan and the scratch.
  absl::Status Furnish(Planner& planner, const Call& call, Admitted* admitted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status AdmitLocked(const Call& call, Admitted* admitted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Wiring Unnumbered(const Call& call) const;
  Wiring Numbered(const Call& call);
  // It is a receive from any peer, or one waits before it.
  bool MustWait(const Call& call) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  FunnelOwner& owner_;
  const CoreConfig& config_;
  const Peers& peers_;
  const CommEnd& end_;
  BufferPool& pool_;
  std::atomic<int64_t> timeout_ns_;
  std::atomic<uint64_t> calls_{0};
  // Of calls whose order counts beside others' (lines_, LaunchPart), under mutex_.
  CallNumbers numbers_;

  mutable absl::Mutex mutex_;
  Planner planner_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<PartGroup>> groups_ ABSL_GUARDED_BY(mutex_);
  // Receives without a number, by tag, in program order: the first of a line is one from any peer. A message goes to the
  // first that takes it, so while nothing has come for that one, nothing has come for those behind.
  absl::flat_hash_map<uint32_t, std::deque<CallWork*>> lines_ ABSL_GUARDED_BY(mutex_);
  Refusal last_refused_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<CallbackThread> reductions_ ABSL_GUARDED_BY(mutex_);  // from the first on
};

}  // namespace entrain
