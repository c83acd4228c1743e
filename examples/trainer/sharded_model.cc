#include "examples/trainer/sharded_model.h"

#include <algorithm>

#include "examples/trainer/kernels.h"
#include "examples/trainer/stopwatch.h"

namespace trainer {

ShardedModel::ShardedModel(entrain_mesh_t* mesh, const Task& task, bool bf16, int prefetch)
    : task_(task), bf16_(bf16) {
  std::vector<size_t> counts;
  for (int layer = 0; layer < task.layers(); ++layer) {
    counts.push_back(static_cast<size_t>(task.layer_size(layer)));
  }
  entrain_shard_config_t shard_config;
  entrain_shard_config_init(&shard_config);
  shard_config.layers = static_cast<int32_t>(counts.size());
  shard_config.layer_counts = counts.data();
  shard_config.prefetch = prefetch;
  shard_config.param_dtype = bf16 ? ENTRAIN_BF16 : ENTRAIN_F32;
  shard_config.grad_dtype = shard_config.param_dtype;
  entrain_shard_t* shard = nullptr;
  Check(entrain_shard_create(mesh, &shard_config, &shard));
  shard_.reset(shard);

  size_t slab = 0;
  Check(entrain_shard_slab_count(shard, &slab));
  masters_.resize(slab);
  gradients_.resize(slab);
  Check(entrain_shard_bind(shard, masters_.data(), gradients_.data(), ENTRAIN_F32));
  if (bf16) {
    const size_t largest = *std::max_element(counts.begin(), counts.end());
    wide_params_.resize(largest);
    wide_grads_.resize(largest);
  }
  Load();
}

void ShardedModel::Load() {
  std::vector<float> full;
  for (int layer = 0; layer < task_.layers(); ++layer) {
    full.resize(static_cast<size_t>(task_.layer_size(layer)));
    task_.InitialiseLayer(layer, full.data());
    Check(entrain_shard_load(shard_.get(), layer, full.data(), ENTRAIN_F32));
  }
  const uint64_t before = Stats().bytes_sent_sync;
  Check(entrain_shard_broadcast(shard_.get(), nullptr));
  bytes_sent_init_ = Stats().bytes_sent_sync - before;
}

void ShardedModel::BeginPass(int32_t pass) {
  const Waiting waiting(&waited_s_);
  Check(entrain_shard_begin_pass(shard_.get(), pass));
}

const float* ShardedModel::Acquire(int layer) {
  void* params = nullptr;
  {
    const Waiting waiting(&waited_s_);
    Check(entrain_shard_wait(shard_.get(), layer, &params));
  }
  const float* at = static_cast<const float*>(params);
  if (bf16_) {
    WidenBf16(static_cast<const uint16_t*>(params), wide_params_.data(), task_.layer_size(layer));
    at = wide_params_.data();
  }
  return sharpness_ != nullptr ? sharpness_->Move(layer, at) : at;
}

void ShardedModel::Release(int layer) {
  Check(entrain_shard_release(shard_.get(), layer));
}

void ShardedModel::Forward(Pass* pass, const std::function<void(int layer)>& before) {
  BeginPass(ENTRAIN_PASS_FORWARD);
  for (int layer = 0; layer < task_.layers(); ++layer) {
    before(layer);
    pass->Forward(layer, Acquire(layer));
    Release(layer);
  }
}

void ShardedModel::Backward(Pass* pass, float scale) {
  BeginPass(ENTRAIN_PASS_BACKWARD);
  for (int layer = task_.layers() - 1; layer >= 0; --layer) {
    BackwardLayer(pass, layer, scale);
  }
}

void ShardedModel::BackwardLayer(Pass* pass, int layer, float scale) {
  const float* params = Acquire(layer);
  void* grads = nullptr;
  {
    const Waiting waiting(&waited_s_);
    Check(entrain_shard_gradients(shard_.get(), layer, &grads));
  }
  if (bf16_) {
    const int64_t size = task_.layer_size(layer);
    std::fill(wide_grads_.begin(), wide_grads_.end(), 0.0f);
    pass->Backward(layer, params, scale, wide_grads_.data());
    TellSharpness(layer, params, wide_grads_.data());
    NarrowBf16(wide_grads_.data(), static_cast<uint16_t*>(grads), size);
  } else {
    pass->Backward(layer, params, scale, static_cast<float*>(grads));
    TellSharpness(layer, params, static_cast<float*>(grads));
  }
  Release(layer);
  const Waiting waiting(&waited_s_);
  Check(entrain_shard_reduce_gradients(shard_.get(), layer));
}

void ShardedModel::TellSharpness(int layer, const float* params, const float* grads) {
  if (sharpness_ != nullptr) {
    sharpness_->AddOwn(layer, params, grads);
  }
}

void ShardedModel::FinishGradients() {
  const Waiting waiting(&waited_s_);
  Check(entrain_shard_finish_gradients(shard_.get()));
}

std::vector<std::vector<float>> ShardedModel::Collect() {
  std::vector<std::vector<float>> layers;
  BeginPass(ENTRAIN_PASS_FORWARD);
  for (int layer = 0; layer < task_.layers(); ++layer) {
    const float* const params = Acquire(layer);
    layers.emplace_back(params, params + task_.layer_size(layer));
    Release(layer);
  }
  return layers;
}

entrain_shard_stats_t ShardedModel::Stats() const {
  entrain_shard_stats_t stats;
  entrain_shard_stats_init(&stats);
  Check(entrain_shard_stats(shard_.get(), &stats));
  return stats;
}

}  // namespace trainer
