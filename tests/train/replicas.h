// Shared by the tests of training: a mesh of ranks as threads, each with a sharded model, and
// functions that change its parameters without a trainer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lib/comm/mesh.h"
#include "lib/train/edit/layer_sync.h"
#include "lib/train/shard/layer_shards.h"

namespace entrain {

// ---- Options with which many tests begin

// Returns eta = 1, mu = 0: a ← mean theta.
EditOptions Averaging();
// Returns weights by norm, clipping, and a Nesterov outer step.
EditOptions Weighed();
// Returns Weighed() with a detector, which judges from the third exchange on.
EditOptions Judged();
struct NamedOptions {
  const char* name;
  EditOptions options;
};
// Returns the methods, besides Weighed(), that allow on_loss finish.
std::vector<NamedOptions> OtherMethods();

// ---- Ranks

struct Grid {
  int shards = 1, replicas = 1;  // M, N
  int copies = 1;                // ranks along the context axis
  bool hosts = false;            // each replica is on a host of its own; the ranks use tcp
  int ranks() const { return shards * replicas * copies; }
};

// A rank's model. Element i of layer l begins as Initial(l, i), equal on all replicas.
class Replica {
 public:
  Replica(std::shared_ptr<Mesh> mesh, const ShardConfig& config);

  const std::shared_ptr<Mesh>& mesh() const { return mesh_; }
  const std::shared_ptr<LayerShards>& shared_shards() const { return shards_; }
  LayerShards& shards() { return *shards_; }
  int replica() const { return mesh_->coordinate(Axis::kSync); }
  int slot() const { return mesh_->coordinate(Axis::kShard); }
  int copy() const { return mesh_->coordinate(Axis::kContext); }
  // The slabs.
  std::vector<float>& params() { return params_; }
  std::vector<float>& grads() { return grads_; }
  // Creates the EDiT object. The test fails if this fails.
  LayerSync& Edit(const EditOptions& options);
  // Creates the EDiT object by joining others.
  absl::Status Join(const EditOptions& options, int64_t wait_ns);
  LayerSync& edit() { return *edit_; }
  void DestroyEdit() { edit_.reset(); }
  void DestroyShards() { shards_.reset(); }

  // `visit` is called for each element of this rank's shards that is not padding.
  using Visit = std::function<void(int layer, int64_t element, float& value)>;
  void ForEach(std::vector<float>& slab, const Visit& visit) const;
  // Sets theta := anchor + drift(layer, element).
  void DriftFromAnchor(const std::function<float(int layer, int64_t element)>& drift);
  // Makes the next forward pass without a model: begins it and waits for all layers. Returns
  // whether it exchanged.
  bool Forward(bool training = true, bool first_microbatch = true);
  // Blocks until all ranks of the mesh have called this.
  void MeetAll();
  // Counts a step without changing parameters.
  void EndStep();
  std::vector<float> Anchor();

  static float Initial(int layer, int64_t element);

 private:
  const std::shared_ptr<Mesh> mesh_;
  std::shared_ptr<LayerShards> shards_;
  std::vector<float> params_, grads_;
  std::shared_ptr<LayerSync> edit_;
};

// Runs `body` on every rank of a mesh.
void RunMesh(const Grid& grid, const std::function<void(const std::shared_ptr<Mesh>&)>& body);
// Runs `body` with a replica whose slabs are bound and loaded.
void RunReplicas(const Grid& grid, const ShardConfig& config,
                 const std::function<void(Replica&)>& body);

// Returns a number in [-1, 1) that depends on the arguments.
float Noise(int64_t a, int64_t b, int64_t c = 0, int64_t d = 0);

// Returns all layers one after the other, without padding, from the slabs of all slots.
std::vector<float> Assemble(const std::vector<std::vector<float>>& slabs,
                            const std::vector<int64_t>& layer_counts);

}  // namespace entrain
