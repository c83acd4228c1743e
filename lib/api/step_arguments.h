// The arguments of an optimizer's step, and their checks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "include/entrain/types.h"
#include "lib/api/array_place.h"
#include "lib/optim/optimizer.h"

namespace entrain::api {

struct GivenStep {
  void* params = nullptr;
  const void* grads = nullptr;
  bool takes_second = false;
  const void* second = nullptr;  // WSAM: the second gradient
  void* const* state = nullptr;
  void* out = nullptr;  // preview only
  size_t count = 0;
  entrain_dtype_t dtype = ENTRAIN_F32;
  int64_t step = 0;
  double lr = 0;
};

struct CheckedStep {
  CheckedStep() = default;
  CheckedStep(const CheckedStep&) = delete;  // args refers to state
  CheckedStep& operator=(const CheckedStep&) = delete;
  StepArgs args;
  std::array<float*, kMaxStateArrays> state{};
};

// Returns the arrays by name, for RunWhere.
std::vector<NamedArray> ArraysOf(const GivenStep& given, const Optimizer& optimizer);

absl::Status CheckStep(const GivenStep& given, const Optimizer& optimizer, Apply apply,
                       CheckedStep* checked);

// Checks one array of `count` f32 elements.
absl::Status CheckF32Array(const char* name, const void* array, int64_t count);

// Checks that the arrays, of `count` f32 elements each, are disjoint. The error is "two of `names`
// overlap".
absl::Status CheckApart(absl::Span<const void* const> arrays, int64_t count, const char* names);

}  // namespace entrain::api
