// Implements the functions of optim.h for optimizers over flat arrays.
#include <utility>

#include "include/entrain/optim.h"
#include "lib/api/arguments.h"
#include "lib/api/boundary.h"
#include "lib/api/handles.h"
#include "lib/api/settings.h"
#include "lib/api/step_arguments.h"
#include "lib/base/config.h"
#include "lib/base/status.h"

using namespace entrain::api;  // NOLINT: the functions of the C API are global

namespace {

absl::Status Run(const entrain_optim_t* optim, const GivenStep& given, entrain::Apply apply) {
  ENTRAIN_RETURN_IF_ERROR(NotNull(optim, "optim"));
  const entrain::Optimizer& optimizer = *optim->optimizer;
  CheckedStep checked;
  ENTRAIN_RETURN_IF_ERROR(CheckStep(given, optimizer, apply, &checked));
  if (checked.args.count == 0) {
    return absl::OkStatus();
  }
  return RunWhere(optim->place, ArraysOf(given, optimizer),
                  [&] { optimizer.Step(checked.args, apply); });
}

absl::StatusOr<entrain::OptimizerConfig> ToConfig(const entrain_optim_config_t& known) {
  ENTRAIN_RETURN_IF_ERROR(CheckChoice("kind", known.kind, ENTRAIN_OPTIM_AGD, "ENTRAIN_OPTIM_*"));
  ENTRAIN_RETURN_IF_ERROR(
      CheckChoice("decay", known.decay, ENTRAIN_DECAY_COUPLED, "ENTRAIN_DECAY_*"));
  ENTRAIN_RETURN_IF_ERROR(CheckSwitch("nesterov", known.nesterov));
  ENTRAIN_RETURN_IF_ERROR(CheckSwitch("amsgrad", known.amsgrad));
  ENTRAIN_RETURN_IF_ERROR(CheckSwitch("win", known.win));
  return entrain::OptimizerConfig{.kind = entrain::OptimizerKind{known.kind},
                                  .momentum = known.momentum,
                                  .nesterov = known.nesterov != 0,
                                  .beta1 = known.beta1,
                                  .beta2 = known.beta2,
                                  .eps = known.eps,
                                  .weight_decay = known.weight_decay,
                                  .decay = entrain::WeightDecay{known.decay},
                                  .delta = known.delta,
                                  .clip = known.clip,
                                  .amsgrad = known.amsgrad != 0,
                                  .win = known.win != 0};
}

}  // namespace

extern "C" {

void entrain_optim_config_init_sized(entrain_optim_config_t* config, size_t bytes) {
  entrain_optim_config_t defaults = {};
  defaults.kind = ENTRAIN_OPTIM_SGD;
  defaults.beta1 = 0.9;
  defaults.beta2 = 0.999;
  defaults.eps = 1e-8;
  defaults.delta = 1e-5;
  WriteDefaults(defaults, config, bytes);
}

entrain_status_t entrain_optim_create(const entrain_optim_config_t* config,
                                      entrain_optim_t** optim) {
  return Guard(__func__, [&]() -> absl::Status {
    entrain_optim_config_t known;
    entrain_optim_config_init(&known);
    ENTRAIN_RETURN_IF_ERROR(
        entrain::CopyStruct(config, &known, sizeof(known), "entrain_optim_config_t"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(optim, "optim"));
    ENTRAIN_ASSIGN_OR_RETURN(const entrain::OptimizerConfig rule, ToConfig(known));
    ENTRAIN_RETURN_IF_ERROR(CheckTimeout(known.timeout_ns));
    ArrayPlace place{known.memory, known.stream};
    if (known.timeout_ns > 0) {
      place.limit_ns = known.timeout_ns;
    }
    ENTRAIN_RETURN_IF_ERROR(CheckArrayPlace(place));
    ENTRAIN_ASSIGN_OR_RETURN(auto made, entrain::MakeOptimizer(rule));
    *optim = new entrain_optim{.optimizer = std::move(made), .place = place};
    return absl::OkStatus();
  });
}

void entrain_optim_destroy(entrain_optim_t* optim) {
  Destroy(__func__, optim);
}

entrain_status_t entrain_optim_set_stream(entrain_optim_t* optim, void* stream) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(optim, "optim"));
    return SetStream(stream, &optim->place);
  });
}

entrain_status_t entrain_optim_state_arrays(const entrain_optim_t* optim, int32_t* arrays) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(optim, "optim"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(arrays, "arrays"));
    *arrays = optim->optimizer->state_arrays();
    return absl::OkStatus();
  });
}

entrain_status_t entrain_optim_step(const entrain_optim_t* optim, void* params, const void* grads,
                                    void* const* state, size_t count, entrain_dtype_t dtype,
                                    int64_t step, double lr) {
  return Guard(__func__, [&] {
    return Run(optim,
               {.params = params,
                .grads = grads,
                .state = state,
                .count = count,
                .dtype = dtype,
                .step = step,
                .lr = lr},
               entrain::Apply::kCommit);
  });
}

entrain_status_t entrain_optim_preview(const entrain_optim_t* optim, const void* params,
                                       const void* grads, const void* const* state, void* out,
                                       size_t count, entrain_dtype_t dtype, int64_t step,
                                       double lr) {
  return Guard(__func__, [&] {
    // GivenStep has no const pointers, because a step writes these arrays. A preview does not write
    // them.
    return Run(optim,
               {.params = const_cast<void*>(params),
                .grads = grads,
                .state = const_cast<void* const*>(state),
                .out = out,
                .count = count,
                .dtype = dtype,
                .step = step,
                .lr = lr},
               entrain::Apply::kPreview);
  });
}

void entrain_optim_info_init_sized(entrain_optim_info_t* info, size_t bytes) {
  entrain_optim_info_t defaults = {};
  WriteDefaults(defaults, info, bytes);
}

entrain_status_t entrain_optim_info(const entrain_optim_t* optim, entrain_optim_info_t* info) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(optim, "optim"));
    const entrain::BranchCounts counts = optim->optimizer->branches();
    const entrain_optim_info_t known = {.size = sizeof(known),
                                        .elements = static_cast<uint64_t>(counts.elements),
                                        .adaptive = static_cast<uint64_t>(counts.adaptive)};
    return WriteStruct(&known, sizeof(known), info, "entrain_optim_info_t");
  });
}

}  // extern "C"
