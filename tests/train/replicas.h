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

// ---- Ranks

struct Grid {
  int shards = 1, replicas = 1;  // M, N
  int ranks() const { return shards * replicas; }
};

// A rank's model. Layer l's element i begins as Initial(l, i), the same on all replicas.
class Replica {
 public:
  Replica(std::shared_ptr<Mesh> mesh, const ShardConfig& config);

  const std::shared_ptr<Mesh>& mesh() const { return mesh_; }
  LayerShards& shards() { return *shards_; }
  int replica() const { return mesh_->coordinate(Axis::kSync); }
  int slot() const { return mesh_->coordinate(Axis::kShard); }
  std::vector<float>& params() { return params_; }
  std::vector<float>& grads() { return grads_; }
  // Creates the EDiT object; fails the test when it cannot.
  LayerSync& Edit(const EditOptions& options);
  LayerSync& edit() { return *edit_; }
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
  std::vector<float> Anchor() const;

  static float Initial(int layer, int64_t element);

 private:
  const std::shared_ptr<Mesh> mesh_;
  std::unique_ptr<LayerShards> shards_;
  std::vector<float> params_, grads_;
  std::unique_ptr<LayerSync> edit_;
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
