// Gradients on their way: a buffer to add to for each layer, and its reduction into the caller's
// gradients, on a worker under the rest of the backward pass.
//
//   buffer (M p_l) --reduce-scatter, shard group--> own part (p_l) --all-reduce, context group--> p_l
//          [global: --all-reduce, sync group--> p_l] --divide by M C or M C N, in f32--> += bound
//
// C ranks along the context axis keep the same parameters: with C > 1 sums are in rank order, so that what they add has the same
// bits in every group, whatever algorithm it uses.
//
// Ranks of a sync group take their layers in the same order; else any order will do. On device
// memory those of a shard group and of a context group do so too, and a layer's reduction begins
// when that of the layer before is over.
//
// Thread safety: one thread at a time.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/base/dtype.h"
#include "lib/comm/communicator.h"
#include "lib/memory/buffer.h"
#include "lib/train/device_room.h"
#include "lib/train/layer_arrays.h"
#include "lib/train/slab.h"
#include "lib/train/worker.h"
#include "lib/train/worker_thread.h"

namespace entrain {

class LayerGradients {
 public:
  // For this object alone; null when the group has one rank.
  struct Comms {
    std::shared_ptr<Communicator> shard, context, sync;
  };
  // `slab` and `pool` outlive this.
  LayerGradients(const Slab& slab, BufferPool& pool, Comms comms, DType dtype, int64_t timeout_ns);
  // Ends what is under way, on all ranks.
  ~LayerGradients();

  // Where gradients are added; before any Lend. `live` outlives this.
  void Bind(const LayerArrays* live) { live_ = live; }
  // Instead, on the device of `room`, which outlives this. Nothing is sent any more once `sound`
  // has given an error: what the caller's stream has made of such parameters is of no use.
  absl::Status BindOnDevice(const LayerArrays* live, DeviceRoom* room,
                            absl::AnyInvocable<absl::Status() const> sound);
  // What Lend gives of a layer from then on: memory of the caller's; null: of the pool. Waits for the layer's last reduction.
  // Only while the layer is not lent.
  absl::Status SetBuffer(int layer, std::byte* buffer);
  bool Lent(int layer) const { return lent_[static_cast<size_t>(layer)].data != nullptr; }
  // M p_l zeros, or what was lent since the last Reduce of the layer.
  // The caller's memory is used again when the layer's last reduction is over, which this waits for; on
  // device memory the caller's stream does.
  absl::StatusOr<void*> Lend(int layer);
  // Takes the buffer back and starts its reduction; does not block. kFailedPrecondition when no
  // buffer was lent.
  absl::Status Reduce(int layer, bool global);
  // Blocks until everything has been added; on device memory the caller's stream does.
  absl::Status Finish() { return worker_->Hold(worker_->last()); }
  // Calls `then` once when all that was reduced so far has been added, with what Finish would return: from another thread, which
  // must not be blocked, or before this returns.
  void WhenFinished(Worker::Continuation then) {
    worker_->WhenDone(worker_->last(), std::move(then));
  }
  // On a device: blocks until everything has been added, and the caller's stream is through with what it had to do.
  absl::Status ComeToRest(int64_t timeout_ns) { return worker_->ComeToRest(timeout_ns); }
  // The first error so far. Any thread.
  absl::Status status() const { return worker_->status(); }

 private:
  // A buffer to add to; the caller's, or of the pool, or of a device.
  struct Lending {
    std::byte* data = nullptr;  // null: not lent
    OwnedBuffer buffer;
    BlockPool::Block block;
  };
  // A buffer whose reduction has started.
  struct Flight {
    Flight() = default;
    ~Flight();
    Flight(const Flight&) = delete;
    Flight& operator=(const Flight&) = delete;
    int layer = 0;
    bool global = false;
    Lending lent;
    RefPtr<Work> scatter;  // null when there is nothing to scatter
    RefPtr<Work> context;  // on the host: the sum along that axis; null when there is none
    std::byte* data() const { return lent.data; }
  };
  absl::AnyInvocable<void(const absl::Status&)> GiveUp();
  static std::string NameOf(const Flight& flight);
  absl::Status Scatter(Flight& flight);
  absl::StatusOr<uint64_t> PostLanding(const std::shared_ptr<Flight>& flight);
  Call ReduceScatter(const SlabLayer& layer, std::byte* buffer) const;
  Call AllReduce(int64_t count, std::byte* own) const;
  // On a worker:
  absl::Status ReduceOnDevice(Flight& flight);
  absl::Status PassOn(Flight& flight);
  absl::Status Ended(const Flight& flight, const absl::Status& status);
  absl::Status Land(Flight& flight);
  absl::StatusOr<float*> RoomForFloats(float* on_device, int64_t count, OwnedBuffer* buffer);
  absl::Status AddToBound(const Flight& flight, const std::byte* own);
  void Abandon(const absl::Status& why);
  std::byte* Own(const Flight& flight) const;

  const Slab& slab_;
  BufferPool& pool_;
  const Comms comms_;
  const DType dtype_;
  const int64_t timeout_ns_;
  const LayerArrays* live_ = nullptr;
  std::vector<Lending> lent_;      // by layer
  std::vector<std::byte*> given_;  // by layer: the caller's memory
  std::vector<uint64_t> jobs_;     // by layer: the job that ends its last reduction; 0: none
  DeviceRoom* room_ = nullptr;     // null: on the host
  // On a device, the worker's: the largest shard in f32, where what travels is not, and where what is bound is not.
  float *floats_ = nullptr, *sums_ = nullptr;
  // Last: their jobs use the rest.
  WorkerThread
      passer_;  // on the host, with a context group: passes a layer on from the shard group to it
  std::unique_ptr<Worker> worker_;
};

}  // namespace entrain
