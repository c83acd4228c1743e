#include "examples/trainer/presets.h"

#include <algorithm>
#include <initializer_list>
#include <string>

namespace trainer {
namespace {

int32_t ReducerOf(const std::string& name, bool edit) {
  if (name.empty()) {
    return edit ? ENTRAIN_REDUCER_LINEAR : ENTRAIN_REDUCER_NONE;
  }
  return name == "gta"      ? ENTRAIN_REDUCER_GTA
         : name == "linear" ? ENTRAIN_REDUCER_LINEAR
                            : ENTRAIN_REDUCER_NONE;
}

void SetOuter(const Options& options, entrain_edit_config_t* config) {
  const EditOptions& o = options.edit;
  const bool none = o.outer_optimizer == "none" ||
                    (o.outer_optimizer.empty() && options.method == "post-local-sgd");
  const bool adamw = o.outer_optimizer == "adamw";
  config->outer_optimizer = none    ? ENTRAIN_OUTER_NONE
                            : adamw ? ENTRAIN_OUTER_ADAMW
                                    : ENTRAIN_OUTER_SGD;
  const bool late = options.method == "co2" && !none && !adamw;  // it bears less
  config->outer_lr = o.outer_lr.value_or(late ? 1.0 : config->outer_lr);
  config->outer_momentum = o.outer_momentum.value_or(late ? 0.2 : config->outer_momentum);
  const bool nesterov = !none && !adamw && config->outer_momentum > 0.0 && options.method != "co2";
  config->outer_nesterov = o.outer_nesterov.value_or(nesterov) ? 1 : 0;
  config->outer_weight_decay = o.outer_weight_decay.value_or(0.0);
  config->outer_beta1 = o.outer_beta1.value_or(config->outer_beta1);
  config->outer_beta2 = o.outer_beta2.value_or(config->outer_beta2);
  config->outer_eps = o.outer_eps.value_or(config->outer_eps);
}

void SetTrigger(const Options& options, entrain_edit_config_t* config) {
  const EditOptions& o = options.edit;
  config->use_async = options.method == "a-edit" ? 1 : 0;
  if (config->use_async == 0) {
    config->local_sgd_sync_interval = o.local_sgd_sync_interval;
  }
  config->local_sgd_sync_time = o.local_sgd_sync_time.value_or(config->local_sgd_sync_time);
  config->min_total_global_steps =
      o.min_total_global_steps.value_or(config->min_total_global_steps);
  config->use_step_weight = o.use_step_weight ? 1 : 0;
  config->step_weight_ratio = o.step_weight_ratio.value_or(config->step_weight_ratio);
  config->local_sgd_warmup_steps = o.local_sgd_warmup_steps;
  config->gradient_accumulation_steps = static_cast<int32_t>(options.gradient_accumulation_steps);
  config->prefetch = o.prefetch;
}

// The first name is the default, and an empty one too.
int32_t Find(const std::string& name, std::initializer_list<const char*> names) {
  int32_t value = 0;
  for (const char* one : names) {
    if (name == one) {
      return value;
    }
    ++value;
  }
  return 0;
}

void SetLate(const Options& options, int layers, entrain_edit_config_t* config) {
  const EditOptions& o = options.edit;
  const bool co2 = options.method == "co2", streaming = options.method == "streaming-diloco";
  config->overlap_steps = options.overlap_steps();
  const bool late = config->overlap_steps > 0;
  const char* const merge = !late ? "add" : co2 ? "restart" : streaming ? "mix" : "add";
  config->overlap_merge =
      Find(o.overlap_merge.empty() ? merge : o.overlap_merge, {"add", "mix", "restart"});
  config->overlap_mix = o.overlap_mix.value_or(config->overlap_mix);
  const bool sgd = config->outer_optimizer == ENTRAIN_OUTER_SGD;
  config->staleness_penalty = o.staleness_penalty.value_or(co2 && late && sgd) ? 1 : 0;
  const bool clips = co2 && sgd && config->outer_momentum > 0.0 && config->outer_nesterov == 0;
  config->outer_momentum_clip = o.outer_momentum_clip.value_or(clips ? 10.0 : 0.0);
  config->fragments =
      static_cast<int32_t>(o.fragments.value_or(streaming ? std::min(layers, 8) : 1));
  const char* const pattern = streaming && config->fragments > 1 ? "strided" : "sequential";
  config->fragment_pattern =
      Find(o.fragment_pattern.empty() ? pattern : o.fragment_pattern, {"sequential", "strided"});
}

void SetTravel(const Options& options, entrain_edit_config_t* config) {
  const EditOptions& o = options.edit;
  config->consensus_method = Find(o.consensus_method, {"none", "sum", "count"});
  config->sparsification_method =
      Find(o.sparsification_method, {"none", "magnitude", "random", "rescaled_random"});
  config->density = o.density;
  const bool streaming = options.method == "streaming-diloco";
  config->wire_format = Find(o.wire_format.empty() && streaming ? "int4" : o.wire_format,
                             {"f32", "bf16", "int8", "int4"});
  config->wire_block = o.wire_block;
  config->wire_rounding = Find(o.wire_rounding, {"nearest", "stochastic"});
  config->error_feedback = o.error_feedback ? 1 : 0;
  config->int8_mask = o.int8_mask ? 1 : 0;
}

}  // namespace

entrain_edit_config_t ConfigOf(const Options& options, int layers) {
  const EditOptions& o = options.edit;
  const bool edit = options.method == "edit" || options.method == "a-edit";
  entrain_edit_config_t config;
  entrain_edit_config_init(&config);
  SetTrigger(options, &config);
  SetOuter(options, &config);
  config.reducer = ReducerOf(o.reducer, edit);
  const bool reduces = config.reducer != ENTRAIN_REDUCER_NONE;
  const bool anchored = reduces || config.outer_optimizer != ENTRAIN_OUTER_NONE;
  SetTravel(options, &config);
  SetLate(options, layers, &config);
  config.pseudo_gradnorm_reduce = o.pseudo_gradnorm_reduce.value_or(edit && reduces) ? 1 : 0;
  config.normalize = o.normalize.value_or(true) ? 1 : 0;
  config.weight_softmax_temperature = o.weight_softmax_temperature.value_or(0.0);
  config.clip_pseudo_grad = o.clip_pseudo_grad.value_or(edit && anchored ? 10.0 : 0.0);
  config.skip_anomaly = o.skip_anomaly.value_or(edit && anchored) ? 1 : 0;
  config.ewma_alpha = o.ewma_alpha.value_or(config.ewma_alpha);
  config.ewma_warmup_steps = o.ewma_warmup_steps.value_or(config.ewma_warmup_steps);
  config.ewma_threshold = o.ewma_threshold.value_or(config.ewma_threshold);
  config.cpu_offload = o.cpu_offload ? 1 : 0;
  config.is_debug = o.is_debug ? 1 : 0;
  return config;
}

}  // namespace trainer
