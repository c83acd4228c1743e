// Every call passes the funnel before it starts. The funnel gives the call its deadline, its plan,
// its scratch and its number. A receive whose number is not known yet gets a place in a line (a
// queue of receives) instead.
//
// All ranks give a call the same number, because each rank numbers its calls in program order
// (call_numbers.h). A receive from any peer has no number until its sender is known. Until then the
// receive waits in a line, and later receives with the same tag wait behind it. Each tag has its
// own line.
//
// Thread safety: any thread, except for functions marked [driver]. Lock order: while mutex_ is
// held, only the locks that Submit takes may be taken.
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

// The kind of call about which one rank asks another in a query (respondent.h): a collective, or
// the send or receive that matches the asking rank's own call.
enum class Asked : uint8_t { kCollective = 0, kSend = 1, kRecv = 2 };

// A call that the library refused to start, because of its arguments or for lack of memory. The
// caller may try again. If the caller exits instead, the ranks that wait for this call learn the
// reason.
struct Refusal {
  static constexpr int64_t kMaxWhy = 512;
  Asked kind = Asked::kCollective;
  CallId call;      // the number that the call would have got
  std::string why;  // empty: no call was refused
  friend bool operator==(const Refusal&, const Refusal&) = default;
};

// The interface of CallFunnel to its communicator.
class FunnelOwner {
 public:
  virtual ~FunnelOwner() = default;
  // Makes the work of an admitted call, counts the call as open, and submits it to the driver.
  virtual RefPtr<CallWork> Submit(Admitted admitted, CallWork::Begin begin) = 0;
};

class CallFunnel final : public InlineFunnel {
 public:
  // Stands for no call. Every rank answers that it has started kPing, so a query about kPing only
  // shows whether the rank answers.
  static constexpr CallId kPing{0xffffffff, 0};

  // All arguments must outlive the funnel.
  CallFunnel(FunnelOwner& owner, const CoreConfig& config, const Topology& topology,
             const Peers& peers, const CommEnd& end, BufferPool& pool);

  // ---- Calls
  // If the call has no timeout, gives it the communicator's default. If the call has no deadline,
  // computes the deadline from the timeout.
  void SetDeadline(Call* call, int64_t now_ns) const;
  // Admits and submits a call whose deadline is set. On an error no call was started and no number
  // was used.
  absl::StatusOr<RefPtr<Work>> Start(Call call, int64_t now_ns) ABSL_LOCKS_EXCLUDED(mutex_);
  // InlineFunnel
  bool ended() const override { return end_.ended(); }
  absl::Status Admit(const Call& call, Admitted* admitted) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Number(CallNumbers::Series series, Wiring* wiring) override;
  // Takes `count` numbers for a call that consists of several calls (packed_call.h,
  // device_calls.h). calls() counts them as one call.
  absl::StatusOr<std::vector<Wiring>> TakeNumbers(const Call& call, size_t count)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Starts one part of a call that consists of several calls, under one of the numbers from
  // TakeNumbers. Only the ranks of `among` exchange the part, and the part's root is an index in
  // this group. `among` null: all ranks exchange the part. On an error the part was not started.
  absl::StatusOr<RefPtr<Work>> LaunchPart(const Call& part, const Wiring& number,
                                          RefPtr<Work> whole, int64_t started_ns,
                                          PartGroup* among = nullptr) ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes a group for LaunchPart. The group lives as long as the funnel.
  PartGroup* AddGroup(Group group) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns how many calls were started, without the calls of the inline path.
  uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }
  // Returns the default timeout of calls that are started from now on.
  int64_t timeout_ns() const { return timeout_ns_.load(std::memory_order_relaxed); }
  void SetTimeout(int64_t timeout_ns) { timeout_ns_.store(timeout_ns, std::memory_order_relaxed); }

  // ---- Numbers
  // Returns the number of the last untagged collective that this rank has started. 0: no
  // collective.
  uint64_t last_sequence() const { return numbers_.Next(CallNumbers::Collectives(Tag::kUntagged)); }
  std::vector<CallNumbers::Count> counts() const { return numbers_.Counts(); }
  // Returns the number that the peer gives this call. If the call is a receive that waits in a
  // line, returns the number of the peer's next message.
  CallId CallIdWith(const CallWork& work, int peer) const;
  // Returns the number, as on the wire, of the next message with this tag from the peer.
  uint32_t NextFrom(uint32_t tag, int peer) const;
  bool HasStarted(CallId call) const;
  // Returns whether this rank has made the call that the peer asks about.
  bool HasMade(int peer, Asked asked, CallId call) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Records that the call could not start. Returns the refusal to send, with the number by which
  // the peers know the call. Returns nullopt if no peer waits for the call, or if the last refusal
  // was the same.
  std::optional<Refusal> Refuse(const Call& call, absl::string_view why)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- [driver] Receives in line
  // Removes from their lines the receives whose turn has come, gives each the number of its
  // message, and returns them. `sender` returns a peer whose next message with this tag has begun
  // to arrive, or -1.
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
  // SetPaths and SetProbed drop the planner's plans. The caller must also call InlinePath::Forget,
  // because the inline path keeps plans of its own.
  void SetPaths(const Paths& paths) ABSL_LOCKS_EXCLUDED(mutex_);
  void SetProbed(const CostModel& model) ABSL_LOCKS_EXCLUDED(mutex_);
  CostModel model() const ABSL_LOCKS_EXCLUDED(mutex_);
  Paths paths() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Computes this rank's contribution into a buffer of the pool, and makes this buffer the input of
  // `call`. Called only if ContributionDiffers (contribution.h).
  absl::StatusOr<OwnedBuffer> Stage(Call* call);
  // Gives the call its plan and its scratch.
  absl::Status Furnish(Planner& planner, const Call& call, Admitted* admitted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status AdmitLocked(const Call& call, Admitted* admitted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Wiring Unnumbered(const Call& call) const;
  Wiring Numbered(const Call& call);
  // Returns true for a receive from any peer, and for any other receive if receives with its tag
  // wait in a line.
  bool MustWait(const Call& call) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  FunnelOwner& owner_;
  const CoreConfig& config_;
  const Peers& peers_;
  const CommEnd& end_;
  BufferPool& pool_;
  std::atomic<int64_t> timeout_ns_;
  std::atomic<uint64_t> calls_{0};
  // Has a lock of its own. A thread also holds mutex_ while it takes a number whose order must
  // agree with other state, for example with lines_.
  CallNumbers numbers_;

  mutable absl::Mutex mutex_;
  Planner planner_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<PartGroup>> groups_ ABSL_GUARDED_BY(mutex_);
  // Receives without a number, by tag, in program order. The first receive of a line accepts a
  // message from any peer. A message goes to the first receive that accepts it. So while no message
  // has come for the first receive, none has come for the receives behind it.
  absl::flat_hash_map<uint32_t, std::deque<CallWork*>> lines_ ABSL_GUARDED_BY(mutex_);
  Refusal last_refused_ ABSL_GUARDED_BY(mutex_);
  // Created for the first call whose reduction is a function of the caller.
  std::shared_ptr<CallbackThread> reductions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace entrain
