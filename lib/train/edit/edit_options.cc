#include "lib/train/edit/edit_options.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/train/identity.h"

namespace entrain {
namespace {

// Limits memory: for each layer, the detector stores one z-score per exchange of the warm-up.
constexpr double kMaxEwmaWarmup = 1 << 20;
constexpr double kMostThreads = 64;
constexpr double kMaxSyncTime = 1e9;          // in seconds; in nanoseconds it fits int64_t
constexpr double kMostNewcomerWarmup = 1000;  // fits in kNewBits bits (rendezvous.h)
// A smaller value may be subnormal in f32 and become 0. Then a zero gradient would be divided by 0.
constexpr double kLeastEps = 1e-37;

using namespace option_range;  // NOLINT: the ranges of the list
using Options = EditOptions;
constexpr EditOption kOptions[] = {ENTRAIN_EDIT_OPTIONS(ENTRAIN_OPTION_ROW)};

absl::Status CheckAtLeast(absl::string_view name, int64_t value, int64_t least) {
  return value >= least ? absl::OkStatus()
                        : RefuseOption(name, value, absl::StrCat("is less than ", least));
}

absl::Status CheckOuter(const EditOptions& o) {
  const bool callback = o.outer_optimizer == OuterKind::kCallback;
  if (callback != (o.outer_step != nullptr)) {
    return RefuseOption("outer_step", callback ? "NULL" : "a function",
                        callback ? "cannot be called; set it with outer_optimizer callback"
                                 : "has no effect without outer_optimizer callback; set both");
  }
  if (o.outer_lr == 0 && o.outer_optimizer != OuterKind::kNone && !callback) {
    return RefuseOption("outer_lr", o.outer_lr, "would never move the anchor; it must be positive");
  }
  if (o.outer_schedule != nullptr && !o.outer_has_rate()) {
    return RefuseOption("outer_schedule", "a function",
                        callback ? "is not for the caller's outer_step; set NULL"
                                 : "needs an outer_optimizer; set both");
  }
  if (o.outer_weight_decay > 0 && (o.staleness_penalty || o.outer_momentum_clip > 0)) {
    return RefuseOption("outer_weight_decay", o.outer_weight_decay,
                        "does not go with staleness_penalty and outer_momentum_clip; set 0");
  }
  return absl::OkStatus();
}

absl::Status CheckOverlap(const EditOptions& o) {
  if (o.overlap_steps == 0) {
    return absl::OkStatus();
  }
  if (o.plain()) {
    return RefuseOption("overlap_steps", o.overlap_steps,
                        "needs an anchor to merge with; set an outer_optimizer or a reducer");
  }
  if (o.use_async && o.overlap_steps != 1) {
    return RefuseOption(
        "overlap_steps", o.overlap_steps,
        "has no effect with use_async, which merges when the exchange has come; set 1");
  }
  std::vector<int64_t> intervals = o.fragment_intervals;
  intervals.push_back(o.local_sgd_sync_interval);
  const int64_t shortest = *std::min_element(
      intervals.begin(), intervals.size() > 1 ? intervals.end() - 1 : intervals.end());
  // The intervals of interval_schedule are checked as they come (FragmentSchedule).
  if (!o.use_async && o.interval_schedule == nullptr && o.overlap_steps > shortest) {
    return RefuseOption(
        "overlap_steps", o.overlap_steps,
        absl::StrCat("is more than ",
                     o.fragment_intervals.empty() ? "local_sgd_sync_interval "
                                                  : "the shortest of fragment_intervals ",
                     shortest, ": the next exchange would begin before"));
  }
  return absl::OkStatus();
}

absl::Status CheckFragmentNumbers(const EditOptions& o) {
  if (o.fragments > 1 && o.use_async) {
    return RefuseOption(
        "fragments", o.fragments,
        "with use_async, whose replicas meet when the time is up, all layers at once; set 1");
  }
  const auto count = static_cast<size_t>(o.fragments);
  for (const auto& [name, values, least] :
       {std::make_tuple("fragment_intervals", &o.fragment_intervals, int64_t{1}),
        std::make_tuple("fragment_offsets", &o.fragment_offsets, int64_t{0})}) {
    if (!values->empty() && values->size() != count) {
      return RefuseOption(name, values->size(), absl::StrCat("numbers for ", count, " fragments"));
    }
    for (const int64_t value : *values) {
      ENTRAIN_RETURN_IF_ERROR(CheckAtLeast(name, value, least));
    }
  }
  if (!o.fragment_of_layer.empty() && o.fragments == 1) {
    return RefuseOption("fragment_of_layer", 1, "has no effect with one fragment; set fragments");
  }
  if (o.fragment_pattern != FragmentPattern::kSequential && !o.fragment_of_layer.empty()) {
    return RefuseOption("fragment_pattern", static_cast<int32_t>(o.fragment_pattern),
                        "has no effect with fragment_of_layer; set one");
  }
  if (o.interval_schedule != nullptr) {
    const EditOptions plain;
    if (o.local_sgd_sync_interval != plain.local_sgd_sync_interval ||
        o.local_sgd_sync_time != plain.local_sgd_sync_time) {
      return RefuseOption("interval_schedule", "a function",
                          o.use_async ? "with local_sgd_sync_time, which it replaces; set one"
                                      : "with local_sgd_sync_interval, which it replaces; set one");
    }
    if (o.fragments > 1 || o.decoupled()) {
      return RefuseOption("interval_schedule", "a function",
                          o.fragments > 1 ? "with fragments, which have intervals of their own "
                                            "(fragment_intervals); set 1 fragment"
                                          : "with a quorum or round_deadline and overlap_steps, "
                                            "where each replica has its own steps; set H");
    }
  }
  if (!o.fragment_intervals.empty() && (o.local_sgd_sync_interval != 1 || o.use_async)) {
    return RefuseOption(
        "fragment_intervals", o.fragment_intervals[0],
        "with local_sgd_sync_interval or use_async, which would have no effect; set one");
  }
  return absl::OkStatus();
}

// Refuses options with which the remaining replicas could not repair their state, or could get
// different results within a layer.
absl::Status CheckOnLoss(const EditOptions& o) {
  if (o.silence > 0 && o.silence < kLeastSilence) {
    return RefuseOption("silence", o.silence, kTooShortSilence);
  }
  const auto refuse = [&](absl::string_view why) {
    return RefuseOption("on_loss", static_cast<int32_t>(o.on_loss), why);
  };
  if (o.on_loss == OnLoss::kFail) {
    return absl::OkStatus();
  }
  if (o.error_feedback) {
    return refuse(
        "(finish) does not go with error_feedback: a layer that is sent again would pay twice");
  }
  if (o.outer_optimizer == OuterKind::kCallback && o.admit != Admit::kNone) {
    return RefuseOption("admit", static_cast<int32_t>(o.admit),
                        "(exchange) does not go with outer_optimizer callback, whose state the "
                        "library cannot send");
  }
  return o.compat ? refuse("(finish) does not go with compat") : absl::OkStatus();
}

// Refuses options that make a repair impossible. A repair replaces the library's state of a layer
// by that of a replica with the right anchor, before the exchange begins.
absl::Status CheckAnchorCheck(const EditOptions& o) {
  const auto refuse = [&](absl::string_view why) {
    return RefuseOption("anchor_check", static_cast<int32_t>(o.anchor_check), why);
  };
  if (o.anchor_check != AnchorCheck::kRepair) {
    return absl::OkStatus();
  }
  if (o.outer_optimizer == OuterKind::kCallback) {
    return refuse(
        "(repair) does not go with outer_optimizer callback, whose state the library cannot send");
  }
  if (o.overlap_merge == OverlapMerge::kRestart) {
    return refuse(
        "(repair) does not go with overlap_merge restart, whose parameters continue from the "
        "anchor before it is compared");
  }
  return absl::OkStatus();
}

// Refuses options that do not work for a late replica. The worker of a late replica runs a round
// while the caller trains. The refused options need the caller in the round, or have state of which
// the worker would need two versions.
absl::Status CheckClosing(const EditOptions& o) {
  if (!o.closes_early()) {
    return absl::OkStatus();
  }
  const struct {
    bool set;
    absl::string_view why;
  } refused[] = {
      {o.plain(), "need an anchor; set an outer_optimizer or a reducer"},
      {o.use_async, "do not go with use_async"},
      {o.fragments > 1 && !o.decoupled(), "go with fragments only if overlap_steps is set"},
      {o.decoupled() && o.overlap_merge == OverlapMerge::kRestart,
       "and overlap_steps go with overlap_merge add and mix"},
      {o.decoupled() && o.anchor_check == AnchorCheck::kRepair,
       "and overlap_steps do not go with anchor_check repair"},
      {o.decoupled() && o.staleness_penalty,
       "and overlap_steps do not go with staleness_penalty, which takes every delta for one round "
       "old"},
      {o.error_feedback, "do not go with error_feedback"},
      {o.compat, "do not go with compat"},
      {o.carries() && o.anchor_check == AnchorCheck::kRepair,
       "go with anchor_check repair only if late is drop"},
  };
  for (const auto& [set, why] : refused) {
    if (set) {
      return o.quorum > 0
                 ? RefuseOption("quorum", o.quorum, absl::StrCat("and round_deadline ", why))
                 : RefuseOption("round_deadline", o.round_deadline,
                                absl::StrCat("and quorum ", why));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Span<const EditOption> EditOptionTable() {
  return kOptions;
}

absl::Status CheckOptions(const EditOptions& options) {
  ENTRAIN_RETURN_IF_ERROR(CheckRanges(EditOptionTable(), options));
  ENTRAIN_RETURN_IF_ERROR(CheckOuter(options));
  ENTRAIN_RETURN_IF_ERROR(CheckInert(EditOptionTable(), options));
  if (options.use_step_weight && options.step_weight_ratio == 0) {
    return RefuseOption("step_weight_ratio", 0,
                        "leaves use_step_weight without effect; set it above 0");
  }
  ENTRAIN_RETURN_IF_ERROR(CheckMerging(options.merging()));
  ENTRAIN_RETURN_IF_ERROR(CheckOnLoss(options));
  ENTRAIN_RETURN_IF_ERROR(CheckAnchorCheck(options));
  ENTRAIN_RETURN_IF_ERROR(CheckClosing(options));
  ENTRAIN_RETURN_IF_ERROR(CheckFragmentNumbers(options));
  return CheckOverlap(options);
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
        return RefuseOption(
            "density", options.density,
            absl::StrCat("leaves nothing of a shard of ", here, " elements (a layer of ", count,
                         " over ", slots, " ranks)"));
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
  merging.sparsify_chunk = sparsify_chunk;
  merging.seed = seed;
  merging.wire_format = wire_format;
  merging.wire_block = wire_block;
  merging.wire_rounding = wire_rounding;
  merging.error_feedback = error_feedback;
  merging.error_decay = error_decay;
  return merging;
}

std::vector<NamedValue> SharedOptions(const EditOptions& options) {
  std::vector<NamedValue> shared = {
      {"ewma_as_published", static_cast<double>(options.ewma_as_published)}};
  AppendShared(EditOptionTable(), options, &shared);
  shared.push_back({"outer_schedule", options.outer_schedule != nullptr ? 1.0 : 0.0});
  shared.push_back({"interval_schedule", options.interval_schedule != nullptr ? 1.0 : 0.0});
  shared.push_back(SizeOfIdentity(options.identity));
  return shared;
}

absl::StatusOr<int64_t> EditOptions::IntervalNs(int64_t exchanges, int64_t steps) const {
  double tau = local_sgd_sync_time;
  if (interval_schedule != nullptr) {
    tau = interval_schedule(interval_schedule_user, exchanges, steps);
    if (!(tau > 0 && tau <= kMaxSyncTime)) {
      return absl::AbortedError(absl::StrCat("interval_schedule: ", tau, " s after ", exchanges,
                                             " exchanges; expected more than 0 and at most ",
                                             kMaxSyncTime));
    }
  }
  return static_cast<int64_t>(tau * static_cast<double>(kSecond));
}

}  // namespace entrain
