// The options of EDiT, under the names of the published code, and the checks of their combinations.
// include/entrain/train.h explains each option; edit_option_list.h has a row for each.
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
#include "lib/train/edit_option_list.h"
#include "lib/train/on_loss.h"
#include "lib/train/option_list.h"

namespace entrain {

// Values are the C ABI's (train.h).
enum class OuterKind : int32_t { kNone = 0, kSgd = 1, kAdamw = 2, kCallback = 3, kLion = 4 };
enum class ReducerKind : int32_t { kNone = 0, kLinear = 1, kGta = 2 };
// How a replica merges the result of an exchange with the steps that it made during the exchange;
// see train.h.
enum class OverlapMerge : int32_t { kAdd = 0, kMix = 1, kRestart = 2 };
// The reaction if the anchors of replicas differ at an exchange; see train.h.
enum class AnchorCheck : int32_t { kStop = 0, kRepair = 1, kOff = 2 };
// The treatment of the pseudo-gradient of a replica that is late for a round; see train.h.
enum class Late : int32_t { kDrop = 0, kCarry = 1, kWeighted = 2 };
enum class FragmentPattern : int32_t { kSequential = 0, kStrided = 1 };

// Makes one outer step of `anchor` with the gradient `grad`. Both are elements of one layer's shard
// on this rank. `step` counts from 1. A result other than 0 is a failure.
using OuterStepFn = int32_t (*)(void* user, int32_t layer, int64_t step, float* anchor,
                                const float* grad, size_t count);

struct EditOptions {
  ENTRAIN_EDIT_OPTIONS(ENTRAIN_OPTION_FIELD)
  OuterStepFn outer_step = nullptr;  // for outer_optimizer callback
  void* outer_user = nullptr;
  std::vector<int32_t> fragment_of_layer;   // by layer; replaces the pattern if not empty
  std::vector<int64_t> fragment_intervals;  // by fragment; replaces H if not empty
  std::vector<int64_t> fragment_offsets;    // by fragment; empty: evenly over the interval
  // For admit: the store in which newcomers apply, and the name under which they apply.
  std::function<absl::StatusOr<std::shared_ptr<Store>>(const Stop& stop)> admit_store = nullptr;
  std::string admit_name = "edit";
  // The fields below are not in the C ABI.
  bool ewma_as_published = false;       // detector uses published moments; for comparisons
  const Clock* clock = &Clock::Real();  // for use_async

  // Returns true if there is neither an outer optimizer nor a reducer. Then parameters are
  // averaged, and there are no anchors.
  bool plain() const {
    return outer_optimizer == OuterKind::kNone && reducer == ReducerKind::kNone;
  }
  // Returns true for the library's own outer optimizers, which have a learning rate.
  // outer_has_betas returns true for those with two betas.
  bool outer_has_rate() const {
    return outer_optimizer != OuterKind::kNone && outer_optimizer != OuterKind::kCallback;
  }
  bool outer_has_betas() const {
    return outer_optimizer == OuterKind::kAdamw || outer_optimizer == OuterKind::kLion;
  }
  // Returns true if exchanges keep each layer's combined delta. After a loss, replicas repeat the
  // caller's outer step with this delta, because the library cannot send the state of the caller's
  // step.
  bool keeps_means() const {
    return on_loss == OnLoss::kFinish && outer_optimizer == OuterKind::kCallback;
  }
  // Returns true if the outer step depends on norms of its input.
  bool scales_outer() const {
    return clip_pseudo_grad > 0 || staleness_penalty || outer_momentum_clip > 0;
  }
  // Returns the largest number of deltas in flight on a device. With two deltas, one keeps the link
  // busy while the other is finished. Calls that draw random numbers allow only one delta in
  // flight, because they draw in the order in which data is copied to the host.
  int in_flight() const {
    const bool draws = sparsification_method == Sparsification::kRandom ||
                       sparsification_method == Sparsification::kRescaledRandom ||
                       wire_rounding == WireRounding::kStochastic;
    return draws || (prefetch == 0 && overlap_steps == 0) ? 1 : 2;
  }
  // Returns true if rounds may be closed without some replicas.
  bool closes_early() const { return quorum > 0 || round_deadline > 0; }
  // Returns true if late replicas keep their pseudo-gradients.
  bool carries() const { return closes_early() && late != Late::kDrop; }
  // Returns how deltas are merged and sent, except for the weights.
  Merging merging() const;
  // Returns T, or its default.
  double temperature() const {
    return weight_softmax_temperature > 0 ? weight_softmax_temperature : 1;
  }
  int64_t interval_ns() const {
    return static_cast<int64_t>(local_sgd_sync_time * static_cast<double>(kSecond));
  }
  // Returns the number of steps that all replicas together must make, at least, between two
  // exchanges.
  int64_t least_steps() const { return use_async ? min_total_global_steps : 1; }
};

using EditOption = Option<EditOptions>;
// Returns the options in the order of edit_option_list.h.
absl::Span<const EditOption> EditOptionTable();

// Returns kInvalidArgument, naming the option, its value and a remedy, if one is wrong.
absl::Status CheckOptions(const EditOptions& options);
// Must be called after CheckOptions. Checks that sparsification by magnitude leaves at least one
// element in every shard of a layer. `counts` holds the numbers of elements of the layers that
// train.
absl::Status CheckDensity(const EditOptions& options, int slots, absl::Span<const int64_t> counts);
// Returns the values that must be equal on all ranks: the rows marked as shared.
std::vector<NamedValue> SharedOptions(const EditOptions& options);

}  // namespace entrain
