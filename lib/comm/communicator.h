// The handle of a communicator. Each call is checked, numbered, planned and submitted. A
// communicator knows its ranks, the context number that each rank uses, and the state of its calls.
//
// Thread safety: any thread. A mutex serialises Start, so calls of different threads are numbered
// in some order. Callers must order untagged calls themselves. Tagged calls need no order between
// tags.
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
#include "lib/comm/call_key.h"
#include "lib/comm/comm_stats.h"
#include "lib/comm/member_report.h"
#include "lib/comm/topology.h"
#include "lib/engine/work.h"

namespace entrain {

class CommCore;
class DeviceCalls;
class Runtime;
class Store;

struct CommOptions {
  std::shared_ptr<Runtime> runtime;
  std::shared_ptr<Store> store;
  std::string name = "world";
  int rank = 0, size = 1;
  std::string algorithms;                  // see overrides.h; empty: by cost
  std::string tuning;                      // see tuning.h: a file; "probe"; empty: built-in values
  int64_t timeout_ns = kDefaultTimeoutNs;  // default timeout of calls; time limit of creation
  Determinism determinism = Determinism::kDefault;  // default of calls; splits inherit it
  CpuShare cpus = CpuShare::OfThisThread();         // the cores that this rank claims to have
};

// A failure of the network may divide the ranks into sides that do not reach each other. This value
// says which side goes on.
enum class Partition : int32_t {
  // The side with more than half of all ranks, or with all ranks that are not proven to have died
  // or left. Of two halves, the side with the lowest rank.
  kMajority = 0,
  kAny = 1,  // each side
};

struct ShrinkOptions {
  int64_t timeout_ns = 0;    // 0: the timeout of the communicator
  std::vector<int> exclude;  // ranks to leave out, even live ones; the union of all callers' lists
  Partition partition = Partition::kMajority;
  std::string name;  // name of the new communicator; empty: the name of this communicator
};

struct GrowOptions {
  // Returns the store in which newcomers apply. Called on rank 0, and on the other ranks if there
  // are newcomers.
  std::function<absl::StatusOr<std::shared_ptr<Store>>(const Stop& stop)> store = nullptr;
  int min_newcomers = 0;   // if there are fewer, none is taken in
  int max_newcomers = 0;   // 0: any number
  int64_t wait_ns = 0;     // how long to wait for min_newcomers
  int64_t timeout_ns = 0;  // time limit of everything else; 0: the timeout of the communicator
  // Time limit of one attempt to connect newcomers; 0: a quarter of timeout_ns, at most 30 s.
  int64_t attempt_ns = 0;
  // Newcomers apply under this name, and the new communicator gets it. Empty: the name of this
  // communicator.
  std::string name = {};
};

struct JoinOptions {
  // comm.name is the name of the communicator to join. comm.size is not used. comm.rank is used
  // only as the argument of Runtime::EnsureStarted.
  CommOptions comm;
  int64_t wait_ns = 0;  // how long to wait to be taken in; 0: comm.timeout_ns
};

class Communicator {
 public:
  // Blocks until all ranks have met and can reach each other, or until the timeout.
  static absl::StatusOr<std::shared_ptr<Communicator>> Create(const CommOptions& options);
  // Makes the handle of a core whose context is open.
  Communicator(std::shared_ptr<Runtime> runtime, std::shared_ptr<CommCore> core);
  // Aborts unfinished calls on all ranks. If no call is unfinished, leaves the communicator without
  // an error. Never waits for the network.
  ~Communicator();

  // Starts a call. The caller (lib/api, or the library itself) has checked the shape of the
  // arguments. This function checks only what depends on the communicator. If options.deadline is
  // Never and timeout_ns is 0, the call gets the communicator's default.
  absl::StatusOr<RefPtr<Work>> Start(const Call& call);
  // Allocates in advance the page-locked and other memory that calls on device memory need. The
  // memory is enough for `at_once` calls under way together that are no larger than `call`. Useful
  // for callers that must not allocate when they start a call. Local.
  absl::Status Reserve(const Call& call, int at_once);
  // Starts all calls, numbers them in this order, and wakes the engine only once. The returned work
  // is over when all calls are over. Its status is that of the first call in this order that
  // failed.
  RefPtr<Work> StartAll(absl::Span<const Call> calls);
  // Starts the call and waits until it is over. Another thread may destroy the communicator during
  // Run, RunOrRefuse, RunAgain and Drain. This ends the call.
  absl::Status Run(const Call& call);
  // Runs a call of the user. If this rank cannot start it, calls Refused.
  absl::Status RunOrRefuse(const Call& call);
  // See InlinePath.
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
  // Starts a split and does not wait for it. When the work is over, FinishSplit returns the part
  // (the new communicator). FinishSplit may be called once. If it is never called, the part ends on
  // all ranks when the work is destroyed.
  absl::StatusOr<RefPtr<Work>> StartSplit(int color, int key);
  // kInvalidArgument: the work was not started by StartSplit.
  static absl::StatusOr<std::shared_ptr<Communicator>> FinishSplit(Work& split);

  // Makes a communicator of the remaining ranks. All of these ranks must call Shrink. They may call
  // it after this communicator has ended. See entrain_comm_shrink. kOutOfRange: the others have
  // gone on without this rank.
  absl::StatusOr<std::shared_ptr<Communicator>> Shrink(const ShrinkOptions& options = {});
  // Sets *flag to the bitwise AND of the flags of all ranks that took part. The result is equal on
  // all of these ranks. May be called after the communicator has ended. See entrain_comm_agree.
  // `timeout_ns` 0: the timeout of the communicator.
  absl::Status Agree(uint32_t* flag, int64_t timeout_ns = 0);
  // Makes a communicator of these ranks and of newcomers, which call Join. Collective. This
  // communicator stays usable. Returns null if fewer than min_newcomers could be taken in. See
  // entrain_comm_grow.
  absl::StatusOr<std::shared_ptr<Communicator>> Grow(const GrowOptions& options);
  // Waits until the ranks of a communicator take this process in. See entrain_comm_join.
  static absl::StatusOr<std::shared_ptr<Communicator>> Join(const JoinOptions& options);
  // Does the same as Join for the process of this communicator, with this communicator's settings.
  // `wait_ns` limits the wait; 0: this communicator's timeout.
  absl::StatusOr<std::shared_ptr<Communicator>> JoinOther(std::shared_ptr<Store> store,
                                                          const std::string& name, int64_t wait_ns);
  // Returns this rank's knowledge of each rank, in rank order. Local.
  std::vector<MemberReport> Members() const;

  // Ends the communicator on all ranks. Returns at once. Any thread.
  void Abort(absl::string_view reason);
  // Ends the communicator because of an error on another communicator. Calls on this communicator
  // then return the error's code, or kAborted if no communicator ends with that code. They blame
  // the rank that the guilty process has in this communicator. EndWith returns when the other ranks
  // have been told. So the caller may report the error and exit.
  void EndWith(const absl::Status& why);
  // Does the same as EndWith. Also tells the other ranks that this rank takes part in no further
  // agreement, so that their Shrink does not wait for this rank. Agree and Shrink then return
  // kAborted here.
  void LeaveWith(const absl::Status& why);
  // Ends `part`, a communicator of some of these ranks, when this communicator ends with an error; at
  // once if it has ended. So no rank waits in `part` for a rank that has met the error here and
  // does not come to `part`.
  void EndToo(const Communicator& part);
  // Must be called when this rank's caller could not start this call, because of its arguments or
  // for lack of memory. Tells the other ranks, because the caller may never start the call. See
  // CommCore.
  void Refused(const Call& call, const absl::Status& why);
  // See CallerFunctions::Note. The note holds for all communicators of the runtime: if a rank waits
  // for this rank in any of them, its error can name the function.
  void NoteFunction(const void* who, absl::string_view name);
  // Returns OK, or the error that ended the communicator.
  absl::Status status() const;
  // Blocks until every call started here is done. Returns false if `give_up` comes first.
  bool Drain(Deadline give_up);

  int rank() const;
  int size() const;
  const std::string& name() const;
  // See entrain_comm_generation.
  uint64_t generation() const;
  int64_t timeout_ns() const;
  void SetTimeout(int64_t timeout_ns);  // positive
  // Returns the number of the last untagged collective that was started here. 0: no collective.
  uint64_t last_sequence() const;
  const Topology& topology() const;
  CommStats stats() const;
  // Returns the transport used to reach a rank, "self" for this rank itself.
  absl::StatusOr<const char*> TransportTo(int peer) const;
  // Returns the algorithm that a call of this shape takes.
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
