// A model that is sharded layer by layer over the shard group of a mesh, as in ZeRO stage 3. A
// layer is gathered before its use and released afterwards. Gradients are reduced into this rank's
// shards. The class implements entrain_shard_*; include/entrain/train.h has the contract of each
// function.
//
// The object splits its own communicators from those of the mesh. So its calls do not mix with
// other calls on the mesh. Gathers and reductions use different communicators. The tag of a call is
// the number of its layer. So ranks may call in different orders, except where layer_gradients.h
// says otherwise.
//
// Every error begins with "shard: ". An error about a layer names the layer. After a collective has
// failed, every later call returns the error of that collective.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/base/dtype.h"
#include "lib/comm/mesh.h"
#include "lib/memory/buffer.h"
#include "lib/train/shard/layer_arrays.h"
#include "lib/train/shard/layer_gather.h"
#include "lib/train/shard/layer_gradients.h"
#include "lib/train/shard/slab.h"

namespace entrain {

// Tracks the stage of each layer's gradients in a step: lent, being reduced, or waited for.
//
// Thread safety: one thread at a time.
class ReductionStages {
 public:
  // `training` lists the layers that train, out of `layers`.
  ReductionStages(int layers, std::vector<int> training)
      : training_(std::move(training)), stages_(static_cast<size_t>(layers), Stage::kNone) {}

  void BeginStep();
  void Lent(int layer) { stages_[static_cast<size_t>(layer)] = Stage::kLent; }
  void Reduced(int layer) { stages_[static_cast<size_t>(layer)] = Stage::kReduced; }
  // Must be called after a wait for all reductions started so far.
  void Finished();
  // Returns OK if no gradients were lent since BeginStep: then the caller reduces gradients itself.
  // Otherwise returns kFailedPrecondition unless all layers that train were reduced and waited for.
  // The message names the missing layers.
  absl::Status CheckReduced() const;

  // Counts the reductions that have begun since creation.
  void CountBegun() { ++begun_; }
  uint64_t begun() const { return begun_; }

 private:
  enum class Stage : uint8_t { kNone, kLent, kReduced, kFinished };

  const std::vector<int> training_;
  std::vector<Stage> stages_;  // by layer
  uint64_t begun_ = 0;
};

struct ShardConfig {
  std::vector<int64_t> layer_counts;      // P_l: elements, in the order of the forward pass
  std::vector<uint8_t> layer_frozen;      // by layer, 1: no parameter trains; empty: all train
  std::vector<uint8_t> layer_replicated;  // by layer, 1: equal along the tensor axis; empty: none
  // By layer: its tensors. Empty: each layer is one tensor.
  std::vector<std::vector<SlabSegment>> layer_segments;
  int prefetch = 1;                 // number of layers gathered in advance
  DType param_dtype = DType::kF32;  // kF32 or kBF16: type of gathered layers
  DType grad_dtype = DType::kF32;   // kF32 or kBF16: type of gradients
  int64_t timeout_ns = 0;           // time limit of each collective; 0: the communicators' default
};

// The values are those of the C ABI (train.h).
enum class Pass : int32_t { kForward = 0, kBackward = 1 };
enum class GradientScope : int32_t { kLocal = 0, kGlobal = 1 };

struct ShardStats {
  uint64_t gather_wait_ns = 0, reduce_wait_ns = 0;
  uint64_t bytes_sent_shard = 0, bytes_sent_sync = 0;
};

// Communicators that only one LayerShards uses; null: the group has one rank.
struct ShardComms {
  std::shared_ptr<Communicator> gather, scatter, context, sync, norms;
};

class LayerShards {
 public:
  // Collective over the mesh. Returns an error if the layers or types differ between ranks.
  static absl::StatusOr<std::unique_ptr<LayerShards>> Create(std::shared_ptr<Mesh> mesh,
                                                             const ShardConfig& config);

  const Slab& slab() const { return slab_; }
  const std::shared_ptr<Mesh>& mesh() const { return mesh_; }

  // Must be called once, before all functions below.
  absl::Status Bind(LayerArrays live);
  // Binds two slabs of slab().count() elements each.
  absl::Status Bind(void* params, void* grads, DType dtype = DType::kF32);
  const LayerArrays& live() const { return live_; }
  DType param_dtype() const { return config_.param_dtype; }
  DType grad_dtype() const { return config_.grad_dtype; }
  // Returns the error after which all calls fail; OK if there is none. May be called from any
  // thread.
  absl::Status broken() const;
  // Copies this rank's part of a layer into its parameters. `full` is the whole layer, of type
  // kF32, kF64, kBF16 or kF16.
  absl::Status Load(int layer, const void* full, DType from = DType::kF32);
  // Collective; blocks. Copies replica 0's parameters to all replicas. In each replica, copies the
  // parameters of the first rank along the context axis to the other ranks of this axis.
  absl::Status Broadcast();
  // If another thread is in Broadcast or GradientNorm, makes this call fail. May be called from any
  // thread.
  void Abandon();

  // Wait, Release, Gradients and FinishGradients return kFailedPrecondition if they would block
  // inside a callback that must not block (CallbackScope).
  absl::Status BeginPass(Pass pass);
  absl::Status Gather(int layer);
  absl::StatusOr<void*> Wait(int layer);
  // Starts the gather if necessary, but does not gather layers in advance. Calls `then` once when
  // Wait would not block, with the status of Wait. The rules for `then` are those of
  // LayerGather::WhenGathered.
  absl::Status WhenGathered(int layer, Worker::Continuation then);
  absl::Status Release(int layer);

  // Makes the layer use memory of the caller for its gathered parameters and its gradients. If an
  // argument is null, the layer uses the library's memory.
  absl::Status SetBuffers(int layer, void* gathered, void* gradients);
  absl::StatusOr<void*> Gradients(int layer);
  absl::Status ReduceGradients(int layer);
  absl::Status FinishGradients();
  // Calls `then` once when the reductions started so far are over. The rules for `then` are those
  // of LayerGather::WhenGathered.
  absl::Status WhenGradientsFinished(Worker::Continuation then);
  absl::Status SetGradients(GradientScope scope);
  GradientScope gradient_scope() const { return scope_; }
  // Returns the norm of the bound gradients over the whole replica. Collective over the replica;
  // blocks.
  absl::StatusOr<double> GradientNorm();
  // Returns the stages that the gradients of this step have reached.
  ReductionStages& stages() { return stages_; }
  const ReductionStages& stages() const { return stages_; }

  ShardStats stats() const;

  // Used by an exchange of layers. Makes gathers wait until `gate` opens; null removes the gate.
  // Returns kFailedPrecondition if there is already a gate, or if a layer is gathered.
  absl::Status SetGate(LayerGate* gate);
  LayerGate* gate() const { return gate_; }
  // Returns kFailedPrecondition if a layer is gathered or being gathered. The message names the
  // layer.
  absl::Status CheckAllReleased() const;

 private:
  LayerShards(std::shared_ptr<Mesh> mesh, const ShardConfig& config, Slab slab, ShardComms comms);
  // Most public functions first call one of the three Check functions below.
  absl::Status Check(int layer) const;
  absl::Status CheckHasGradients(int layer) const;
  absl::Status CheckBound() const;
  double SquareOfGradients() const;

  const std::shared_ptr<Mesh> mesh_;
  const ShardConfig config_;
  const Slab slab_;
  const ShardComms comms_;
  ReductionStages stages_;
  BufferPool pool_;
  LayerArrays live_;
  Pass pass_ = Pass::kForward;
  GradientScope scope_ = GradientScope::kGlobal;
  LayerGate* gate_ = nullptr;
  ShardStats waits_;         // only the times are used
  uint64_t base_shard_ = 0;  // bytes sent during Create
  uint64_t base_sync_ = 0;
  LayerGather gather_;
  LayerGradients gradients_;
};

}  // namespace entrain
