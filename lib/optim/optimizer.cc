#include "lib/optim/optimizer.h"

#include <cmath>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/optim/rules.h"

namespace entrain {
namespace {

absl::Status Refuse(absl::string_view name, double value, absl::string_view allowed) {
  return absl::InvalidArgumentError(absl::StrCat(name, " ", value, " is not ", allowed));
}

absl::Status CheckFraction(absl::string_view name, double value) {
  // This form of the comparison is false for a NaN.
  return value >= 0 && value < 1 ? absl::OkStatus() : Refuse(name, value, "in [0, 1)");
}

absl::Status CheckSgd(const OptimizerConfig& config) {
  ENTRAIN_RETURN_IF_ERROR(CheckFraction("momentum", config.momentum));
  if (config.nesterov && config.momentum == 0) {
    return absl::InvalidArgumentError("nesterov needs a momentum above 0, and momentum is 0");
  }
  return absl::OkStatus();
}

absl::Status CheckBetas(const OptimizerConfig& config) {
  ENTRAIN_RETURN_IF_ERROR(CheckFraction("beta1", config.beta1));
  return CheckFraction("beta2", config.beta2);
}

absl::Status CheckAdamw(const OptimizerConfig& config) {
  ENTRAIN_RETURN_IF_ERROR(CheckBetas(config));
  // The kernels compute in f32, in which a smaller eps would be 0. A step with a zero gradient
  // would then divide 0 by 0.
  if (!(config.eps >= 1e-37) || !std::isfinite(config.eps)) {
    return Refuse("eps", config.eps, "a finite number of at least 1e-37");
  }
  return absl::OkStatus();
}

absl::Status CheckAgd(const OptimizerConfig& config) {
  ENTRAIN_RETURN_IF_ERROR(CheckBetas(config));
  if (!(config.delta >= 0) || !std::isfinite(config.delta)) {
    return Refuse("delta", config.delta, "a finite number >= 0");
  }
  if (!(config.clip >= 0) || !std::isfinite(config.clip)) {
    return Refuse("clip", config.clip, "a finite number >= 0");
  }
  if (config.win && config.decay != WeightDecay::kDecoupled) {
    return absl::InvalidArgumentError(absl::StrCat("decay ", static_cast<int32_t>(config.decay),
                                                   " has no effect with win, which has its own"));
  }
  // A fixed decay is not multiplied by the learning rate.
  if (config.decay == WeightDecay::kFixed && config.weight_decay >= 1) {
    return Refuse("weight_decay", config.weight_decay, "in [0, 1), with a fixed decay");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const OptimizerConfig& config) {
  if (!(config.weight_decay >= 0) || !std::isfinite(config.weight_decay)) {
    return Refuse("weight_decay", config.weight_decay, "a finite number >= 0");
  }
  switch (config.kind) {
    case OptimizerKind::kSgd:
      ENTRAIN_RETURN_IF_ERROR(CheckSgd(config));
      return MakeSgd(config);
    case OptimizerKind::kAdamw:
      ENTRAIN_RETURN_IF_ERROR(CheckAdamw(config));
      return MakeAdamw(config);
    case OptimizerKind::kAgd:
      ENTRAIN_RETURN_IF_ERROR(CheckAgd(config));
      return MakeAgd(config);
    case OptimizerKind::kLion:
      ENTRAIN_RETURN_IF_ERROR(CheckBetas(config));
      return MakeLion(config);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("optimizer kind ", static_cast<int32_t>(config.kind), " is unknown"));
}

double ClipFactor(double norm, double phi) {
  return std::min(1.0, phi / (norm + 1e-6));
}

}  // namespace entrain
