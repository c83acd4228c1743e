#include "examples/trainer/method.h"

#include "examples/trainer/stopwatch.h"

namespace trainer {
namespace {

// The defaults of the two methods; what the user said wins.
entrain_edit_config_t ConfigOf(const Options& options, entrain_shard_t* shard) {
  const EditOptions& o = options.edit;
  const bool edit = options.method == "edit";
  entrain_edit_config_t config;
  entrain_edit_config_init(&config);
  config.shard = shard;
  config.local_sgd_sync_interval = o.local_sgd_sync_interval;
  config.local_sgd_warmup_steps = o.local_sgd_warmup_steps;
  config.gradient_accumulation_steps = static_cast<int32_t>(options.gradient_accumulation_steps);
  const bool linear = o.reducer.empty() ? edit : o.reducer == "linear";
  config.reducer = linear ? ENTRAIN_REDUCER_LINEAR : ENTRAIN_REDUCER_NONE;
  config.pseudo_gradnorm_reduce = o.pseudo_gradnorm_reduce.value_or(edit && linear) ? 1 : 0;
  config.normalize = o.normalize.value_or(true) ? 1 : 0;
  config.weight_softmax_temperature = o.weight_softmax_temperature.value_or(0.0);
  const bool sgd = o.outer_optimizer != "none";
  config.clip_pseudo_grad = o.clip_pseudo_grad.value_or(edit && (sgd || linear) ? 10.0 : 0.0);
  config.outer_optimizer = sgd ? ENTRAIN_OUTER_SGD : ENTRAIN_OUTER_NONE;
  config.outer_lr = o.outer_lr.value_or(0.7);
  config.outer_momentum = o.outer_momentum.value_or(0.8);
  config.outer_nesterov = o.outer_nesterov.value_or(sgd && config.outer_momentum > 0.0) ? 1 : 0;
  config.outer_weight_decay = o.outer_weight_decay.value_or(0.0);
  config.prefetch = o.prefetch;
  return config;
}

}  // namespace

Method::Method(const Options& options, entrain_mesh_t* mesh, entrain_shard_t* shard) {
  if (options.method == "ddp") {
    Check(entrain_shard_set_gradients(shard, ENTRAIN_GRADIENTS_GLOBAL));
    return;
  }
  const entrain_edit_config_t config = ConfigOf(options, shard);
  entrain_edit_t* edit = nullptr;
  Check(entrain_edit_create(mesh, &config, &edit));
  edit_.reset(edit);
}

bool Method::BeginForward(bool training, bool first_microbatch) {
  if (edit_ == nullptr) {
    return false;
  }
  const Waiting waiting(&waited_s_);
  int32_t syncing = 0;
  Check(entrain_edit_begin_forward(edit_.get(), training ? 1 : 0, first_microbatch ? 1 : 0,
                                   &syncing));
  return syncing != 0;
}

void Method::WaitLayer(int layer) {
  if (edit_ != nullptr) {
    const Waiting waiting(&waited_s_);
    Check(entrain_edit_wait_layer(edit_.get(), layer));
  }
}

void Method::EndStep() {
  if (edit_ != nullptr) {
    Check(entrain_edit_end_step(edit_.get()));
  }
}

void Method::Finish(int layers) {
  if (edit_ == nullptr || Info().in_warmup != 0) {
    return;
  }
  Check(entrain_edit_request_sync(edit_.get()));
  BeginForward(true, true);
  for (int layer = 0; layer < layers; ++layer) {
    WaitLayer(layer);
  }
}

uint64_t Method::anchor_checksum() const {
  return edit_ ? Info().anchor_checksum : 0;
}

uint64_t Method::bytes_sent_shard() const {
  return edit_ ? Info().bytes_sent_shard : 0;
}

uint64_t Method::bytes_sent_sync() const {
  return edit_ ? Info().bytes_sent_sync : 0;
}

entrain_edit_info_t Method::Info() const {
  entrain_edit_info_t info;
  entrain_edit_info_init(&info);
  Check(entrain_edit_info(edit_.get(), &info));
  return info;
}

}  // namespace trainer
