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
  ENTRAIN_RETURN_IF_ERROR(CheckStepsAlone(*optim, "optim"));
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
  ENTRAIN_RETURN_IF_ERROR(CheckChoice("kind", known.kind, ENTRAIN_OPTIM_WSAM, "ENTRAIN_OPTIM_*"));
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

// Makes an optimizer of kind WSAM.
absl::StatusOr<entrain_optim_t*> MakeWsam(const entrain_optim_config_t& known) {
  ENTRAIN_RETURN_IF_ERROR(NotNull(known.base, "base"));
  ENTRAIN_RETURN_IF_ERROR(CheckStepsAlone(*known.base, "base"));
  ENTRAIN_RETURN_IF_ERROR(CheckSwitch("adaptive", known.adaptive));
  ENTRAIN_RETURN_IF_ERROR(CheckSwitch("decouple", known.decouple));
  ENTRAIN_ASSIGN_OR_RETURN(auto made, entrain::Wsam::Make({.rho = known.rho,
                                                           .gamma = known.gamma,
                                                           .eps = known.sam_eps,
                                                           .max_norm = known.max_norm,
                                                           .adaptive = known.adaptive != 0,
                                                           .decouple = known.decouple != 0},
                                                          known.base->optimizer));
  return new entrain_optim{
      .optimizer = known.base->optimizer, .place = known.base->place, .wsam = std::move(made)};
}

}  // namespace

extern "C" {

entrain_status_t entrain_optim_create(const entrain_optim_config_t* config,
                                      entrain_optim_t** optim) {
  return Guard(__func__, [&]() -> absl::Status {
    entrain_optim_config_t known;
    entrain_optim_config_init(&known);
    ENTRAIN_RETURN_IF_ERROR(
        entrain::CopyStruct(config, &known, sizeof(known), "entrain_optim_config_t"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(optim, "optim"));
    if (known.kind == ENTRAIN_OPTIM_WSAM) {
      ENTRAIN_ASSIGN_OR_RETURN(*optim, MakeWsam(known));
      return absl::OkStatus();
    }
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
