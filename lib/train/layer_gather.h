// Whole layers made of shards, ahead of their use: the all-gather of each layer's parameters, where
// the result lies, and until when.
//
//   free --Start--> gated --(gate opens)--> travelling --Wait--> held --Release--> free
//
// A group of one gathers nothing: where what is bound has the type that gather delivers, it lends that
// itself, unless the caller has memory for it. Nor does anybody a layer without elements.
//
// On device memory a worker does what follows Start, one layer after the other, and Wait only
// makes the caller's stream wait; there a slot is never gated.
//
// Thread safety: Start, Wait, Release from one thread at a time; the gate may open on another.
#pragma once

#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "lib/base/dtype.h"
#include "lib/comm/communicator.h"
#include "lib/memory/buffer.h"
#include "lib/train/device_worker.h"
#include "lib/train/layer_arrays.h"
#include "lib/train/layer_gate.h"
#include "lib/train/slab.h"
#include "lib/train/worker_thread.h"

namespace entrain {

class LayerGather {
 public:
  // `slab` and `pool` outlive this. `comm`: the shard group's, for this object alone; null when it
  // has one rank.
  LayerGather(const Slab& slab, BufferPool& pool, std::shared_ptr<Communicator> comm, DType dtype,
              int64_t timeout_ns);
  // Ends what is under way, on all ranks.
  ~LayerGather();

  // Where the parameters are; before any Start. `live` outlives this.
  void Bind(const LayerArrays* live) { live_ = live; }
  // Instead, on the device of `room`, which outlives this.
  absl::Status BindOnDevice(const LayerArrays* live, DeviceRoom* room);
  // Null: none. Only while no layer is gated or travelling.
  void SetGate(LayerGate* gate) ABSL_LOCKS_EXCLUDED(gate_mutex_);

  // Where a layer is delivered, padded, from the next Start on: memory of the caller's; null: of the pool.
  // Only while the layer is free.
  void SetBuffer(int layer, std::byte* buffer) { given_[static_cast<size_t>(layer)] = buffer; }
  bool IsFree(int layer) const;
  // Starts gathering unless that has been done since the last Release; never blocks.
  absl::Status Start(int layer);
  // Starts if need be; calls `then` once when Wait would not block, with its status: from another thread, which must not be
  // blocked, or before this returns. On a device: when the layer is there.
  void WhenGathered(int layer, WorkerThread::Continuation then);
  // Starts if need be and blocks; gives the padded layer in `dtype`, valid until Release.
  // *wait_ns grows by the time this took, without that at the gate.
  absl::StatusOr<void*> Wait(int layer, uint64_t* wait_ns);
  // kFailedPrecondition when the layer is free. A gather that travels is waited for.
  absl::Status Release(int layer);
  // The first layer that is not free; -1: none.
  int FirstHeld() const;
  // The first error of any gather. Any thread.
  absl::Status status() const;

 private:
  enum class State { kFree, kGated, kTravelling, kHeld };
  struct Slot {
    State state = State::kFree;
    OwnedBuffer buffer;
    BlockPool::Block block;  // instead, on a device
    uint64_t job = 0;        // on a device; 0: none
    RefPtr<Work> work;       // null: nothing travels
    void* params = nullptr;
    absl::Status status;
    std::vector<WorkerThread::Continuation> then;  // while it is gated
  };

  // FAILED_PRECONDITION: Wait would have to wait, where that is not allowed.
  absl::Status CheckMayWait(int layer) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Behind the gate: on whatever thread opened it.
  void Begin(int layer, const absl::Status& gate);
  absl::Status Send(int layer, Slot* slot);
  // The layer is not gated.
  void WhenArrived(int layer, WorkerThread::Continuation then) ABSL_LOCKS_EXCLUDED(mutex_);
  bool LendsBound(int layer) const {
    return slab_.layer(layer).padded == 0 || (given_[static_cast<size_t>(layer)] == nullptr &&
                                              comm_ == nullptr && dtype_ == live_->dtype);
  }
  Call AllGather(const SlabLayer& layer, std::byte* buffer) const;
  void BeginOnDevice(int layer);
  absl::Status PostSend(int layer, Slot* slot);
  absl::Status SendFromDevice(int layer, uint64_t begun, std::byte* buffer);
  absl::StatusOr<void*> WaitOnDevice(int layer);
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
  DeviceRoom* room_ = nullptr;     // null: on the host
  LayerGate* gate_ = nullptr;
  // On a device: held by the worker where it waits for the gate, and to change it.
  absl::Mutex gate_mutex_;

  mutable absl::Mutex mutex_;
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<DeviceWorker> worker_;  // on a device; last: its jobs use the rest
};

}  // namespace entrain
