// A communicator: a cheap view of the runtime, and the one funnel through which every call goes:
// check, number, plan, submit. Holds who the ranks are, which context number each of them uses, and
// how far calls have come.
//
// Thread safety: any thread; Start is serialised by a mutex, so calls of different threads are
// numbered in some order (untagged calls must then be ordered by the callers; tagged calls need no
// order).
#pragma once

#include <cstdint>
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
#include "lib/comm/topology.h"
#include "lib/engine/work.h"
#include "lib/memory/shared_regions.h"

namespace entrain {

class CommCore;
class DeviceCalls;
class StoreMeeting;
class Runtime;
class Store;
struct CoreConfig;
struct Member;
struct MeetRecord;
struct Preparation;
enum class Link : uint8_t;

struct CommOptions {
  std::shared_ptr<Runtime> runtime;
  std::shared_ptr<Store> store;
  std::string name = "world";
  int rank = 0, size = 1;
  std::string algorithms;  // see overrides.h; empty: by cost
  std::string tuning;      // a file, see tuning.h; "probe"; empty: the library's own
  int64_t timeout_ns = kDefaultTimeoutNs;           // default of operations, and of creation
  Determinism determinism = Determinism::kDefault;  // of calls that do not say; parts inherit it
  CpuShare cpus = CpuShare::OfThisThread();         // that this rank says it has
};

class Communicator {
 public:
  // Blocks until all ranks have met and can reach each other, or the time is up.
  static absl::StatusOr<std::shared_ptr<Communicator>> Create(const CommOptions& options);
  // Unfinished calls are aborted, on all ranks; with none, peers are not disturbed. Never waits for
  // the network.
  ~Communicator();

  // The funnel. Arguments were checked for shape by the caller of this (lib/api) or are the
  // library's own; this checks what concerns the communicator. An options.deadline of Never with
  // timeout_ns 0 takes the communicator's default.
  absl::StatusOr<RefPtr<Work>> Start(const Call& call);
  // For a call on device memory: finds now what so many of them, or smaller ones, under way at once
  // will need of page-locked and other memory. For who must not allocate when it starts them. Local.
  absl::Status Reserve(const Call& call, int at_once);
  // All of them, numbered in this order, with one turn of the engine. The work is over when all are; its status is the
  // first failure in this order.
  RefPtr<Work> StartAll(absl::Span<const Call> calls);
  // Start and wait. Another thread may destroy this meanwhile, which ends the call; so may it in the next two and in Drain.
  absl::Status Run(const Call& call);
  // The same for a call of the user's: one that this rank cannot start is Refused.
  absl::Status RunOrRefuse(const Call& call);
  // See InlinePath.
  std::optional<absl::Status> RunAgain(const CallKey& key, const void* in, void* out);

  // The same for the common cases inside the library. Host memory.
  absl::Status AllReduce(const void* in, void* out, int64_t count, DType dtype, ReduceOp op,
                         const CallOptions& o = {});
  absl::Status AllGather(const void* in, void* out, int64_t count, DType dtype,
                         const CallOptions& o = {});
  absl::Status Broadcast(void* buffer, int64_t count, DType dtype, int root,
                         const CallOptions& o = {});
  absl::Status Barrier(const CallOptions& o = {});

  // Collective. Null for color -1.
  absl::StatusOr<std::shared_ptr<Communicator>> Split(int color, int key);
  // The same without waiting: once the work is over, FinishSplit gives the part, once. A part that nobody takes ends on all
  // ranks when the work goes.
  absl::StatusOr<RefPtr<Work>> StartSplit(int color, int key);
  // kInvalidArgument: the work is another call's.
  static absl::StatusOr<std::shared_ptr<Communicator>> FinishSplit(Work& split);

  // Memory that the other processes of this host may read where it lies, of all communicators of the runtime.
  absl::StatusOr<void*> AllocateMemory(int64_t bytes, SealedMemory::Pages pages);
  // While a call on any of them uses it, it lives on.
  absl::Status FreeMemory(void* memory);
  // Makes others' memory such memory, as far as it is whole pages of private memory. Gives how many bytes of it are.
  absl::StatusOr<int64_t> RegisterMemory(Bytes memory);
  absl::Status DeregisterMemory(void* memory);

  // Any thread; returns at once; ends the communicator on all ranks.
  void Abort(absl::string_view reason);
  // The same because of an error on another communicator: calls here return it with its code where
  // that is one that ends communicators (else kAborted), and with the guilty process's rank here.
  // Returns when the other ranks have been told, so that whoever reports the error may exit.
  void EndWith(const absl::Status& why);
  // This rank's caller could not start this call, by its arguments or for want of memory. Tells the others, for the
  // case that it never starts: see CommCore.
  void Refused(const Call& call, const absl::Status& why);
  // See CallerFunctions::Note. Of this runtime: ranks that wait for this one are told, in whatever communicator.
  void NoteFunction(const void* who, absl::string_view name);
  // OK, or what ended it.
  absl::Status status() const;
  // Waits until every call started here is done, or the instant: then false.
  bool Drain(Deadline give_up);

  int rank() const;
  int size() const;
  const std::string& name() const;
  int64_t timeout_ns() const;
  void SetTimeout(int64_t timeout_ns);  // positive
  // The number of the last untagged collective that was started here; 0: none was.
  uint64_t last_sequence() const;
  const Topology& topology() const;
  CommStats stats() const;
  // The transport used to reach a rank; "self" for oneself.
  absl::StatusOr<const char*> TransportTo(int peer) const;
  // The algorithm a call of this shape takes.
  absl::StatusOr<const char*> AlgorithmFor(CallKind kind, int64_t count, DType dtype) const;
  // Why, and what others are estimated to take: see planner.h.
  absl::StatusOr<std::string> Explain(CallKind kind, int64_t count, DType dtype) const;
  Runtime& runtime() const;

 private:
  Communicator(std::shared_ptr<Runtime> runtime, std::shared_ptr<CommCore> core);
  static std::shared_ptr<Communicator> Open(std::shared_ptr<Runtime> runtime, CoreConfig config);
  // Creates from the own card on: everything that the other ranks have to be told of when it fails.
  static absl::StatusOr<std::shared_ptr<Communicator>> Meet(const CommOptions& options,
                                                            Preparation prepared,
                                                            StoreMeeting& meeting,
                                                            const Stop& stop);
  absl::Status MeetAll(const CallOptions& options, StoreMeeting& meeting);
  MeetRecord OwnLinks() const;
  // What looks after calls on device memory, made with the first one.
  absl::StatusOr<DeviceCalls*> OnDevice() ABSL_LOCKS_EXCLUDED(device_mutex_);
  absl::StatusOr<RefPtr<Work>> Start(const Call& call, bool kick);
  // The region that begins there. While a call uses it: registered memory is not taken back, and the error names the call; other
  // memory stays mapped until the call is over.
  absl::StatusOr<std::shared_ptr<SharedRegion>> TakeBack(void* memory, bool registered);

  std::shared_ptr<Runtime> runtime_;
  std::shared_ptr<CommCore> core_;  // shared with the engine and with works that still run
  mutable absl::Mutex device_mutex_;
  std::unique_ptr<DeviceCalls> device_calls_ ABSL_GUARDED_BY(device_mutex_);
};

}  // namespace entrain
