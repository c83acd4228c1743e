#include "lib/train/edit_options.h"

#include <algorithm>
#include <cmath>
#include <tuple>

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
  if (!(o.overlap_mix >= 0 && o.overlap_mix < 1)) {
    return Refuse("overlap_mix", o.overlap_mix, "is not in [0, 1)");
  }
  ENTRAIN_RETURN_IF_ERROR(CheckNotNegative("outer_momentum_clip", o.outer_momentum_clip));
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
    constexpr absl::string_view kWhy = "has no effect without overlap_steps; set both";
    return RefuseInert({{"overlap_merge", static_cast<double>(o.overlap_merge), 0, false, kWhy},
                        {"staleness_penalty", o.staleness_penalty ? 1.0 : 0.0, 0, false, kWhy}});
  }
  if (o.plain()) {
    return Refuse("overlap_steps", o.overlap_steps,
                  "needs an anchor to merge with; set an outer_optimizer or a reducer");
  }
  if (o.use_async && o.overlap_steps != 1) {
    return Refuse("overlap_steps", o.overlap_steps,
                  "has no effect with use_async, which merges when the exchange has come; set 1");
  }
  std::vector<int64_t> intervals = o.fragment_intervals;
  intervals.push_back(o.local_sgd_sync_interval);
  const int64_t shortest = *std::min_element(
      intervals.begin(), intervals.size() > 1 ? intervals.end() - 1 : intervals.end());
  if (!o.use_async && o.overlap_steps > shortest) {
    return Refuse("overlap_steps", o.overlap_steps,
                  absl::StrCat("is more than ",
                               o.fragment_intervals.empty() ? "local_sgd_sync_interval "
                                                            : "the shortest of fragment_intervals ",
                               shortest, ": the next exchange would begin before"));
  }
  return absl::OkStatus();
}

// What changes the outer step by norms that only sgd has in closed form.
absl::Status CheckStaleness(const EditOptions& o) {
  const bool sgd = o.outer_optimizer == OuterKind::kSgd;
  ENTRAIN_RETURN_IF_ERROR(RefuseInert(
      {{"overlap_mix", o.overlap_mix, EditOptions().overlap_mix,
        o.overlap_merge == OverlapMerge::kMix, "has no effect without overlap_merge mix; set both"},
       {"staleness_penalty", o.staleness_penalty ? 1.0 : 0.0, 0, sgd,
        "is for outer_optimizer sgd; set both"},
       {"outer_momentum_clip", o.outer_momentum_clip, 0, sgd && o.outer_momentum > 0,
        "has no effect without outer_optimizer sgd and an outer_momentum; set them"},
       {"outer_momentum_clip", o.outer_momentum_clip, 0, !o.outer_nesterov,
        "is not for outer_nesterov, whose step is not its momentum; set one"}}));
  if (o.outer_weight_decay > 0 && (o.staleness_penalty || o.outer_momentum_clip > 0)) {
    return Refuse("outer_weight_decay", o.outer_weight_decay,
                  "does not go with staleness_penalty and outer_momentum_clip; set 0");
  }
  return absl::OkStatus();
}

absl::Status CheckFragmentNumbers(const EditOptions& o) {
  ENTRAIN_RETURN_IF_ERROR(CheckAtLeast("fragments", o.fragments, 1));
  if (o.fragments > 1 && o.use_async) {
    return Refuse(
        "fragments", o.fragments,
        "with use_async, whose replicas meet when the time is up, all layers at once; set 1");
  }
  const auto count = static_cast<size_t>(o.fragments);
  for (const auto& [name, values, least] :
       {std::make_tuple("fragment_intervals", &o.fragment_intervals, int64_t{1}),
        std::make_tuple("fragment_offsets", &o.fragment_offsets, int64_t{0})}) {
    if (!values->empty() && values->size() != count) {
      return Refuse(name, values->size(), absl::StrCat("numbers for ", count, " fragments"));
    }
    for (const int64_t value : *values) {
      ENTRAIN_RETURN_IF_ERROR(CheckAtLeast(name, value, least));
    }
  }
  constexpr absl::string_view kOne = "has no effect with one fragment; set fragments";
  const bool pattern = o.fragment_pattern != FragmentPattern::kSequential;
  ENTRAIN_RETURN_IF_ERROR(RefuseInert(
      {{"fragment_pattern", static_cast<double>(o.fragment_pattern), 0, o.fragments > 1, kOne},
       {"fragment_of_layer", o.fragment_of_layer.empty() ? 0.0 : 1.0, 0, o.fragments > 1, kOne}}));
  if (pattern && !o.fragment_of_layer.empty()) {
    return Refuse("fragment_pattern", static_cast<int32_t>(o.fragment_pattern),
                  "has no effect with fragment_of_layer; set one");
  }
  if (!o.fragment_intervals.empty() && (o.local_sgd_sync_interval != 1 || o.use_async)) {
    return Refuse("fragment_intervals", o.fragment_intervals[0],
                  "with local_sgd_sync_interval or use_async, which would have no effect; set one");
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
  ENTRAIN_RETURN_IF_ERROR(CheckFragmentNumbers(o));
  ENTRAIN_RETURN_IF_ERROR(CheckOverlap(o));
  ENTRAIN_RETURN_IF_ERROR(CheckStaleness(o));
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
          {"overlap_merge", static_cast<double>(o.overlap_merge)},
          {"overlap_mix", o.overlap_mix},
          {"staleness_penalty", static_cast<double>(o.staleness_penalty)},
          {"outer_momentum_clip", o.outer_momentum_clip},
          {"fragments", static_cast<double>(o.fragments)},
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
          {"ewma_as_published", static_cast<double>(o.ewma_as_published)},
          {"compat", static_cast<double>(o.compat)}};
}

}  // namespace entrain
