// The model's parameters, spread over the ranks of a replica by entrain_shard_*. A layer is
// gathered just before its use and released afterwards. A layer's gradients are sent as soon as
// they are complete. No other unit uses the sharding calls. Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "examples/trainer/api.h"
#include "examples/trainer/sharpness.h"
#include "examples/trainer/task.h"

namespace trainer {

class ShardedModel {
 public:
  // Collective. Starts with the parameters of the seed, which replica 0 broadcasts. `task` must
  // outlive the object.
  ShardedModel(entrain_mesh_t* mesh, const Task& task, bool bf16, int prefetch);

  // Runs all layers of `pass` upwards. Calls `before` before each layer is gathered.
  void Forward(Pass* pass, const std::function<void(int layer)>& before);
  // Runs all layers backwards, and starts the reduction of each layer's gradient of (scale * loss).
  void Backward(Pass* pass, float scale);
  // Waits until all started reductions have been added to gradients().
  void FinishGradients();

  // Makes later passes use `sharpness`, for sharpness-aware steps. `sharpness` must outlive the
  // object.
  void SetSharpness(Sharpness* sharpness) { sharpness_ = sharpness; }

  // Returns the whole model, every layer as f32. Collective over the replica.
  std::vector<std::vector<float>> Collect();

  // This rank's part: f32 masters, and f32 gradients. Reductions add to the gradients, and no
  // function clears them.
  std::vector<float>& masters() { return masters_; }
  std::vector<float>& gradients() { return gradients_; }
  entrain_shard_t* handle() const { return shard_.get(); }

  // Return the time spent waiting in the calls above, and the payload bytes sent by these calls,
  // since creation.
  double waited_s() const { return waited_s_; }
  uint64_t bytes_sent_shard() const { return Stats().bytes_sent_shard; }
  uint64_t bytes_sent_sync() const { return Stats().bytes_sent_sync - bytes_sent_init_; }
  // Returns the bytes of the broadcast at the start.
  uint64_t bytes_sent_init() const { return bytes_sent_init_; }

 private:
  void Load();
  void BeginPass(int32_t pass);
  // Returns the layer's parameters as f32, valid until Release or the next Acquire.
  const float* Acquire(int layer);
  void Release(int layer);
  void BackwardLayer(Pass* pass, int layer, float scale);
  void TellSharpness(int layer, const float* params, const float* grads);
  entrain_shard_stats_t Stats() const;

  const Task& task_;
  const bool bf16_;
  Sharpness* sharpness_ = nullptr;
  std::vector<float> masters_, gradients_;       // lent to the shard, which is destroyed first
  std::vector<float> wide_params_, wide_grads_;  // bf16 only: one layer in f32
  ShardHandle shard_;
  double waited_s_ = 0.0;
  uint64_t bytes_sent_init_ = 0;
};

}  // namespace trainer
