// A model sharded layer by layer over the shard group of a mesh (ZeRO stage 3 as a facility).
// Layers are gathered before their use and released afterwards; gradients are reduced into the
// slab. The class implements entrain_shard_*; include/entrain/train.h has the contract of each
// function.
//
// The object makes its own communicators from those of the mesh, so its calls are numbered
// separately. Gathers and reductions use different communicators. On the host each call carries its
// layer's number as tag, so the order of calls does not matter. On a device no call carries a tag,
// so that each call may use every path for device memory. There the order of calls must be the same
// on all ranks.
//
// Every error begins with "shard: " and names the layer. After a collective has failed, every later
// call returns that first error.
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
  std::vector<int64_t> layer_counts;      // P_l, in the order of the forward pass
  std::vector<uint8_t> layer_frozen;      // by layer, 1: no parameter trains; empty: all train
  std::vector<uint8_t> layer_replicated;  // by layer, 1: equal along the tensor axis; empty: none
  std::vector<std::vector<SlabSegment>> layer_segments;  // by layer; empty: each is one array
  int prefetch = 1;                                      // layers gathered ahead of use
  DType param_dtype = DType::kF32;  // kF32 or kBF16: type delivered and sent by gathers
  DType grad_dtype = DType::kF32;   // kF32 or kBF16: type of gradients
  int64_t timeout_ns = 0;           // time limit of each collective; 0: the communicators' default
  bool device = false;              // slabs and all lent memory are on a device
  StreamHandle stream = nullptr;    // on a device: the stream that orders the calls
};

// Values are the C ABI's (train.h).
enum class Pass : int32_t { kForward = 0, kBackward = 1 };
enum class GradientScope : int32_t { kLocal = 0, kGlobal = 1 };

struct ShardStats {
  uint64_t gather_wait_ns = 0, reduce_wait_ns = 0;
  uint64_t bytes_sent_shard = 0, bytes_sent_sync = 0;
};

// Communicators for one object alone; null: a group of one rank.
struct ShardComms {
  std::shared_ptr<Communicator> gather, scatter, context, sync, norms;
};

class LayerShards {
 public:
  // Collective over the mesh. Compares the layers and types of all ranks.
  static absl::StatusOr<std::unique_ptr<LayerShards>> Create(std::shared_ptr<Mesh> mesh,
                                                             const ShardConfig& config);

  const Slab& slab() const { return slab_; }
  const std::shared_ptr<Mesh>& mesh() const { return mesh_; }

  // Must be called once, before all functions below. On a device, `live` must be in the memory of
  // one device.
  absl::Status Bind(LayerArrays live);
  // Binds two slabs of slab().count() elements each.
  absl::Status Bind(void* params, void* grads, DType dtype = DType::kF32);
  const LayerArrays& live() const { return live_; }
  DType param_dtype() const { return config_.param_dtype; }
  DType grad_dtype() const { return config_.grad_dtype; }
  // On a device: makes later calls use this stream, which waits for the work on the previous one.
  absl::Status SetStream(StreamHandle stream);
  // Returns null if parameters are on the host, or not bound.
  DeviceRoom* room() const { return room_.get(); }
  // Returns the error that has ended the object. May be called from any thread.
  absl::Status broken() const;
  // Copies this rank's part of a whole layer of kF32, kF64, kBF16 or kF16 into its parameters. With
  // parameters on a device, `full` may be there or on the host; a copy from the host is waited for.
  absl::Status Load(int layer, const void* full, DType from = DType::kF32);
  // Collective; blocks. Copies replica 0's parameters to all replicas. In each replica, copies the
  // parameters of the first rank along the context axis to the other ranks of this axis.
  absl::Status Broadcast();
  // Makes a Broadcast or GradientNorm that runs on another thread fail. May be called from any
  // thread.
  void Abandon();

  // Wait, Release, Gradients and FinishGradients return FAILED_PRECONDITION if they would have to
  // wait inside a function of the caller in which waiting is not allowed (CallbackScope).
  absl::Status BeginPass(Pass pass);
  absl::Status Gather(int layer);
  absl::StatusOr<void*> Wait(int layer);
  // Starts the gather if necessary, but does not gather layers ahead. Calls `then` once when Wait
  // would not block, with the status of Wait; see LayerSync::WhenLayerOver.
  absl::Status WhenGathered(int layer, WorkerThread::Continuation then);
  absl::Status Release(int layer);

  // Sets memory of the caller for gathered parameters and for gradients; null: the library's
  // memory.
  absl::Status SetBuffers(int layer, void* gathered, void* gradients);
  absl::StatusOr<void*> Gradients(int layer);
  absl::Status ReduceGradients(int layer);
  absl::Status FinishGradients();
  // Calls `then` once when FinishGradients would not block, for everything reduced so far; see
  // WhenGathered.
  absl::Status WhenGradientsFinished(WorkerThread::Continuation then);
  absl::Status SetGradients(GradientScope scope);
  GradientScope gradient_scope() const { return scope_; }
  // Returns the norm of the bound gradients over the whole replica. Collective over the replica;
  // blocks.
  absl::StatusOr<double> GradientNorm();
  // Returns the stages that the gradients of this step have reached.
  ReductionStages& stages() { return stages_; }
  const ReductionStages& stages() const { return stages_; }

  ShardStats stats() const;

  // For an exchange of layers: holds back gathers until `gate` opens; null removes the gate.
  // Returns kFailedPrecondition if there is a gate already, or a layer is gathered.
  absl::Status SetGate(LayerGate* gate);
  LayerGate* gate() const { return gate_; }
  // Returns kFailedPrecondition, naming a layer, if a layer is gathered or being gathered.
  absl::Status CheckAllReleased() const;

 private:
  LayerShards(std::shared_ptr<Mesh> mesh, const ShardConfig& config, Slab slab, ShardComms comms);
  // Makes the checks with which most calls begin.
  absl::Status Check(int layer) const;
  absl::Status CheckHasGradients(int layer) const;
  absl::Status CheckBound() const;
  absl::Status BindOnDevice();
  absl::Status LoadToDevice(int layer, const void* full, DType from);
  absl::StatusOr<double> SquareOfGradients();

  const std::shared_ptr<Mesh> mesh_;
  ShardConfig config_;  // config_.stream may change until Bind; then the room's stream is used
  const Slab slab_;
  const ShardComms comms_;
  ReductionStages stages_;
  BufferPool pool_;
  LayerArrays live_;
  Pass pass_ = Pass::kForward;
  GradientScope scope_ = GradientScope::kGlobal;
  LayerGate* gate_ = nullptr;
  ShardStats waits_;         // only its times are used
  uint64_t base_shard_ = 0;  // bytes sent during Create
  uint64_t base_sync_ = 0;
  std::unique_ptr<DeviceRoom> room_;
  // on a device, for norms: room for the largest shard in f32, if gradients are of another type
  float* wide_ = nullptr;
  LayerGather gather_;
  LayerGradients gradients_;
};

}  // namespace entrain
