#include "lib/train/edit_options.h"

#include <cmath>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"

namespace entrain {
namespace {

template <typename T>
absl::Status Refuse(absl::string_view name, T value, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", value, " ", why));
}

absl::Status CheckAtLeast(absl::string_view name, int64_t value, int64_t least) {
  return value >= least ? absl::OkStatus()
                        : Refuse(name, value, absl::StrCat("is less than ", least));
}

// NaN is refused by every comparison.
absl::Status CheckNotNegative(absl::string_view name, double value) {
  return value >= 0 && std::isfinite(value)
             ? absl::OkStatus()
             : Refuse(name, value, "is not a finite number of at least 0");
}

absl::Status CheckRanges(const EditOptions& o) {
  ENTRAIN_RETURN_IF_ERROR(CheckAtLeast("local_sgd_sync_interval", o.local_sgd_sync_interval, 1));
  ENTRAIN_RETURN_IF_ERROR(CheckAtLeast("local_sgd_warmup_steps", o.local_sgd_warmup_steps, 0));
  ENTRAIN_RETURN_IF_ERROR(
      CheckAtLeast("gradient_accumulation_steps", o.gradient_accumulation_steps, 1));
  ENTRAIN_RETURN_IF_ERROR(CheckAtLeast("prefetch", o.prefetch, 0));
  ENTRAIN_RETURN_IF_ERROR(CheckAtLeast("timeout_ns", o.timeout_ns, 0));
  ENTRAIN_RETURN_IF_ERROR(
      CheckNotNegative("weight_softmax_temperature", o.weight_softmax_temperature));
  ENTRAIN_RETURN_IF_ERROR(CheckNotNegative("clip_pseudo_grad", o.clip_pseudo_grad));
  ENTRAIN_RETURN_IF_ERROR(CheckNotNegative("outer_lr", o.outer_lr));
  ENTRAIN_RETURN_IF_ERROR(CheckNotNegative("outer_momentum", o.outer_momentum));
  ENTRAIN_RETURN_IF_ERROR(CheckNotNegative("outer_weight_decay", o.outer_weight_decay));
  const auto reducer = static_cast<int32_t>(o.reducer);
  if (reducer != 0 && reducer != 1) {
    return Refuse("reducer", reducer, "is neither 0 (none) nor 1 (linear)");
  }
  const auto outer = static_cast<int32_t>(o.outer_optimizer);
  if (outer != 0 && outer != 1) {
    return Refuse("outer_optimizer", outer, "is neither 0 (none) nor 1 (sgd)");
  }
  if (o.outer_optimizer == OuterKind::kSgd && o.outer_lr == 0) {
    return Refuse("outer_lr", o.outer_lr, "would never move the anchor; it must be positive");
  }
  if (o.outer_momentum >= 1) {
    return Refuse("outer_momentum", o.outer_momentum, "is not less than 1");
  }
  return absl::OkStatus();
}

// Options of an outer optimizer that is not there: those that differ from their defaults were set.
absl::Status CheckNoOuter(const EditOptions& o) {
  constexpr absl::string_view kWhy = "has no effect without outer_optimizer sgd; set both";
  const EditOptions defaults;
  if (o.outer_nesterov) {
    return Refuse("outer_nesterov", 1, kWhy);
  }
  if (o.outer_lr != defaults.outer_lr) {
    return Refuse("outer_lr", o.outer_lr, kWhy);
  }
  if (o.outer_momentum != defaults.outer_momentum) {
    return Refuse("outer_momentum", o.outer_momentum, kWhy);
  }
  if (o.outer_weight_decay != defaults.outer_weight_decay) {
    return Refuse("outer_weight_decay", o.outer_weight_decay, kWhy);
  }
  return absl::OkStatus();
}

// Options that would have no effect: whoever sets them expects one.
absl::Status CheckInert(const EditOptions& o) {
  const bool linear = o.reducer == ReducerKind::kLinear;
  if (o.pseudo_gradnorm_reduce && !linear) {
    return Refuse("pseudo_gradnorm_reduce", 1, "has no effect without reducer linear; set both");
  }
  if (o.weight_softmax_temperature > 0 && !o.pseudo_gradnorm_reduce) {
    return Refuse("weight_softmax_temperature", o.weight_softmax_temperature,
                  "has no effect without pseudo_gradnorm_reduce; set both");
  }
  if (!o.normalize && !linear) {
    return Refuse("normalize", 0, "has no effect without reducer linear; set both");
  }
  if (!o.normalize && o.pseudo_gradnorm_reduce) {
    return Refuse("normalize", 0,
                  "has no effect with pseudo_gradnorm_reduce, whose weights sum to 1; set one");
  }
  if (o.clip_pseudo_grad > 0 && o.plain()) {
    return Refuse("clip_pseudo_grad", o.clip_pseudo_grad,
                  "has no effect in plain averaging; set an outer_optimizer or a reducer");
  }
  return o.outer_optimizer == OuterKind::kNone ? CheckNoOuter(o) : absl::OkStatus();
}

}  // namespace

absl::Status CheckOptions(const EditOptions& options) {
  ENTRAIN_RETURN_IF_ERROR(CheckRanges(options));
  return CheckInert(options);
}

std::vector<NamedValue> SharedOptions(const EditOptions& o) {
  return {{"local_sgd_sync_interval", static_cast<double>(o.local_sgd_sync_interval)},
          {"local_sgd_warmup_steps", static_cast<double>(o.local_sgd_warmup_steps)},
          {"gradient_accumulation_steps", static_cast<double>(o.gradient_accumulation_steps)},
          {"reducer", static_cast<double>(o.reducer)},
          {"pseudo_gradnorm_reduce", static_cast<double>(o.pseudo_gradnorm_reduce)},
          {"normalize", static_cast<double>(o.normalize)},
          {"weight_softmax_temperature", o.weight_softmax_temperature},
          {"clip_pseudo_grad", o.clip_pseudo_grad},
          {"outer_optimizer", static_cast<double>(o.outer_optimizer)},
          {"outer_nesterov", static_cast<double>(o.outer_nesterov)},
          {"outer_lr", o.outer_lr},
          {"outer_momentum", o.outer_momentum},
          {"outer_weight_decay", o.outer_weight_decay}};
}

}  // namespace entrain
