// Implements the reduction objects of collectives.h.
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "include/entrain/collectives.h"
#include "lib/api/arguments.h"
#include "lib/api/boundary.h"
#include "lib/api/handles.h"
#include "lib/base/config.h"
#include "lib/base/merging.h"
#include "lib/base/status.h"
#include "lib/comm/merge_state.h"

using namespace entrain::api;  // NOLINT: the functions of the C API are global
using entrain::Merging;
using entrain::ReduceOp;

namespace {

absl::StatusOr<std::vector<double>> ToWeights(const double* weights, int32_t ranks) {
  if ((weights == nullptr) != (ranks == 0) || ranks < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ranks ", ranks, " is not the number of weights",
        weights == nullptr ? ", which are NULL: set ranks to 0" : ": set it to 1 or more"));
  }
  return std::vector<double>(weights, weights + ranks);
}

absl::StatusOr<Merging> ToMerging(const entrain_gta_config_t& config) {
  ENTRAIN_RETURN_IF_ERROR(
      CheckChoice("consensus", config.consensus, ENTRAIN_CONSENSUS_COUNT, "ENTRAIN_CONSENSUS_*"));
  ENTRAIN_RETURN_IF_ERROR(CheckSwitch("normalize", config.normalize));
  ENTRAIN_RETURN_IF_ERROR(CheckChoice("sparsification", config.sparsification,
                                      ENTRAIN_SPARSIFY_RESCALED_RANDOM, "ENTRAIN_SPARSIFY_*"));
  ENTRAIN_RETURN_IF_ERROR(
      CheckChoice("wire_format", config.wire_format, ENTRAIN_WIRE_INT2, "ENTRAIN_WIRE_*"));
  ENTRAIN_RETURN_IF_ERROR(CheckChoice("wire_rounding", config.wire_rounding,
                                      ENTRAIN_ROUND_STOCHASTIC, "ENTRAIN_ROUND_*"));
  ENTRAIN_RETURN_IF_ERROR(CheckSwitch("error_feedback", config.error_feedback));
  Merging merging;
  ENTRAIN_ASSIGN_OR_RETURN(merging.weights, ToWeights(config.weights, config.ranks));
  merging.consensus = static_cast<entrain::Consensus>(config.consensus);
  merging.normalize = config.normalize == 1;
  merging.sparsification = static_cast<entrain::Sparsification>(config.sparsification);
  merging.density = config.density;
  merging.seed = config.seed;
  merging.wire_format = static_cast<entrain::WireFormat>(config.wire_format);
  merging.wire_block = config.wire_block;
  merging.wire_rounding = static_cast<entrain::WireRounding>(config.wire_rounding);
  merging.error_feedback = config.error_feedback == 1;
  return merging;
}

std::string StateOf(const entrain_reduction_t& reduction) {
  return reduction.reduction.merge_state == nullptr ? "" : reduction.reduction.merge_state->Save();
}

}  // namespace

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
    (*reduction)->reduction.inside = std::make_shared<std::atomic<int32_t>>(0);
    (*reduction)->reduction.signature = signature;
    (*reduction)->reduction.commutative = commutative != 0;
    return absl::OkStatus();
  });
}

entrain_status_t entrain_reduction_busy(const entrain_reduction_t* reduction, int32_t* busy) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(reduction, "reduction"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(busy, "busy"));
    const auto& inside = reduction->reduction.inside;
    // Acquire: pairs with the release in UserCombine. So the caller sees what the function has
    // written.
    *busy = inside != nullptr && inside->load(std::memory_order_acquire) > 0 ? 1 : 0;
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
    (*reduction)->reduction.merging =
        std::make_shared<const Merging>(Merging{.weights = std::move(shares), .normalize = false});
    return absl::OkStatus();
  });
}

entrain_status_t entrain_reduction_gta(const entrain_gta_config_t* config,
                                       entrain_reduction_t** reduction) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(reduction, "reduction"));
    entrain_gta_config_t known;
    entrain_gta_config_init(&known);
    ENTRAIN_RETURN_IF_ERROR(
        entrain::CopyStruct(config, &known, sizeof(known), "entrain_gta_config_t"));
    ENTRAIN_ASSIGN_OR_RETURN(Merging merging, ToMerging(known));
    ENTRAIN_ASSIGN_OR_RETURN(entrain::Reduction made, entrain::MakeGta(std::move(merging)));
    *reduction = new entrain_reduction{.reduction = std::move(made)};
    return absl::OkStatus();
  });
}

entrain_status_t entrain_reduction_set_weights(entrain_reduction_t* reduction,
                                               const double* weights, int32_t ranks) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(reduction, "reduction"));
    if (reduction->reduction.op != ReduceOp::kGta) {
      return absl::InvalidArgumentError(
          absl::StrCat("reduction: ", NameOf(reduction->reduction.op), " has no such weights"));
    }
    Merging merging = *reduction->reduction.merging;
    ENTRAIN_ASSIGN_OR_RETURN(merging.weights, ToWeights(weights, ranks));
    ENTRAIN_RETURN_IF_ERROR(entrain::CheckMerging(merging));
    reduction->reduction.merging = std::make_shared<const Merging>(std::move(merging));
    return absl::OkStatus();
  });
}

entrain_status_t entrain_reduction_state_size(const entrain_reduction_t* reduction, size_t* bytes) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(reduction, "reduction"));
    ENTRAIN_RETURN_IF_ERROR(NotNull(bytes, "bytes"));
    *bytes = StateOf(*reduction).size();
    return absl::OkStatus();
  });
}

entrain_status_t entrain_reduction_state_save(const entrain_reduction_t* reduction, void* state,
                                              size_t bytes) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(reduction, "reduction"));
    const std::string saved = StateOf(*reduction);
    if (bytes != saved.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("bytes ", bytes, " is not the state's size ", saved.size()));
    }
    if (bytes > 0) {
      ENTRAIN_RETURN_IF_ERROR(NotNull(state, "state"));
      std::memcpy(state, saved.data(), bytes);
    }
    return absl::OkStatus();
  });
}

entrain_status_t entrain_reduction_state_load(entrain_reduction_t* reduction, const void* state,
                                              size_t bytes) {
  return Guard(__func__, [&]() -> absl::Status {
    ENTRAIN_RETURN_IF_ERROR(NotNull(reduction, "reduction"));
    if (bytes > 0) {
      ENTRAIN_RETURN_IF_ERROR(NotNull(state, "state"));
    }
    const auto& kept = reduction->reduction.merge_state;
    if (kept == nullptr) {
      return bytes == 0 ? absl::OkStatus()
                        : absl::InvalidArgumentError(absl::StrCat(
                              "bytes ", bytes, " is not 0: this reduction keeps no state"));
    }
    return kept->Load({static_cast<const char*>(state), bytes});
  });
}

void entrain_reduction_destroy(entrain_reduction_t* reduction) {
  Destroy(__func__, reduction);
}

}  // extern "C"
