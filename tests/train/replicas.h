// What tests of training share: a mesh of ranks as threads, each with a sharded model, and ways to
// move its parameters without a trainer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lib/comm/mesh.h"
#include "lib/train/layer_shards.h"
#include "lib/train/layer_sync.h"

namespace entrain {

// ---- Options that many tests begin with

// eta = 1, mu = 0: a ← mean theta.
EditOptions Averaging();
// Weights by norm, clipping, and a Nesterov step outside.
EditOptions Weighed();
// The same with a detector, which judges from the third exchange on.
EditOptions Judged();

// ---- Where they are

// True: slabs, and all that is lent, are in the memory of the test device (tests/device/cuda/on_device.h),
// each rank with a stream of its own. In programs that are made with ENTRAIN_REPLICAS_ON_DEVICE,
// from the beginning.
bool OnDevice();
void SetOnDevice(bool on_device);

// ---- Ranks

struct Grid {
  int shards = 1, replicas = 1;  // M, N
  int copies = 1;                // ranks along the context axis
  int ranks() const { return shards * replicas * copies; }
};

// A rank's model. Layer l's element i begins as Initial(l, i), the same on all replicas.
class Replica {
 public:
  Replica(std::shared_ptr<Mesh> mesh, ShardConfig config);
  ~Replica();

  const std::shared_ptr<Mesh>& mesh() const { return mesh_; }
  const std::shared_ptr<LayerShards>& shared_shards() const { return shards_; }
  LayerShards& shards() {
    Push();
    return *shards_;
  }
  int replica() const { return mesh_->coordinate(Axis::kSync); }
  int slot() const { return mesh_->coordinate(Axis::kShard); }
  int copy() const { return mesh_->coordinate(Axis::kContext); }
  // The slabs; on a device a copy of each: made when it is asked for, and brought back, if it was
  // changed, before anything else is done with the replica.
  std::vector<float>& params() { return Pull(params_); }
  std::vector<float>& grads() { return Pull(grads_); }
  // What was lent, and something in its place.
  std::vector<std::byte> Fetch(const void* lent, int64_t bytes);
  void Store(void* lent, const std::vector<std::byte>& values);
  // On a device: waits for the rank's stream.
  void FinishStream();
  void* stream() const;
  void* params_memory() const { return params_.memory; }
  // Creates the EDiT object; fails the test when it cannot.
  LayerSync& Edit(const EditOptions& options);
  LayerSync& edit() {
    Push();
    return *edit_;
  }
  void DestroyEdit() { edit_.reset(); }
  void DestroyShards() { shards_.reset(); }

  // Calls `visit` for each element of this rank's shards that is not padding.
  using Visit = std::function<void(int layer, int64_t element, float& value)>;
  void ForEach(std::vector<float>& slab, const Visit& visit) const;
  // theta := anchor + drift(layer, element).
  void DriftFromAnchor(const std::function<float(int layer, int64_t element)>& drift);
  // The next forward pass without a model: begins, waits for all layers. Whether it exchanged.
  bool Forward(bool training = true, bool first_microbatch = true);
  // Returns when all ranks of the mesh are here.
  void MeetAll();
  // A step that does nothing but count.
  void EndStep();
  std::vector<float> Anchor();

  static float Initial(int layer, int64_t element);

 private:
  struct Slab {
    std::vector<float> host, brought;  // what the test sees; what of it is on the device
    void* memory = nullptr;            // that of host, or of the device
    bool seen = false;                 // and maybe changed
  };
  class Place;  // on a device: memory and stream
  void Make(Slab& slab, size_t count, float value);
  std::vector<float>& Pull(Slab& slab);
  void Push();

  const std::shared_ptr<Mesh> mesh_;
  std::unique_ptr<Place> place_;
  std::shared_ptr<LayerShards> shards_;
  Slab params_, grads_;
  std::shared_ptr<LayerSync> edit_;
};

// Runs `body` on every rank of a mesh.
void RunMesh(const Grid& grid, const std::function<void(const std::shared_ptr<Mesh>&)>& body);
// The same with a model whose slabs are bound and loaded.
void RunReplicas(const Grid& grid, const ShardConfig& config,
                 const std::function<void(Replica&)>& body);

// A number in [-1, 1) made of the arguments.
float Noise(int64_t a, int64_t b, int64_t c = 0, int64_t d = 0);

// All layers, unpadded and one after the other, put together from the slabs of all slots.
std::vector<float> Assemble(const std::vector<std::vector<float>>& slabs,
                            const std::vector<int64_t>& layer_counts);

}  // namespace entrain
