// Gathers whole layers from their shards before their use. Runs the all-gather of a layer's
// parameters, and owns the result until Release.
//
//   free --Start--> gated --(gate opens)--> travelling --Wait--> held --Release--> free
//
// In state travelling, the all-gather runs. A group of one rank needs no all-gather. There Wait
// returns the bound parameters themselves, if they have the type `dtype` and the caller has set no
// buffer. A layer without elements is never gathered.
//
// Thread safety: one thread at a time calls Start, Wait and Release. The gate may open on another
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "lib/base/dtype.h"
#include "lib/comm/communicator.h"
#include "lib/memory/buffer.h"
#include "lib/train/shard/layer_arrays.h"
#include "lib/train/shard/slab.h"
#include "lib/train/worker/worker.h"

namespace entrain {

// The interface through which an exchange delays gathers. The parameters of a layer may be gathered
// only after the exchange has written them.
//
// Thread safety: any thread.
class LayerGate {
 public:
  virtual ~LayerGate() = default;
  // Calls `then` exactly once, with the status of the layer's exchange. If no exchange of the layer
  // is under way, calls `then` before returning. Otherwise calls `then` later on another thread,
  // where `then` must not block.
  virtual void WhenOpen(int layer, absl::AnyInvocable<void(const absl::Status&)> then) = 0;
  // Lets the worker exchange the layer. Must be called by the caller's thread before a thread waits
  // for the layer.
  virtual void Expect(int layer) = 0;
  // Blocks until no exchange of the layer is under way.
  virtual absl::Status WaitOpen(int layer) = 0;
};

class LayerGather {
 public:
  // `slab` and `pool` must outlive this object. `comm` is a communicator of the shard group that
  // only this object uses; null: the group has one rank.
  LayerGather(const Slab& slab, BufferPool& pool, std::shared_ptr<Communicator> comm, DType dtype,
              int64_t timeout_ns);
  // Aborts gathers under way, on all ranks.
  ~LayerGather();

  // Sets the parameters. Must be called before any Start. `live` must outlive this object.
  void Bind(const LayerArrays* live) { live_ = live; }
  // Sets the gate; null removes it. Must not be called while a layer is gated or travelling.
  void SetGate(LayerGate* gate) { gate_ = gate; }

  // Makes later gathers of the layer write to `buffer`. `buffer` is memory of the caller with room
  // for the padded layer. If it is null, gathers write to memory of the pool. Must be called only
  // while the layer is free.
  void SetBuffer(int layer, std::byte* buffer) { given_[static_cast<size_t>(layer)] = buffer; }
  bool IsFree(int layer) const;
  // Starts the gather if it was not started since the last Release. Never blocks.
  absl::Status Start(int layer);
  // Starts the gather if necessary. Calls `then` once when Wait would not block, with the status of
  // Wait. Calls `then` before returning, or later on another thread, where `then` must not block.
  void WhenGathered(int layer, Worker::Continuation then);
  // Starts the gather if necessary, and blocks until it is over. Returns the padded layer in
  // `dtype`. The layer is valid until Release. Adds to *wait_ns the time for which this call has
  // blocked. This time does not include the wait at the gate.
  absl::StatusOr<void*> Wait(int layer, uint64_t* wait_ns);
  // Returns kFailedPrecondition if the layer is free. If nobody has waited for the gather, waits
  // for its end first.
  absl::Status Release(int layer);
  // Returns the first layer that is not free, or -1.
  int FirstHeld() const;
  // Returns the first error of any gather. May be called from any thread.
  absl::Status status() const;

 private:
  enum class State { kFree, kGated, kTravelling, kHeld };
  struct Slot {
    State state = State::kFree;
    OwnedBuffer buffer;
    RefPtr<Work> work;  // null: no call was started
    void* params = nullptr;
    absl::Status status;
    std::vector<Worker::Continuation> then;  // used while gated
  };

  // Returns kFailedPrecondition if Wait would block inside a callback that must not block
  // (CallbackScope).
  absl::Status CheckMayWait(int layer) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Starts the all-gather of a gated layer. Runs on the thread that has opened the gate.
  void Begin(int layer, const absl::Status& gate);
  absl::Status Send(int layer, Slot* slot);
  // Calls `then` when the gather of the layer is over. Must not be called before the gate of the
  // layer is open.
  void WhenArrived(int layer, Worker::Continuation then) ABSL_LOCKS_EXCLUDED(mutex_);
  bool LendsBound(int layer) const {
    return slab_.layer(layer).padded == 0 || (given_[static_cast<size_t>(layer)] == nullptr &&
                                              comm_ == nullptr && dtype_ == live_->dtype);
  }
  Call AllGather(const SlabLayer& layer, std::byte* buffer) const;
  absl::Status AwaitBegun(int layer) ABSL_LOCKS_EXCLUDED(mutex_);
  Slot& slot(int layer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return slots_[static_cast<size_t>(layer)];
  }

  const Slab& slab_;
  BufferPool& pool_;
  const std::shared_ptr<Communicator> comm_;
  const DType dtype_;
  const int64_t timeout_ns_;
  const LayerArrays* live_ = nullptr;
  std::vector<std::byte*> given_;  // by layer
  LayerGate* gate_ = nullptr;

  mutable absl::Mutex mutex_;
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace entrain
