#include "lib/api/step_arguments.h"

#include <cmath>

#include "absl/strings/str_cat.h"

#include "lib/api/arguments.h"
#include "lib/api/boundary.h"
#include "lib/base/status.h"

namespace entrain::api {

absl::Status CheckF32Array(const char* name, const void* array, int64_t count) {
  return CheckBuffer(name, array, count * static_cast<int64_t>(sizeof(float)), DType::kF32);
}

absl::Status CheckApart(absl::Span<const void* const> arrays, int64_t count, const char* names) {
  const int64_t bytes = count * static_cast<int64_t>(sizeof(float));
  for (size_t i = 0; i < arrays.size(); ++i) {
    for (size_t j = i + 1; j < arrays.size(); ++j) {
      if (Overlap(arrays[i], bytes, arrays[j], bytes)) {
        return absl::InvalidArgumentError(absl::StrCat("two of ", names, " overlap"));
      }
    }
  }
  return absl::OkStatus();
}

std::vector<NamedArray> ArraysOf(const GivenStep& given, const Optimizer& optimizer) {
  std::vector<NamedArray> arrays = {{"params", given.params},
                                    {"grads", given.grads},
                                    {"second", given.second},
                                    {"out", given.out}};
  for (int i = 0; i < optimizer.state_arrays(); ++i) {
    arrays.push_back({"state", given.state[i]});
  }
  return arrays;
}

absl::Status CheckStep(const GivenStep& given, const Optimizer& optimizer, Apply apply,
                       CheckedStep* checked) {
  ENTRAIN_RETURN_IF_ERROR(CheckF32(given.dtype, "optimizers step arrays of f32"));
  ENTRAIN_ASSIGN_OR_RETURN(const int64_t count, CheckCount(given.count, DType::kF32, 1));
  ENTRAIN_RETURN_IF_ERROR(CheckF32Array("params", given.params, count));
  ENTRAIN_RETURN_IF_ERROR(CheckF32Array("grads", given.grads, count));
  std::array<const void*, kMaxStateArrays + 4> arrays = {given.params, given.grads};
  size_t used = 2;
  const int states = optimizer.state_arrays();
  if (states > 0 && count > 0) {
    ENTRAIN_RETURN_IF_ERROR(NotNull(given.state, "state"));
    for (int i = 0; i < states; ++i) {
      ENTRAIN_RETURN_IF_ERROR(
          CheckF32Array(absl::StrCat("state[", i, "]").c_str(), given.state[i], count));
      arrays[used++] = given.state[i];
      checked->state[static_cast<size_t>(i)] = static_cast<float*>(given.state[i]);
    }
  }
  if (given.takes_second) {
    ENTRAIN_RETURN_IF_ERROR(CheckF32Array("second", given.second, count));
    arrays[used++] = given.second;
  }
  if (apply == Apply::kPreview) {
    ENTRAIN_RETURN_IF_ERROR(CheckF32Array("out", given.out, count));
    arrays[used++] = given.out;
  }
  ENTRAIN_RETURN_IF_ERROR(CheckApart({arrays.data(), used}, count,
                                     given.takes_second ? "params, grads, second, state and out"
                                                        : "params, grads, state and out"));
  if (given.step < 1) {
    return absl::InvalidArgumentError(absl::StrCat("step ", given.step, " is less than 1"));
  }
  if (!std::isfinite(given.lr) || given.lr < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("lr ", given.lr, " is not a finite number >= 0"));
  }
  checked->args = {.count = count,
                   .master = static_cast<float*>(given.params),
                   .grads = static_cast<const float*>(given.grads),
                   .state = {checked->state.data(), static_cast<size_t>(states)},
                   .out = static_cast<float*>(given.out),
                   .step = given.step,
                   .lr = given.lr};
  return absl::OkStatus();
}

}  // namespace entrain::api
