#include "lib/train/edit_options.h"

#include <algorithm>
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

// As many z-scores as the warm-up has exchanges are kept for each layer.
constexpr int64_t kMaxEwmaWarmup = 1 << 20;
constexpr double kMaxSyncTime = 1e9;  // so that it is well within 64 bits of nanoseconds

absl::Status CheckBeta(absl::string_view name, double value) {
  return value >= 0 && value < 1 ? absl::OkStatus() : Refuse(name, value, "is not in [0, 1)");
}

absl::Status CheckOuterRanges(const EditOptions& o) {
  const auto outer = static_cast<int32_t>(o.outer_optimizer);
  if (outer < 0 || outer > 3) {
    return Refuse("outer_optimizer", outer,
                  "is none of 0 (none), 1 (sgd), 2 (adamw), 3 (callback)");
  }
  const bool callback = o.outer_optimizer == OuterKind::kCallback;
  if (callback != (o.outer_step != nullptr)) {
    return Refuse("outer_step", callback ? "NULL" : "a function",
                  callback ? "cannot be called; set it with outer_optimizer callback"
                           : "has no effect without outer_optimizer callback; set both");
  }
  if (o.outer_lr == 0 && o.outer_optimizer != OuterKind::kNone && !callback) {
    return Refuse("outer_lr", o.outer_lr, "would never move the anchor; it must be positive");
  }
  if (o.outer_momentum >= 1) {
    return Refuse("outer_momentum", o.outer_momentum, "is not less than 1");
  }
  ENTRAIN_RETURN_IF_ERROR(CheckBeta("outer_beta1", o.outer_beta1));
  ENTRAIN_RETURN_IF_ERROR(CheckBeta("outer_beta2", o.outer_beta2));
  // Smaller ones are 0 in f32, and a zero gradient would be divided by it.
  return o.outer_eps >= 1e-37 && std::isfinite(o.outer_eps)
             ? absl::OkStatus()
             : Refuse("outer_eps", o.outer_eps, "is not a finite number of at least 1e-37");
}

absl::Status CheckRanges(const EditOptions& o) {
  ENTRAIN_RETURN_IF_ERROR(CheckAtLeast("local_sgd_sync_interval", o.local_sgd_sync_interval, 1));
  if (!(o.local_sgd_sync_time > 0 && o.local_sgd_sync_time <= kMaxSyncTime)) {
    return Refuse("local_sgd_sync_time", o.local_sgd_sync_time,
                  absl::StrCat("is not a positive number of seconds up to ", kMaxSyncTime));
  }
  ENTRAIN_RETURN_IF_ERROR(CheckAtLeast("min_total_global_steps", o.min_total_global_steps, 1));
  if (!(o.step_weight_ratio >= 0 && o.step_weight_ratio <= 1)) {
    return Refuse("step_weight_ratio", o.step_weight_ratio, "is not in [0, 1]");
  }
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
  if (reducer < 0 || reducer > 2) {
    return Refuse("reducer", reducer, "is none of 0 (none), 1 (linear), 2 (gta)");
  }
  const auto consensus = static_cast<int32_t>(o.consensus_method);
  if (consensus > 2) {
    return Refuse("consensus_method", consensus, "is none of 0 (none), 1 (sum), 2 (count)");
  }
  ENTRAIN_RETURN_IF_ERROR(CheckAtLeast("overlap_steps", o.overlap_steps, 0));
  ENTRAIN_RETURN_IF_ERROR(CheckOuterRanges(o));
  if (!(o.ewma_alpha > 0 && o.ewma_alpha < 1)) {
    return Refuse("ewma_alpha", o.ewma_alpha, "is not between 0 and 1");
  }
  ENTRAIN_RETURN_IF_ERROR(CheckAtLeast("ewma_warmup_steps", o.ewma_warmup_steps, 2));
  if (o.ewma_warmup_steps > kMaxEwmaWarmup) {
    return Refuse("ewma_warmup_steps", o.ewma_warmup_steps,
                  absl::StrCat("is more than ", kMaxEwmaWarmup));
  }
  if (!(o.ewma_threshold > 0 && std::isfinite(o.ewma_threshold))) {
    return Refuse("ewma_threshold", o.ewma_threshold, "is not a positive finite number");
  }
  return absl::OkStatus();
}

// A number whose value other than the default somebody has set, and to whom it matters.
struct Setting {
  absl::string_view name;
  double value, fallback;
  bool matters;
  absl::string_view why;
};

absl::Status RefuseInert(absl::Span<const Setting> settings) {
  for (const Setting& setting : settings) {
    if (!setting.matters && setting.value != setting.fallback) {
      return Refuse(setting.name, setting.value, setting.why);
    }
  }
  return absl::OkStatus();
}

// Options of an outer optimizer that is not the one chosen.
absl::Status CheckInertOuter(const EditOptions& o) {
  constexpr absl::string_view kSgd = "has no effect without outer_optimizer sgd; set both";
  constexpr absl::string_view kAdamw = "has no effect without outer_optimizer adamw; set both";
  constexpr absl::string_view kEither =
      "has no effect without outer_optimizer sgd or adamw; set both";
  const EditOptions d;
  const bool sgd = o.outer_optimizer == OuterKind::kSgd;
  const bool adamw = o.outer_optimizer == OuterKind::kAdamw;
  return RefuseInert(
      {{"outer_nesterov", o.outer_nesterov ? 1.0 : 0.0, 0, sgd, kSgd},
       {"outer_momentum", o.outer_momentum, d.outer_momentum, sgd, kSgd},
       {"outer_beta1", o.outer_beta1, d.outer_beta1, adamw, kAdamw},
       {"outer_beta2", o.outer_beta2, d.outer_beta2, adamw, kAdamw},
       {"outer_eps", o.outer_eps, d.outer_eps, adamw, kAdamw},
       {"outer_lr", o.outer_lr, d.outer_lr, sgd || adamw, kEither},
       {"outer_weight_decay", o.outer_weight_decay, d.outer_weight_decay, sgd || adamw, kEither}});
}

absl::Status CheckTravel(const EditOptions& o) {
  if (o.sparsification_method != Sparsification::kNone && o.reducer != ReducerKind::kGta) {
    return Refuse("sparsification_method", static_cast<int32_t>(o.sparsification_method),
                  "has no effect without reducer gta; set both");
  }
  const Merging merging = o.merging();
  if (merging.Packs() && o.plain()) {
    return Refuse("wire_format", static_cast<int32_t>(o.wire_format),
                  "is for pseudo-gradients, and plain averaging sends parameters; set an "
                  "outer_optimizer or a reducer");
  }
  return CheckMerging(merging);
}

absl::Status CheckOverlap(const EditOptions& o) {
  if (o.overlap_steps == 0) {
    return absl::OkStatus();
  }
  if (o.plain()) {
    return Refuse("overlap_steps", o.overlap_steps,
                  "needs an anchor to merge with; set an outer_optimizer or a reducer");
  }
  if (o.use_async && o.overlap_steps != 1) {
    return Refuse("overlap_steps", o.overlap_steps,
                  "has no effect with use_async, which merges when the exchange has come; set 1");
  }
  if (!o.use_async && o.overlap_steps > o.local_sgd_sync_interval) {
    return Refuse("overlap_steps", o.overlap_steps,
                  absl::StrCat("is more than local_sgd_sync_interval ", o.local_sgd_sync_interval,
                               ": the next exchange would begin before"));
  }
  return absl::OkStatus();
}

// What belongs to the one trigger or the other.
absl::Status CheckInertTrigger(const EditOptions& o) {
  constexpr absl::string_view kAsync = "has no effect without use_async; set both";
  constexpr absl::string_view kSync =
      "has no effect with use_async, which goes by local_sgd_sync_time; set one";
  const EditOptions d;
  if (o.use_step_weight && o.step_weight_ratio == 0) {
    return Refuse("step_weight_ratio", 0, "leaves use_step_weight without effect; set it above 0");
  }
  const bool ratio = o.use_step_weight && o.reducer != ReducerKind::kNone;
  return RefuseInert(
      {{"local_sgd_sync_interval", static_cast<double>(o.local_sgd_sync_interval),
        static_cast<double>(d.local_sgd_sync_interval), !o.use_async, kSync},
       {"local_sgd_sync_time", o.local_sgd_sync_time, d.local_sgd_sync_time, o.use_async, kAsync},
       {"min_total_global_steps", static_cast<double>(o.min_total_global_steps),
        static_cast<double>(d.min_total_global_steps), o.use_async, kAsync},
       {"use_step_weight", o.use_step_weight ? 1.0 : 0.0, 0, o.use_async,
        "has no effect without use_async, where all replicas make the same steps; set both"},
       {"step_weight_ratio", o.step_weight_ratio, d.step_weight_ratio, ratio,
        "has no effect without use_step_weight and a reducer; set all three"}});
}

absl::Status CheckInertDetector(const EditOptions& o) {
  constexpr absl::string_view kWhy = "has no effect without skip_anomaly; set both";
  const EditOptions d;
  if (o.skip_anomaly && o.plain()) {
    return Refuse("skip_anomaly", 1,
                  "has no effect in plain averaging; set an outer_optimizer or a reducer");
  }
  return RefuseInert(
      {{"ewma_alpha", o.ewma_alpha, d.ewma_alpha, o.skip_anomaly, kWhy},
       {"ewma_warmup_steps", static_cast<double>(o.ewma_warmup_steps),
        static_cast<double>(d.ewma_warmup_steps), o.skip_anomaly, kWhy},
       {"ewma_threshold", o.ewma_threshold, d.ewma_threshold, o.skip_anomaly, kWhy}});
}

// Options that would have no effect: whoever sets them expects one.
absl::Status CheckInert(const EditOptions& o) {
  const bool reducer = o.reducer != ReducerKind::kNone;
  const bool gta = o.reducer == ReducerKind::kGta;
  if (o.pseudo_gradnorm_reduce && !reducer) {
    return Refuse("pseudo_gradnorm_reduce", 1,
                  "has no effect without reducer linear or gta; set both");
  }
  if (o.weight_softmax_temperature > 0 && !o.pseudo_gradnorm_reduce) {
    return Refuse("weight_softmax_temperature", o.weight_softmax_temperature,
                  "has no effect without pseudo_gradnorm_reduce; set both");
  }
  if (!o.normalize && !reducer) {
    return Refuse("normalize", 0, "has no effect without reducer linear or gta; set both");
  }
  if (o.consensus_method != Consensus::kNone && !gta) {
    return Refuse("consensus_method", static_cast<int32_t>(o.consensus_method),
                  "has no effect without reducer gta; set both");
  }
  if (o.int8_mask && o.consensus_method == Consensus::kNone) {
    return Refuse("int8_mask", 1, "has no effect without a consensus_method; set both");
  }
  if (!o.normalize && o.pseudo_gradnorm_reduce && !gta) {
    return Refuse("normalize", 0,
                  "has no effect with pseudo_gradnorm_reduce, whose weights sum to 1; set one");
  }
  if (o.clip_pseudo_grad > 0 && o.plain()) {
    return Refuse("clip_pseudo_grad", o.clip_pseudo_grad,
                  "has no effect in plain averaging; set an outer_optimizer or a reducer");
  }
  ENTRAIN_RETURN_IF_ERROR(CheckTravel(o));
  ENTRAIN_RETURN_IF_ERROR(CheckOverlap(o));
  ENTRAIN_RETURN_IF_ERROR(CheckInertTrigger(o));
  ENTRAIN_RETURN_IF_ERROR(CheckInertDetector(o));
  return CheckInertOuter(o);
}

}  // namespace

absl::Status CheckOptions(const EditOptions& options) {
  ENTRAIN_RETURN_IF_ERROR(CheckRanges(options));
  return CheckInert(options);
}

absl::Status CheckDensity(const EditOptions& options, int slots, absl::Span<const int64_t> counts) {
  if (options.sparsification_method != Sparsification::kMagnitude) {
    return absl::OkStatus();
  }
  for (const int64_t count : counts) {
    const int64_t shard = (count + slots - 1) / slots;
    for (int64_t left = count; left > 0; left -= shard) {
      const int64_t here = std::min(left, shard);
      if (options.merging().Kept(here) == 0) {
        return Refuse("density", options.density,
                      absl::StrCat("leaves nothing of a shard of ", here, " elements (a layer of ",
                                   count, " over ", slots, " ranks)"));
      }
    }
  }
  return absl::OkStatus();
}

Merging EditOptions::merging() const {
  Merging merging;
  merging.consensus = consensus_method;
  merging.normalize = normalize;
  merging.sparsification = sparsification_method;
  merging.density = density;
  merging.seed = seed;
  merging.wire_format = wire_format;
  merging.wire_block = wire_block;
  merging.wire_rounding = wire_rounding;
  merging.error_feedback = error_feedback;
  return merging;
}

std::vector<NamedValue> SharedOptions(const EditOptions& o) {
  return {{"local_sgd_sync_interval", static_cast<double>(o.local_sgd_sync_interval)},
          {"use_async", static_cast<double>(o.use_async)},
          {"local_sgd_sync_time", o.local_sgd_sync_time},
          {"min_total_global_steps", static_cast<double>(o.min_total_global_steps)},
          {"use_step_weight", static_cast<double>(o.use_step_weight)},
          {"step_weight_ratio", o.step_weight_ratio},
          {"local_sgd_warmup_steps", static_cast<double>(o.local_sgd_warmup_steps)},
          {"gradient_accumulation_steps", static_cast<double>(o.gradient_accumulation_steps)},
          {"reducer", static_cast<double>(o.reducer)},
          {"consensus_method", static_cast<double>(o.consensus_method)},
          {"sparsification_method", static_cast<double>(o.sparsification_method)},
          {"density", o.density},
          {"seed", static_cast<double>(o.seed)},
          {"wire_format", static_cast<double>(o.wire_format)},
          {"wire_block", static_cast<double>(o.wire_block)},
          {"wire_rounding", static_cast<double>(o.wire_rounding)},
          {"error_feedback", static_cast<double>(o.error_feedback)},
          {"overlap_steps", static_cast<double>(o.overlap_steps)},
          {"pseudo_gradnorm_reduce", static_cast<double>(o.pseudo_gradnorm_reduce)},
          {"normalize", static_cast<double>(o.normalize)},
          {"weight_softmax_temperature", o.weight_softmax_temperature},
          {"clip_pseudo_grad", o.clip_pseudo_grad},
          {"outer_optimizer", static_cast<double>(o.outer_optimizer)},
          {"outer_nesterov", static_cast<double>(o.outer_nesterov)},
          {"outer_lr", o.outer_lr},
          {"outer_momentum", o.outer_momentum},
          {"outer_weight_decay", o.outer_weight_decay},
          {"outer_beta1", o.outer_beta1},
          {"outer_beta2", o.outer_beta2},
          {"outer_eps", o.outer_eps},
          {"skip_anomaly", static_cast<double>(o.skip_anomaly)},
          {"ewma_alpha", o.ewma_alpha},
          {"ewma_warmup_steps", static_cast<double>(o.ewma_warmup_steps)},
          {"ewma_threshold", o.ewma_threshold},
          {"compat", static_cast<double>(o.compat)}};
}

}  // namespace entrain
