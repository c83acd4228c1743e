// Gradients on their way: a buffer to add to for each layer, and its reduction into the gradient
// slab, on a courier under the rest of the backward pass.
//
//   buffer (M p_l) --reduce-scatter, shard group--> own part (p_l)
//          [global: --all-reduce, sync group--> p_l] --divide by M or M N, in f32--> += slab
//
// Ranks of a sync group take their layers in the same order; else any order will do.
//
// Thread safety: one thread at a time.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/base/dtype.h"
#include "lib/comm/communicator.h"
#include "lib/kernels/kernels.h"
#include "lib/memory/buffer.h"
#include "lib/train/courier.h"
#include "lib/train/slab.h"

namespace entrain {

class LayerGradients {
 public:
  // `slab` and `pool` outlive this. `shard` and `sync`: for this object alone; null when the group
  // has one rank.
  LayerGradients(const Slab& slab, BufferPool& pool, std::shared_ptr<Communicator> shard,
                 std::shared_ptr<Communicator> sync, DType dtype, int64_t timeout_ns);
  // Ends what is under way, on all ranks.
  ~LayerGradients();

  // The f32 slab that gradients are added to; before any Reduce.
  void Bind(float* grads) { grads_ = grads; }
  // M p_l zeros, or what was lent since the last Reduce of the layer.
  absl::StatusOr<void*> Lend(int layer);
  // Takes the buffer back and starts its reduction; does not block. kFailedPrecondition when no
  // buffer was lent.
  absl::Status Reduce(int layer, bool global);
  // Blocks until everything is in the slab.
  absl::Status Finish() { return courier_.Drain(); }
  // The first error so far.
  absl::Status status() const { return courier_.status(); }

 private:
  // A buffer whose reduction has started.
  struct Flight {
    Flight() = default;
    Flight(Flight&&) noexcept = default;
    ~Flight();
    int layer = 0;
    bool global = false;
    OwnedBuffer buffer;
    RefPtr<Work> scatter;  // null when there is nothing to scatter
  };
  absl::Status Scatter(Flight* flight);
  // On the courier:
  absl::Status Land(Flight& flight);
  absl::Status AddToSlab(const Flight& flight, const std::byte* own);
  void Abandon(const absl::Status& why);
  std::byte* Own(const Flight& flight) const;

  const Slab& slab_;
  BufferPool& pool_;
  const std::shared_ptr<Communicator> shard_, sync_;
  const DType dtype_;
  const int64_t timeout_ns_;
  const Kernels& kernels_ = BestKernels();
  float* grads_ = nullptr;
  std::vector<OwnedBuffer> lent_;  // by layer; empty: not lent
  Courier courier_;                // last: its jobs use the rest
};

}  // namespace entrain
