// Lends the caller a buffer for the gradients of each layer. Reduces the buffer over ranks and adds
// the mean to the caller's gradients. Workers run the reductions during the rest of the backward
// pass. Sums of several layers are under way at the same time.
//
//   buffer (M p_l) --reduce-scatter, shard group--> this rank's part (p_l)
//          --all-reduce, context group--> p_l
//          [global: --all-reduce, sync group--> p_l]
//          --divide by M C, or global by M C N, in f32--> add to the bound gradients
//
// The C ranks along the context axis have the same parameters. If C > 1, all-reduces add in rank
// order. So these ranks get the same bits, even if their groups use different algorithms.
//
// The ranks of a sync group must reduce their layers in the same order. Without a sync group any
// order is allowed.
//
// Thread safety: one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
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
#include "lib/train/shard/layer_arrays.h"
#include "lib/train/shard/slab.h"
#include "lib/train/worker/worker.h"

namespace entrain {

class LayerGradients {
 public:
  // Communicators that only this object uses; null: the group has one rank.
  struct Comms {
    std::shared_ptr<Communicator> shard, context, sync;
  };
  // `slab` and `pool` must outlive this object.
  LayerGradients(const Slab& slab, BufferPool& pool, Comms comms, DType dtype, int64_t timeout_ns);
  // Aborts reductions under way, on all ranks.
  ~LayerGradients();

  // Sets the arrays to which gradients are added. Must be called before any Lend. `live` must
  // outlive this object.
  void Bind(const LayerArrays* live) { live_ = live; }
  // Makes Lend return `buffer`, which is memory of the caller, for this layer. If it is null, Lend
  // returns memory of the pool. Blocks until the layer's last reduction is over. Must not be called
  // while the layer's buffer is lent.
  absl::Status SetBuffer(int layer, std::byte* buffer);
  bool Lent(int layer) const { return lent_[static_cast<size_t>(layer)].data != nullptr; }
  // Returns a buffer of M p_l zeros. If the layer's buffer is lent already, returns it unchanged. A
  // buffer of the caller may still be in its last reduction. Then Lend waits for this reduction.
  absl::StatusOr<void*> Lend(int layer);
  // Takes the buffer back and starts its reduction. With `global`, the reduction includes the sync
  // group. Does not block. Returns kFailedPrecondition if no buffer was lent.
  absl::Status Reduce(int layer, bool global);
  // Blocks until all reductions are over.
  absl::Status Finish() { return worker_.Hold(worker_.last()); }
  // Calls `then` once when the reductions started so far are over, with the status of Finish. Calls
  // `then` before returning, or later on another thread, where `then` must not block.
  void WhenFinished(Worker::Continuation then) {
    worker_.WhenDone(worker_.last(), std::move(then));
  }
  // Returns the first error so far. May be called from any thread.
  absl::Status status() const { return worker_.status(); }

 private:
  // A buffer for gradients: memory of the caller or of the pool.
  struct Lending {
    std::byte* data = nullptr;  // null: not lent
    OwnedBuffer buffer;
  };
  // The sums of a reduction, in order. Each is over the group of this name.
  enum Sum { kShard, kContext, kSync, kSums };
  // A buffer whose reduction has started.
  struct Flight {
    Flight() = default;
    ~Flight();
    Flight(const Flight&) = delete;
    Flight& operator=(const Flight&) = delete;
    int layer = 0;
    bool global = false;
    Lending lent;
    std::array<RefPtr<Work>, kSums> sums;  // null: not started, or not needed
    std::byte* data() const { return lent.data; }
  };
  absl::AnyInvocable<void(const absl::Status&)> GiveUp();
  static std::string NameOf(const Flight& flight);
  absl::Status Scatter(Flight& flight);
  uint64_t PostSums(const std::shared_ptr<Flight>& flight);
  Call ReduceScatter(const SlabLayer& layer, std::byte* buffer) const;
  Call AllReduce(int64_t count, std::byte* own) const;
  // These functions run on a worker:
  absl::Status Await(const Flight& flight);
  absl::Status StartSum(Flight& flight, Sum sum);
  bool HasRoom(int64_t bytes);
  absl::Status Ended(const Flight& flight, const absl::Status& status);
  absl::StatusOr<float*> RoomForFloats(int64_t count, OwnedBuffer* buffer);
  absl::Status AddToBound(const Flight& flight, const std::byte* own);
  void Abandon(const absl::Status& why);
  std::byte* Own(const Flight& flight) const;
  int64_t Bytes(const Flight& flight) const {
    return slab_.layer(flight.layer).valid * SizeOf(dtype_);
  }

  const Slab& slab_;
  BufferPool& pool_;
  const Comms comms_;
  const DType dtype_;
  const int64_t timeout_ns_;
  const LayerArrays* live_ = nullptr;
  std::vector<Lending> lent_;      // by layer
  std::vector<std::byte*> given_;  // by layer: the caller's memory
  std::vector<uint64_t> jobs_;     // by layer: the job of its last reduction; 0: none
  // Sums over the sync group, and their bytes. Used by the thread that starts these sums.
  std::deque<std::pair<RefPtr<Work>, int64_t>> in_flight_;
  // The workers are the last members, because their jobs use the other members.
  Worker context_starter_, sync_starter_;  // start the sums over these groups
  Worker worker_;                          // adds the results
};

}  // namespace entrain
