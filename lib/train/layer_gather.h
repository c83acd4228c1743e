// Whole layers made of shards, ahead of their use: the all-gather of each layer's parameters, where
// the result lies, and until when.
//
//   free --Start--> gated --(gate opens)--> travelling --Wait--> held --Release--> free
//
// A group of one gathers nothing: with f32 parameters it lends the slab itself. Nor does anybody a
// layer without elements.
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
#include "lib/kernels/kernels.h"
#include "lib/memory/buffer.h"
#include "lib/train/layer_gate.h"
#include "lib/train/slab.h"

namespace entrain {

class LayerGather {
 public:
  // `slab` and `pool` outlive this. `comm`: the shard group's, for this object alone; null when it
  // has one rank.
  LayerGather(const Slab& slab, BufferPool& pool, std::shared_ptr<Communicator> comm, DType dtype,
              int64_t timeout_ns);
  // Ends what is under way, on all ranks.
  ~LayerGather();

  // The f32 masters; before any Start.
  void Bind(const float* params) { params_ = params; }
  // Null: none. Only while no layer is gated or travelling.
  void SetGate(LayerGate* gate) { gate_ = gate; }

  // Starts gathering unless that has been done since the last Release; never blocks.
  absl::Status Start(int layer);
  // Starts if need be and blocks; gives the padded layer in `dtype`, valid until Release.
  // *wait_ns grows by the time this took, without that at the gate.
  absl::StatusOr<void*> Wait(int layer, uint64_t* wait_ns);
  // kFailedPrecondition when the layer is free. A gather that travels is waited for.
  absl::Status Release(int layer);
  // The first layer that is not free; -1: none.
  int FirstHeld() const;
  // The first error of any gather.
  absl::Status status() const;

 private:
  enum class State { kFree, kGated, kTravelling, kHeld };
  struct Slot {
    State state = State::kFree;
    OwnedBuffer buffer;
    RefPtr<Work> work;  // null: nothing travels
    void* params = nullptr;
    absl::Status status;
  };

  // Behind the gate: on whatever thread opened it.
  void Begin(int layer, const absl::Status& gate);
  absl::Status Send(int layer, Slot* slot);
  Slot& slot(int layer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return slots_[static_cast<size_t>(layer)];
  }

  const Slab& slab_;
  BufferPool& pool_;
  const std::shared_ptr<Communicator> comm_;
  const DType dtype_;
  const int64_t timeout_ns_;
  const Kernels& kernels_ = BestKernels();
  const float* params_ = nullptr;
  LayerGate* gate_ = nullptr;

  mutable absl::Mutex mutex_;
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace entrain
