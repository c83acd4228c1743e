// A model sharded layer by layer over the shard group of a mesh (ZeRO's third stage as a facility):
// layers are gathered ahead of their use and released after, gradients are reduced into the slab.
// Behind entrain_shard_*; include/entrain/train.h has the contract of each function.
//
// The object makes its own parts of the mesh's communicators, so its calls have a numbering of
// their own, gathers and reductions on different ones. On the host each carries its layer's number
// as tag, so that no order matters; on a device none does, so that it may go any way, and the order
// is the same on all ranks.
//
// Every error begins with "shard: " and names the layer; once a collective has failed, every later
// call fails with the first error.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/base/dtype.h"
#include "lib/comm/mesh.h"
#include "lib/memory/buffer.h"
#include "lib/train/device_room.h"
#include "lib/train/layer_arrays.h"
#include "lib/train/layer_gate.h"
#include "lib/train/layer_gather.h"
#include "lib/train/layer_gradients.h"
#include "lib/train/reduction_stages.h"
#include "lib/train/slab.h"

namespace entrain {

struct ShardConfig {
  std::vector<int64_t> layer_counts;  // P_l, in the order of the forward pass
  std::vector<uint8_t> layer_frozen;  // by layer, 1: nothing in it trains; empty: none
  std::vector<uint8_t>
      layer_replicated;  // by layer, 1: the same along the tensor axis; empty: none
  std::vector<std::vector<SlabSegment>> layer_segments;  // by layer; empty: each is one array
  int prefetch = 1;                                      // layers gathered ahead of use
  DType param_dtype = DType::kF32;  // kF32 or kBF16: what gather delivers and what travels
  DType grad_dtype = DType::kF32;   // likewise
  int64_t timeout_ns = 0;           // of each collective; 0: the communicators' default
  bool device = false;              // slabs and all that is lent are in device memory ...
  StreamHandle stream = nullptr;    // ... and calls are in the order of this stream
};

// Values are the C ABI's (train.h).
enum class Pass : int32_t { kForward = 0, kBackward = 1 };
enum class GradientScope : int32_t { kLocal = 0, kGlobal = 1 };

struct ShardStats {
  uint64_t gather_wait_ns = 0, reduce_wait_ns = 0;
  uint64_t bytes_sent_shard = 0, bytes_sent_sync = 0;
};

// For one object alone; null: a group of one.
struct ShardComms {
  std::shared_ptr<Communicator> gather, scatter, context, sync, norms;
};

class LayerShards {
 public:
  // Collective over the mesh; compares the layers and types of all ranks.
  static absl::StatusOr<std::unique_ptr<LayerShards>> Create(std::shared_ptr<Mesh> mesh,
                                                             const ShardConfig& config);

  const Slab& slab() const { return slab_; }
  const std::shared_ptr<Mesh>& mesh() const { return mesh_; }

  // Once, before anything below. On a device: whose memory they are.
  absl::Status Bind(LayerArrays live);
  // The same with two slabs, slab().count() elements each.
  absl::Status Bind(void* params, void* grads, DType dtype = DType::kF32);
  const LayerArrays& live() const { return live_; }
  DType param_dtype() const { return config_.param_dtype; }
  DType grad_dtype() const { return config_.grad_dtype; }
  // On a device: from now on calls are in the order of this stream, which waits for what is on the one before.
  absl::Status SetStream(StreamHandle stream);
  // Null: parameters are on the host, or not bound.
  DeviceRoom* room() const { return room_.get(); }
  // What has ended it. Any thread.
  absl::Status broken() const;
  // Copies this rank's part of a whole layer of kF32, kF64, kBF16 or kF16 into its parameters. With those
  // on a device, from there or from the host; the latter is waited for.
  absl::Status Load(int layer, const void* full, DType from = DType::kF32);
  // Collective; blocks: replica 0's parameters to all replicas, and in each those of the first rank along the context axis
  // to the others.
  absl::Status Broadcast();
  // Any thread: makes the Broadcast or GradientNorm that another thread is inside of fail.
  void Abandon();

  // Wait, Release, Gradients and FinishGradients: FAILED_PRECONDITION where they would have to wait inside a function of the
  // caller's that must not (CallbackScope).
  absl::Status BeginPass(Pass pass);
  absl::Status Gather(int layer);
  absl::StatusOr<void*> Wait(int layer);
  // Starts the gather if need be, but none ahead. Calls `then` once when Wait would not block, with its status; see
  // LayerSync::WhenLayerOver.
  absl::Status WhenGathered(int layer, WorkerThread::Continuation then);
  absl::Status Release(int layer);

  // The caller's memory for what gather delivers and for gradients; null: the library's.
  absl::Status SetBuffers(int layer, void* gathered, void* gradients);
  absl::StatusOr<void*> Gradients(int layer);
  absl::Status ReduceGradients(int layer);
  absl::Status FinishGradients();
  // The same of FinishGradients, for what has been reduced so far.
  absl::Status WhenGradientsFinished(WorkerThread::Continuation then);
  absl::Status SetGradients(GradientScope scope);
  GradientScope gradient_scope() const { return scope_; }
  // Of the gradients that are bound, over the whole replica. Collective over it; blocks.
  absl::StatusOr<double> GradientNorm();
  // How far the gradients of this step have come.
  ReductionStages& stages() { return stages_; }
  const ReductionStages& stages() const { return stages_; }

  ShardStats stats() const;

  // For an exchange of layers: holds back gathers until `gate` says so (null: no more).
  // kFailedPrecondition when there is a gate already, or a layer is gathered.
  absl::Status SetGate(LayerGate* gate);
  LayerGate* gate() const { return gate_; }
  // kFailedPrecondition naming a layer that is gathered or being gathered.
  absl::Status CheckAllReleased() const;

 private:
  LayerShards(std::shared_ptr<Mesh> mesh, const ShardConfig& config, Slab slab, ShardComms comms);
  // The checks that most calls begin with.
  absl::Status Check(int layer) const;
  absl::Status CheckHasGradients(int layer) const;
  absl::Status CheckBound() const;
  absl::Status BindOnDevice();
  absl::Status LoadToDevice(int layer, const void* full, DType from);
  absl::StatusOr<double> SquareOfGradients();

  const std::shared_ptr<Mesh> mesh_;
  ShardConfig config_;  // its stream may change until Bind; then it is the room's
  const Slab slab_;
  const ShardComms comms_;
  ReductionStages stages_;
  BufferPool pool_;
  LayerArrays live_;
  Pass pass_ = Pass::kForward;
  GradientScope scope_ = GradientScope::kGlobal;
  LayerGate* gate_ = nullptr;
  ShardStats waits_;         // the times only
  uint64_t base_shard_ = 0;  // bytes sent while this was created
  uint64_t base_sync_ = 0;
  std::unique_ptr<DeviceRoom> room_;
  float* wide_ = nullptr;  // on a device, where gradients are not f32: for norms, the largest shard
  LayerGather gather_;
  LayerGradients gradients_;
};

}  // namespace entrain
