// collectives.h: reductions as objects.
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "include/entrain/collectives.h"
#include "lib/api/arguments.h"
#include "lib/api/boundary.h"
#include "lib/api/handles.h"
#include "lib/base/status.h"

using namespace entrain::api;  // NOLINT: the functions of the C API are global
using entrain::ReduceOp;

extern "C" {

entrain_status_t entrain_reduction_builtin(entrain_op_t op, entrain_reduction_t** reduction) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(reduction, "reduction"));
    if (!IsOp(op)) {
      return absl::InvalidArgumentError(absl::StrCat("op ", op, " is not a built-in operator"));
    }
    *reduction = new entrain_reduction;
    (*reduction)->reduction.op = ReduceOp{op};
    return absl::OkStatus();
  });
}

entrain_status_t entrain_reduction_user(entrain_reduce_fn combine, void* user, uint32_t signature,
                                        int32_t commutative, entrain_reduction_t** reduction) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(reinterpret_cast<const void*>(combine), "combine"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(reduction, "reduction"));
    *reduction = new entrain_reduction;
    (*reduction)->reduction.op = ReduceOp::kCustom;
    (*reduction)->reduction.combine = combine;
    (*reduction)->reduction.user = user;
    (*reduction)->reduction.signature = signature;
    (*reduction)->reduction.commutative = commutative != 0;
    return absl::OkStatus();
  });
}

entrain_status_t entrain_reduction_premultiplied_sum(double factor,
                                                     entrain_reduction_t** reduction) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(reduction, "reduction"));
    if (!std::isfinite(factor)) {
      return absl::InvalidArgumentError(absl::StrCat("factor ", factor, " is not finite"));
    }
    *reduction = new entrain_reduction;
    (*reduction)->reduction.op = ReduceOp::kPreMultipliedSum;
    (*reduction)->reduction.factor = factor;
    return absl::OkStatus();
  });
}

entrain_status_t entrain_reduction_weighted(const double* weights, int32_t ranks,
                                            entrain_reduction_t** reduction) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(weights, "weights"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(reduction, "reduction"));
    if (ranks < 1) {
      return absl::InvalidArgumentError(absl::StrCat("ranks ", ranks, " is less than 1"));
    }
    std::vector<double> shares(weights, weights + ranks);
    double sum = 0;
    for (int32_t r = 0; r < ranks; ++r) {
      if (!std::isfinite(weights[r]) || weights[r] < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("weights[", r, "] ", weights[r], " is not finite and at least 0"));
      }
      sum += weights[r];
    }
    if (sum == 0 || !std::isfinite(sum)) {
      return absl::InvalidArgumentError(
          absl::StrCat("weights: their sum ", sum, " is not finite and above 0"));
    }
    for (double& share : shares) {
      share /= sum;
    }
    *reduction = new entrain_reduction;
    (*reduction)->reduction.op = ReduceOp::kWeightedMean;
    (*reduction)->reduction.weights =
        std::make_shared<const std::vector<double>>(std::move(shares));
    return absl::OkStatus();
  });
}

void entrain_reduction_destroy(entrain_reduction_t* reduction) {
  delete reduction;
}

}  // extern "C"
