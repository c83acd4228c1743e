// The options of EDiT, and the checks of their combinations. The names are those of the published
// code. include/entrain/train.h explains each option, and edit_option_list.h has a row for each
// option.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "lib/base/clock.h"
#include "lib/base/merging.h"
#include "lib/comm/agree.h"
#include "lib/store/store.h"
#include "lib/train/edit/edit_option_list.h"
#include "lib/train/on_loss.h"
#include "lib/train/option_list.h"

namespace entrain {

// The values are those of the C ABI (train.h).
enum class OuterKind : int32_t { kNone = 0, kSgd = 1, kAdamw = 2, kCallback = 3, kLion = 4 };
enum class ReducerKind : int32_t { kNone = 0, kLinear = 1, kGta = 2 };
// How a replica merges the result of an exchange with the steps that it has made during the
// exchange; see train.h.
enum class OverlapMerge : int32_t { kAdd = 0, kMix = 1, kRestart = 2 };
// Selects what happens if the anchors of the replicas differ at an exchange; see train.h.
enum class AnchorCheck : int32_t { kStop = 0, kRepair = 1, kOff = 2 };
// Selects what happens to the pseudo-gradient of a replica that is late for a round; see train.h.
enum class Late : int32_t { kDrop = 0, kCarry = 1, kWeighted = 2 };
enum class FragmentPattern : int32_t { kSequential = 0, kStrided = 1 };

// Makes one outer step on `anchor`, with the gradient `grad`. Both arrays have `count` elements:
// this rank's shard of one layer. `step` counts from 1. A result other than 0 is a failure.
using OuterStepFn = int32_t (*)(void* user, int32_t layer, int64_t step, float* anchor,
                                const float* grad, size_t count);

// The learning rate and the momentum of an outer step; see train.h.
using OuterScheduleFn = int32_t (*)(void* user, int32_t layer, int64_t step, double* lr,
                                    double* momentum);
// Returns H or tau of an interval; see train.h.
using IntervalScheduleFn = double (*)(void* user, int64_t exchanges, int64_t steps);

struct EditOptions {
  ENTRAIN_EDIT_OPTIONS(ENTRAIN_OPTION_FIELD)
  OuterStepFn outer_step = nullptr;  // for outer_optimizer callback
  // If not null, it copies the caller's parameters into the arrays of LayerArrays, and LayerSync calls it
  // before it reads or changes them.
  int32_t (*fetch)(void* user) = nullptr;
  void* fetch_user = nullptr;
  void* outer_user = nullptr;
  OuterScheduleFn outer_schedule = nullptr;
  void* outer_schedule_user = nullptr;
  IntervalScheduleFn interval_schedule = nullptr;
  void* interval_schedule_user = nullptr;
  std::vector<int32_t> fragment_of_layer;   // by layer; if not empty, replaces fragment_pattern
  std::vector<int64_t> fragment_intervals;  // by fragment; if not empty, replaces H
  std::vector<int64_t> fragment_offsets;    // by fragment; empty: evenly spread over the interval
  // With admit: the store in which newcomers apply, and the name of their applications.
  std::function<absl::StatusOr<std::shared_ptr<Store>>(const Stop& stop)> admit_store = nullptr;
  std::string admit_name = "edit";
  std::vector<NamedValue> identity;  // ParseIdentity
  std::string identity_text;         // the same, for checkpoints
  // The fields below are not in the C ABI.
  bool ewma_as_published = false;       // AnomalyOptions::as_published; for comparisons
  const Clock* clock = &Clock::Real();  // for use_async

  // Returns true if there is neither an outer optimizer nor a reducer (plain averaging). Then
  // exchanges average the parameters, and there are no anchors.
  bool plain() const {
    return outer_optimizer == OuterKind::kNone && reducer == ReducerKind::kNone;
  }
  // outer_has_rate returns true for the library's own outer optimizers, all of which have a
  // learning rate. outer_has_betas returns true for those with two betas.
  bool outer_has_rate() const {
    return outer_optimizer != OuterKind::kNone && outer_optimizer != OuterKind::kCallback;
  }
  bool outer_has_betas() const {
    return outer_optimizer == OuterKind::kAdamw || outer_optimizer == OuterKind::kLion;
  }
  // Returns true if exchanges keep the combined delta of each layer. After a loss, replicas repeat
  // the caller's outer step with this delta, because the library cannot send the state of the
  // caller's step.
  bool keeps_means() const {
    return on_loss == OnLoss::kFinish && outer_optimizer == OuterKind::kCallback;
  }
  // Returns true if the outer step needs norms of the mean delta or of the momentum.
  bool scales_outer() const {
    return clip_pseudo_grad > 0 || staleness_penalty || outer_momentum_clip > 0;
  }
  // Returns true if rounds may be closed without some replicas.
  bool closes_early() const { return quorum > 0 || round_deadline > 0; }
  // Returns true if rounds are closed early, and no replica waits for them (background_rounds.h).
  bool decoupled() const { return closes_early() && overlap_steps > 0; }
  // Returns true if replicas make different numbers of steps between two exchanges.
  bool own_clocks() const { return use_async || decoupled(); }
  // Returns true if the caller's interval_schedule must give all replicas the same steps of
  // exchanges.
  bool schedules_steps() const {
    return interval_schedule != nullptr && !use_async && !closes_early();
  }
  // Returns true if a late replica keeps its pseudo-gradient for its next round.
  bool carries() const { return closes_early() && late != Late::kDrop; }
  // Returns the options that determine how deltas are merged and sent. Does not include the weights
  // of replicas.
  Merging merging() const;
  // Returns the temperature T of pseudo_gradnorm_reduce.
  double temperature() const {
    return weight_softmax_temperature > 0 ? weight_softmax_temperature : 1;
  }
  // Returns tau of the interval after `exchanges` intervals, at `steps` steps since warm-up. Returns
  // kAborted if the caller's schedule has given another value than the header allows.
  absl::StatusOr<int64_t> IntervalNs(int64_t exchanges, int64_t steps) const;
  // Returns the smallest total number of steps of all replicas between two exchanges.
  int64_t least_steps() const { return use_async ? min_total_global_steps : 1; }
};

using EditOption = Option<EditOptions>;
// Returns the options in the order of edit_option_list.h.
absl::Span<const EditOption> EditOptionTable();

// If an option is wrong, returns kInvalidArgument with the option, its value and a remedy.
absl::Status CheckOptions(const EditOptions& options);
// Must be called after CheckOptions. Checks that sparsification by magnitude keeps at least one
// element of every shard. `slots` is the number of shards of a layer. `counts` has the number of
// elements of each layer that trains.
absl::Status CheckDensity(const EditOptions& options, int slots, absl::Span<const int64_t> counts);
// Returns the values that must be equal on all ranks: the rows of the list that are marked as
// shared.
std::vector<NamedValue> SharedOptions(const EditOptions& options);

}  // namespace entrain
