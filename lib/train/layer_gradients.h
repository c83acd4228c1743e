// Gives out a buffer for the gradients of each layer, and reduces the buffer into the caller's
// gradients. The reductions run on a worker beside the rest of the backward pass.
//
//   buffer (M p_l) --reduce-scatter, shard group--> own part (p_l) --all-reduce, context group--> p_l
//          [global: --all-reduce, sync group--> p_l] --divide by M C or M C N, in f32--> += bound
//
// C ranks along the context axis keep the same parameters. With C > 1 sums are computed in rank
// order, so that these ranks get the same bits even if their groups use different algorithms.
//
// Ranks of a sync group must reduce their layers in the same order; without a sync group any order
// is allowed. On device memory the ranks of a shard group and of a context group must use the same
// order too, and a layer's reduction begins after the reduction of the layer before.
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
  // Communicators for this object alone; null if the group has one rank.
  struct Comms {
    std::shared_ptr<Communicator> shard, context, sync;
  };
  // `slab` and `pool` must outlive this object.
  LayerGradients(const Slab& slab, BufferPool& pool, Comms comms, DType dtype, int64_t timeout_ns);
  // Ends the reductions under way on all ranks.
  ~LayerGradients();

  // Sets the arrays to which gradients are added. Must be called before any Lend. `live` must
  // outlive this object.
  void Bind(const LayerArrays* live) { live_ = live; }
  // Takes the place of Bind on the device of `room`, which must outlive this object. After `sound`
  // has returned an error nothing is sent, because the gradients were computed from data that never
  // arrived.
  absl::Status BindOnDevice(const LayerArrays* live, DeviceRoom* room,
                            absl::AnyInvocable<absl::Status() const> sound);
  // Makes Lend return `buffer`, memory of the caller, for the layer; null: memory of the pool.
  // Waits for the layer's last reduction. Must not be called while the layer is lent.
  absl::Status SetBuffer(int layer, std::byte* buffer);
  bool Lent(int layer) const { return lent_[static_cast<size_t>(layer)].data != nullptr; }
  // Returns M p_l zeros, or the buffer that was lent since the last Reduce of the layer. If the
  // memory is the caller's, waits for the layer's last reduction before reusing it; on device
  // memory the caller's stream waits.
  absl::StatusOr<void*> Lend(int layer);
  // Takes the buffer back and starts its reduction. Does not block. Returns kFailedPrecondition if
  // no buffer was lent.
  absl::Status Reduce(int layer, bool global);
  // Blocks until everything has been added. On device memory the caller's stream waits instead.
  absl::Status Finish() { return worker_->Hold(worker_->last()); }
  // Calls `then` once when everything reduced so far has been added, with the status of Finish:
  // before returning, or from another thread, where `then` must not block.
  void WhenFinished(Worker::Continuation then) {
    worker_->WhenDone(worker_->last(), std::move(then));
  }
  // On a device: blocks until everything has been added and the caller's stream has finished its
  // work so far.
  absl::Status ComeToRest(int64_t timeout_ns) { return worker_->ComeToRest(timeout_ns); }
  // Returns the first error so far. May be called from any thread.
  absl::Status status() const { return worker_->status(); }

 private:
  // A buffer for gradients: memory of the caller, of the pool, or of a device.
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
    RefPtr<Work> scatter;  // null: nothing to scatter
    RefPtr<Work> context;  // on the host: the sum along the context axis; null: none
    std::byte* data() const { return lent.data; }
  };
  absl::AnyInvocable<void(const absl::Status&)> GiveUp();
  static std::string NameOf(const Flight& flight);
  absl::Status Scatter(Flight& flight);
  absl::StatusOr<uint64_t> PostLanding(const std::shared_ptr<Flight>& flight);
  Call ReduceScatter(const SlabLayer& layer, std::byte* buffer) const;
  Call AllReduce(int64_t count, std::byte* own) const;
  // These functions run on a worker:
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
  std::vector<uint64_t> jobs_;     // by layer: last job of its last reduction; 0: none
  DeviceRoom* room_ = nullptr;     // null: on the host
  // On a device, for the worker: memory for the largest shard in f32. floats_ holds the values that
  // are sent. sums_ holds the bound gradients if their type is not f32.
  float *floats_ = nullptr, *sums_ = nullptr;
  // The workers are the last members, because their jobs use the other members.
  WorkerThread passer_;  // on the host: passes layers to the context group
  std::unique_ptr<Worker> worker_;
};

}  // namespace entrain
