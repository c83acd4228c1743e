// The handle of a communicator. It checks, numbers, plans and submits calls.
//
// Thread safety: any thread. A mutex serialises Start, but does not order the calls of different
// threads. Callers must start untagged calls in the same order on all ranks. Calls with different
// tags need no order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

#include "lib/base/call.h"
#include "lib/base/cpu_share.h"
#include "lib/comm/peers.h"
#include "lib/comm/plan/topology.h"
#include "lib/engine/work.h"

namespace entrain {

class CommCore;
class DeviceCalls;
class Runtime;
class Store;

struct CommOptions {
  // The least silence_ns that is not 0: a busy rank may need a part of this time to answer.
  static constexpr int64_t kLeastSilenceNs = 100'000'000;
  std::shared_ptr<Runtime> runtime;
  std::shared_ptr<Store> store;
  std::string name = "world";
  int rank = 0, size = 1;
  std::string algorithms;                  // see overrides.h; empty: by cost
  std::string tuning;                      // see tuning.h: a file; "probe"; empty: built-in values
  int64_t timeout_ns = kDefaultTimeoutNs;  // default timeout of calls; time limit of creation
  int64_t silence_ns = 0;                  // Inquiry::SetSilence
  Determinism determinism = Determinism::kDefault;  // default of calls; splits inherit it
  CpuShare cpus = CpuShare::OfThisThread();         // the cores that this rank claims to have
};

// A failure of the network may divide the ranks into sides that do not reach each other. Partition
// selects the side that goes on.
enum class Partition : int32_t {
  // The side with more than half of all ranks. If two sides have half of the ranks each, the side
  // with the lowest rank. Also a side that has all ranks except those that are proven to have died
  // or left.
  kMajority = 0,
  kAny = 1,  // each side
};

struct ShrinkOptions {
  int64_t timeout_ns = 0;    // 0: the timeout of the communicator
  std::vector<int> exclude;  // ranks to leave out, even if alive; the union of all callers' lists
  Partition partition = Partition::kMajority;
  std::string name;  // name of the new communicator; empty: the name of this communicator
};

struct GrowOptions {
  // Returns the store in which newcomers apply. Called on rank 0. Called on the other ranks only if
  // there are newcomers.
  std::function<absl::StatusOr<std::shared_ptr<Store>>(const Stop& stop)> store = nullptr;
  int min_newcomers = 0;   // if there are fewer, none is taken in
  int max_newcomers = 0;   // 0: any number
  int64_t wait_ns = 0;     // how long to wait for min_newcomers
  int64_t timeout_ns = 0;  // time limit of everything else; 0: the timeout of the communicator
  // Time limit of one attempt to connect newcomers. 0: a quarter of timeout_ns, at most 30 s.
  int64_t attempt_ns = 0;
  // Newcomers apply under this name, and the new communicator gets it. Empty: the name of this
  // communicator.
  std::string name = {};
  // true: Grow returns when all ranks are connected. The ranks do not agree to use the new
  // communicator: that is left to the caller, who does it on this communicator
  // (lib/train/elastic/admission_meeting.h). Newcomers call JoinOther.
  bool connect_only = false;
};

struct JoinOptions {
  // comm.name: the name of the communicator to join. comm.size is not used. comm.rank is only
  // passed to Runtime::EnsureStarted.
  CommOptions comm;
  int64_t wait_ns = 0;        // how long to wait to be taken in; 0: comm.timeout_ns
  bool connect_only = false;  // see GrowOptions
};

class Communicator {
 public:
  // Blocks until all ranks have met and can reach each other, or until the timeout.
  static absl::StatusOr<std::shared_ptr<Communicator>> Create(const CommOptions& options);
  // Makes the handle of a core. The core's context must be open.
  Communicator(std::shared_ptr<Runtime> runtime, std::shared_ptr<CommCore> core);
  // If calls are unfinished, aborts them on all ranks. Otherwise leaves the communicator without an
  // error. Never waits for the network.
  ~Communicator();

  // Starts a call. The caller (lib/api, or the library itself) must have made all checks of the
  // arguments that do not need the communicator. Start makes the other checks. If options.deadline
  // is Never and timeout_ns is 0, the call gets the communicator's default.
  absl::StatusOr<RefPtr<Work>> Start(const Call& call);
  // Starts all calls in this order and wakes the engine once. The returned work is over when all
  // calls are over. Its status is the status of the failed call that comes first in this order.
  RefPtr<Work> StartAll(absl::Span<const Call> calls);
  // Starts the call and waits until it is over. Another thread may destroy the communicator during
  // Run, RunOrRefuse, RunAgain and Drain. If it does, the call ends.
  absl::Status Run(const Call& call);
  // Runs a call of the user. If the call fails, calls Refused.
  absl::Status RunOrRefuse(const Call& call);
  // See CallRunner.
  std::optional<absl::Status> RunAgain(const CallKey& key, const void* in, void* out);

  // Short forms of Run for the library itself. The buffers must be in host memory.
  absl::Status AllReduce(const void* in, void* out, int64_t count, DType dtype, ReduceOp op,
                         const CallOptions& o = {});
  absl::Status AllGather(const void* in, void* out, int64_t count, DType dtype,
                         const CallOptions& o = {});
  absl::Status Broadcast(void* buffer, int64_t count, DType dtype, int root,
                         const CallOptions& o = {});
  absl::Status Barrier(const CallOptions& o = {});

  // Collective. Returns null for color -1.
  absl::StatusOr<std::shared_ptr<Communicator>> Split(int color, int key);
  // Starts a split and does not wait for it. When the work is over, FinishSplit returns the new
  // communicator. FinishSplit may be called once. If FinishSplit was not called, the destruction of
  // the work ends the new communicator on all ranks.
  absl::StatusOr<RefPtr<Work>> StartSplit(int color, int key);
  // kInvalidArgument: the work was not started by StartSplit.
  static absl::StatusOr<std::shared_ptr<Communicator>> FinishSplit(Work& split);

  // Makes a communicator of the remaining ranks. All remaining ranks must call Shrink. Shrink may
  // be called after this communicator has ended. See entrain_comm_shrink. kOutOfRange: the other
  // ranks have gone on without this rank.
  absl::StatusOr<std::shared_ptr<Communicator>> Shrink(const ShrinkOptions& options = {});
  // Sets *flag to the bitwise AND of the flags of all ranks that took part. All of these ranks get
  // the same result. May be called after the communicator has ended. See entrain_comm_agree.
  // `timeout_ns` 0: the timeout of the communicator.
  absl::Status Agree(uint32_t* flag, int64_t timeout_ns = 0);
  // Makes a communicator of this communicator's ranks and of newcomers. Newcomers call Join.
  // Collective. This communicator stays usable. Returns null if fewer than min_newcomers could be
  // taken in. See entrain_comm_grow.
  absl::StatusOr<std::shared_ptr<Communicator>> Grow(const GrowOptions& options);
  // Waits until the ranks of a communicator take this process in. See entrain_comm_join.
  static absl::StatusOr<std::shared_ptr<Communicator>> Join(const JoinOptions& options);
  // Does the same as Join with connect_only, with the runtime and the settings of this communicator.
  // `wait_ns`: the time limit of the wait; 0: this communicator's timeout.
  absl::StatusOr<std::shared_ptr<Communicator>> JoinOther(std::shared_ptr<Store> store,
                                                          const std::string& name, int64_t wait_ns);
  // Returns this rank's knowledge of each rank, in rank order. Local.
  std::vector<MemberReport> Members() const;

  // Ends the communicator on all ranks. Returns at once. Any thread.
  void Abort(absl::string_view reason);
  // Ends the communicator because of an error on another communicator. Calls on this communicator
  // then fail with the code of `why`. If communicators never end with that code, the calls fail
  // with kAborted. The errors blame the rank of the guilty process in this communicator. EndWith
  // returns after it has told the other ranks. So the caller may then report the error and exit.
  void EndWith(const absl::Status& why);
  // Does the same as EndWith. Also tells the other ranks that this rank will take part in no
  // further agreement. So Shrink on the other ranks does not wait for this rank. Agree and Shrink
  // on this rank then return kAborted.
  void LeaveWith(const absl::Status& why);
  // `part` is a communicator of some of these ranks. While the returned object exists, an end of
  // this communicator with an error also ends `part`. If this communicator has ended already, ends
  // `part` at once. Without this, a rank could wait in `part` for a rank that has met the error
  // here and therefore makes no call in `part`.
  [[nodiscard]] std::shared_ptr<void> EndToo(const Communicator& part);
  // Must be called when this rank could not start this call, because of its arguments or for lack
  // of memory. Tells the other ranks, because the caller may never start the call. See CommCore.
  void Refused(const Call& call, const absl::Status& why);
  // See CallerFunctions::Note. The note holds for all communicators of the runtime. If another rank
  // waits for this rank in one of them, the error of that rank can name the function.
  void NoteFunction(const void* who, absl::string_view name);
  // Returns OK, or the error that ended the communicator.
  absl::Status status() const;
  // Returns true if this rank has ended the communicator, at the wish of its user or for an error of
  // its own. Returns false if another rank has ended it, or was lost or late.
  bool ended_here() const;
  // Blocks until every call that this rank has started is over. Returns false if `give_up` comes
  // first.
  bool Drain(Deadline give_up);

  // Returns how many CPUs this rank can keep busy while the other ranks of its host are busy too: at
  // least 1.
  int cores() const;
  // Returns true if ranks are on different hosts.
  bool spans_hosts() const;
  // Returns true if ranks are at distant sites (Paths::sites).
  bool spans_sites() const;
  int rank() const;
  int size() const;
  const std::string& name() const;
  // See entrain_comm_stats_t.generation.
  uint64_t generation() const;
  int64_t timeout_ns() const;
  void SetTimeout(int64_t timeout_ns);  // positive
  // See Inquiry::SetSilence. Communicators that are made from this one later inherit the value.
  int64_t silence_ns() const;
  void SetSilence(int64_t silence_ns);
  // Returns the number of the last untagged collective that this rank has started. 0: no
  // collective.
  uint64_t last_sequence() const;
  const Topology& topology() const;
  CommStats stats() const;
  // Returns the name of the transport to a rank, or "self" for this rank itself.
  absl::StatusOr<const char*> TransportTo(int peer) const;
  // Returns the name of the algorithm that a call of this shape uses.
  absl::StatusOr<const char*> AlgorithmFor(CallKind kind, int64_t count, DType dtype) const;
  // Returns the reason for the choice of that algorithm, and the estimates of the other algorithms.
  // See Planner::Explain.
  absl::StatusOr<std::string> Explain(CallKind kind, int64_t count, DType dtype) const;
  Runtime& runtime() const;

 private:
  // Returns the object that makes calls on device memory. The first such call creates it.
  absl::StatusOr<DeviceCalls*> OnDevice() ABSL_LOCKS_EXCLUDED(device_mutex_);
  absl::StatusOr<RefPtr<Work>> Start(const Call& call, bool kick);

  std::shared_ptr<Runtime> runtime_;
  std::shared_ptr<CommCore> core_;  // shared with the engine and with works that still run
  mutable absl::Mutex device_mutex_;
  std::unique_ptr<DeviceCalls> device_calls_ ABSL_GUARDED_BY(device_mutex_);
};

}  // namespace entrain
