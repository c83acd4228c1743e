// Implements the functions of optim.h for steps of WSAM. entrain_optim_create makes the optimizer.
#include <cmath>

#include "absl/strings/str_cat.h"

#include "include/entrain/optim.h"
#include "lib/api/arguments.h"
#include "lib/api/boundary.h"
#include "lib/api/handles.h"
#include "lib/api/step_arguments.h"
#include "lib/base/config.h"
#include "lib/base/status.h"
#include "lib/device/device.h"

using namespace entrain::api;  // NOLINT: the functions of the C API are global
using entrain::DType;

namespace {

absl::Status CheckWsam(const entrain_optim_t* wsam) {
  ENTRAIN_RETURN_IF_ERROR(NotNull(wsam, "wsam"));
  return wsam->wsam != nullptr
             ? absl::OkStatus()
             : absl::InvalidArgumentError(
                   "wsam is an optimizer of another kind, not of ENTRAIN_OPTIM_WSAM");
}

// Makes the checks that are common to all calls on arrays. Returns the number of elements.
absl::StatusOr<int64_t> CheckArrays(const entrain_optim_t* wsam,
                                    absl::Span<const NamedArray> arrays, size_t given,
                                    entrain_dtype_t dtype) {
  ENTRAIN_RETURN_IF_ERROR(CheckWsam(wsam));
  ENTRAIN_RETURN_IF_ERROR(CheckF32(dtype, "optimizers step arrays of f32"));
  ENTRAIN_ASSIGN_OR_RETURN(const int64_t count, CheckCount(given, DType::kF32, 1));
  for (const NamedArray& each : arrays) {
    ENTRAIN_RETURN_IF_ERROR(CheckF32Array(each.name, each.array, count));
  }
  return count;
}

absl::Status CheckSum(const char* name, double sum) {
  if (!std::isfinite(sum) || sum < 0) {
    return absl::InvalidArgumentError(absl::StrCat(name, " ", sum, " is not a finite number >= 0"));
  }
  return absl::OkStatus();
}

float* Floats(void* array) {
  return static_cast<float*>(array);
}
const float* Floats(const void* array) {
  return static_cast<const float*>(array);
}

absl::Status Run(const entrain_optim_t* wsam, const GivenStep& given, const double* sums,
                 entrain::Apply apply) {
  ENTRAIN_RETURN_IF_ERROR(CheckWsam(wsam));
  const entrain::Wsam& rule = *wsam->wsam;
  CheckedStep checked;
  ENTRAIN_RETURN_IF_ERROR(CheckStep(given, rule.base(), apply, &checked));
  entrain::WsamStep step = {.args = checked.args, .second = Floats(given.second)};
  if (rule.config().max_norm > 0) {
    ENTRAIN_RETURN_IF_ERROR(NotNull(sums, "sums"));
    ENTRAIN_RETURN_IF_ERROR(CheckSum("sums[0]", sums[0]));
    ENTRAIN_RETURN_IF_ERROR(CheckSum("sums[1]", sums[1]));
    step.sum = sums[0];
    step.second_sum = sums[1];
  }
  absl::Status stepped;
  ENTRAIN_RETURN_IF_ERROR(RunWhere(wsam->place, ArraysOf(given, rule.base()),
                                   [&] { stepped = rule.Step(step, apply); }));
  return stepped;
}

}  // namespace

extern "C" {

entrain_status_t entrain_wsam_ascent_sum(const entrain_optim_t* wsam, const void* params,
                                         const void* grads, size_t count, entrain_dtype_t dtype,
                                         double* sum) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_ASSIGN_OR_RETURN(
        const int64_t n, CheckArrays(wsam, {{"params", params}, {"grads", grads}}, count, dtype));
    ENTRAIN_RETURN_IF_ERROR(NotNull(sum, "sum"));
    double found = 0;
    ENTRAIN_RETURN_IF_ERROR(RunWhere(wsam->place, {{"params", params}, {"grads", grads}}, [&] {
      found = wsam->wsam->AscentSum(Floats(params), Floats(grads), n);
    }));
    *sum = found;
    return absl::OkStatus();
  });
}

entrain_status_t entrain_wsam_ascend(const entrain_optim_t* wsam, void* params, void* saved,
                                     const void* grads, size_t count, entrain_dtype_t dtype,
                                     double sum) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_ASSIGN_OR_RETURN(
        const int64_t n,
        CheckArrays(wsam, {{"params", params}, {"saved", saved}, {"grads", grads}}, count, dtype));
    ENTRAIN_RETURN_IF_ERROR(CheckApart({params, saved, grads}, n, "params, saved and grads"));
    ENTRAIN_RETURN_IF_ERROR(CheckSum("sum", sum));
    return RunWhere(wsam->place, {{"params", params}, {"saved", saved}, {"grads", grads}}, [&] {
      wsam->wsam->Ascend(Floats(params), Floats(saved), Floats(grads), n, sum);
    });
  });
}

entrain_status_t entrain_wsam_return(const entrain_optim_t* wsam, void* params, const void* saved,
                                     size_t count, entrain_dtype_t dtype) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_ASSIGN_OR_RETURN(
        const int64_t n, CheckArrays(wsam, {{"params", params}, {"saved", saved}}, count, dtype));
    ENTRAIN_RETURN_IF_ERROR(CheckApart({params, saved}, n, "params and saved"));
    return RunWhere(wsam->place, {{"params", params}, {"saved", saved}}, [&] {
      entrain::CopyArray(params, saved, n * static_cast<int64_t>(sizeof(float)));
    });
  });
}

entrain_status_t entrain_wsam_combine(const entrain_optim_t* wsam, const void* grads,
                                      const void* second, void* out, size_t count,
                                      entrain_dtype_t dtype) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_ASSIGN_OR_RETURN(
        const int64_t n,
        CheckArrays(wsam, {{"grads", grads}, {"second", second}, {"out", out}}, count, dtype));
    ENTRAIN_RETURN_IF_ERROR(CheckApart({grads, second}, n, "grads and second"));
    for (const void* const source : {grads, second}) {
      if (out != source) {
        ENTRAIN_RETURN_IF_ERROR(CheckApart({source, out}, n, "grads, second and out"));
      }
    }
    const entrain::WsamConfig& config = wsam->wsam->config();
    if (config.decouple || config.max_norm > 0) {
      return absl::FailedPreconditionError(
          config.decouple ? "decouple is 1: both gradients are needed apart, in the step"
                          : "max_norm is set: both gradients are clipped first, in the step");
    }
    return RunWhere(wsam->place, {{"grads", grads}, {"second", second}, {"out", out}},
                    [&] { wsam->wsam->Combine(Floats(out), Floats(grads), Floats(second), n); });
  });
}

entrain_status_t entrain_wsam_step(const entrain_optim_t* wsam, void* params, const void* grads,
                                   const void* second, const double* sums, void* const* state,
                                   size_t count, entrain_dtype_t dtype, int64_t step, double lr) {
  return Guard(__func__, [&] {
    return Run(wsam,
               {.params = params,
                .grads = grads,
                .takes_second = true,
                .second = second,
                .state = state,
                .count = count,
                .dtype = dtype,
                .step = step,
                .lr = lr},
               sums, entrain::Apply::kCommit);
  });
}

entrain_status_t entrain_wsam_preview(const entrain_optim_t* wsam, const void* params,
                                      const void* grads, const void* second, const double* sums,
                                      const void* const* state, void* out, size_t count,
                                      entrain_dtype_t dtype, int64_t step, double lr) {
  return Guard(__func__, [&] {
    return Run(wsam,
               {.params = const_cast<void*>(params),
                .grads = grads,
                .takes_second = true,
                .second = second,
                .state = const_cast<void* const*>(state),
                .out = out,
                .count = count,
                .dtype = dtype,
                .step = step,
                .lr = lr},
               sums, entrain::Apply::kPreview);
  });
}

}  // extern "C"
