// optim.h: optimizers over flat arrays.
#include <array>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#include "include/entrain/optim.h"
#include "lib/api/arguments.h"
#include "lib/api/boundary.h"
#include "lib/api/handles.h"
#include "lib/base/config.h"
#include "lib/base/status.h"

using namespace entrain::api;  // NOLINT: the functions of the C API are global
using entrain::DType;

namespace {

constexpr int kMaxStateArrays = 8;

struct Step {
  const entrain_optim_t* optim;
  void* params;
  const void* grads;
  void* const* state;
  void* out;  // null: in place
  size_t count;
  entrain_dtype_t dtype;
  int64_t step;
  double lr;
};

absl::Status CheckArray(const char* name, const void* array, int64_t count) {
  return CheckBuffer(name, array, count * static_cast<int64_t>(sizeof(float)), DType::kF32);
}

// Parameters, states and output are written while the others are read, so no two of them may share
// memory.
absl::Status CheckApart(absl::Span<const void* const> arrays, int64_t count) {
  const int64_t bytes = count * static_cast<int64_t>(sizeof(float));
  for (size_t i = 0; i < arrays.size(); ++i) {
    for (size_t j = i + 1; j < arrays.size(); ++j) {
      if (Overlap(arrays[i], bytes, arrays[j], bytes)) {
        return absl::InvalidArgumentError("two of params, grads, state and out overlap");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Run(const Step& given, entrain::Apply apply) {
  ENTRAIN_RETURN_IF_ERROR(NotNull(given.optim, "optim"));
  const entrain::Optimizer& optimizer = *given.optim->optimizer;
  ENTRAIN_RETURN_IF_ERROR(CheckF32(given.dtype, "optimizers step arrays of f32"));
  ENTRAIN_ASSIGN_OR_RETURN(const int64_t count, CheckCount(given.count, DType::kF32, 1));
  ENTRAIN_RETURN_IF_ERROR(CheckArray("params", given.params, count));
  ENTRAIN_RETURN_IF_ERROR(CheckArray("grads", given.grads, count));
  std::array<const void*, kMaxStateArrays + 3> arrays = {given.params, given.grads};
  std::array<float*, kMaxStateArrays> state{};
  size_t used = 2;
  const int states = optimizer.state_arrays();
  if (states > 0 && count > 0) {
    ENTRAIN_RETURN_IF_ERROR(NotNull(given.state, "state"));
    for (int i = 0; i < states; ++i) {
      ENTRAIN_RETURN_IF_ERROR(
          CheckArray(absl::StrCat("state[", i, "]").c_str(), given.state[i], count));
      arrays[used++] = given.state[i];
      state[static_cast<size_t>(i)] = static_cast<float*>(given.state[i]);
    }
  }
  if (apply == entrain::Apply::kPreview) {
    ENTRAIN_RETURN_IF_ERROR(CheckArray("out", given.out, count));
    arrays[used++] = given.out;
  }
  ENTRAIN_RETURN_IF_ERROR(CheckApart({arrays.data(), used}, count));
  if (given.step < 1) {
    return absl::InvalidArgumentError(absl::StrCat("step ", given.step, " is less than 1"));
  }
  if (!std::isfinite(given.lr) || given.lr < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("lr ", given.lr, " is not a finite number >= 0"));
  }
  if (count == 0) {
    return absl::OkStatus();
  }
  optimizer.Step({.count = count,
                  .master = static_cast<float*>(given.params),
                  .grads = static_cast<const float*>(given.grads),
                  .state = {state.data(), static_cast<size_t>(states)},
                  .out = static_cast<float*>(given.out),
                  .step = given.step,
                  .lr = given.lr},
                 apply);
  return absl::OkStatus();
}

absl::StatusOr<entrain::OptimizerConfig> ToConfig(const entrain_optim_config_t& known) {
  ENTRAIN_RETURN_IF_ERROR(CheckChoice("kind", known.kind, ENTRAIN_OPTIM_AGD, "ENTRAIN_OPTIM_*"));
  ENTRAIN_RETURN_IF_ERROR(
      CheckChoice("decay", known.decay, ENTRAIN_DECAY_COUPLED, "ENTRAIN_DECAY_*"));
  ENTRAIN_RETURN_IF_ERROR(CheckSwitch("nesterov", known.nesterov));
  ENTRAIN_RETURN_IF_ERROR(CheckSwitch("amsgrad", known.amsgrad));
  ENTRAIN_RETURN_IF_ERROR(CheckSwitch("win", known.win));
  ENTRAIN_RETURN_IF_ERROR(CheckReserved("reserved", known.reserved));
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

void entrain_optim_config_init(entrain_optim_config_t* config) {
  *config = {};
  config->size = sizeof(*config);
  config->kind = ENTRAIN_OPTIM_SGD;
  config->beta1 = 0.9;
  config->beta2 = 0.999;
  config->eps = 1e-8;
  config->delta = 1e-5;
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
    ENTRAIN_ASSIGN_OR_RETURN(auto made, entrain::MakeOptimizer(rule));
    *optim = new entrain_optim{std::move(made)};
    return absl::OkStatus();
  });
}

void entrain_optim_destroy(entrain_optim_t* optim) {
  delete optim;
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
    return Run({optim, params, grads, state, nullptr, count, dtype, step, lr},
               entrain::Apply::kCommit);
  });
}

entrain_status_t entrain_optim_preview(const entrain_optim_t* optim, const void* params,
                                       const void* grads, const void* const* state, void* out,
                                       size_t count, entrain_dtype_t dtype, int64_t step,
                                       double lr) {
  return Guard(__func__, [&] {
    // A preview writes neither the parameters nor the state; one type serves both kinds of step.
    return Run({optim, const_cast<void*>(params), grads, const_cast<void* const*>(state), out,
                count, dtype, step, lr},
               entrain::Apply::kPreview);
  });
}

void entrain_optim_info_init(entrain_optim_info_t* info) {
  *info = {};
  info->size = sizeof(*info);
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
