// The options of EDiT, under the names of the published code, and which of them make sense
// together. include/entrain/train.h says what each means; edit_option_list.h has a row for each.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "lib/base/clock.h"
#include "lib/base/merging.h"
#include "lib/comm/agree.h"
#include "lib/train/edit_option_list.h"
#include "lib/train/option_list.h"

namespace entrain {

// Values are the C ABI's (train.h).
enum class OuterKind : int32_t { kNone = 0, kSgd = 1, kAdamw = 2, kCallback = 3, kLion = 4 };
enum class ReducerKind : int32_t { kNone = 0, kLinear = 1, kGta = 2 };
// What becomes of theta when an exchange that ran behind further steps is merged; see train.h.
enum class OverlapMerge : int32_t { kAdd = 0, kMix = 1, kRestart = 2 };
enum class FragmentPattern : int32_t { kSequential = 0, kStrided = 1 };

// a ← a step against grad, elements of one layer's shard on this rank. `step` is 1 for the first. Not 0: it failed.
using OuterStepFn = int32_t (*)(void* user, int32_t layer, int64_t step, float* anchor,
                                const float* grad, size_t count);

struct EditOptions {
  ENTRAIN_EDIT_OPTIONS(ENTRAIN_OPTION_FIELD)
  OuterStepFn outer_step = nullptr;  // callback
  void* outer_user = nullptr;
  std::vector<int32_t> fragment_of_layer;   // by layer, instead of the pattern; or empty
  std::vector<int64_t> fragment_intervals;  // by fragment, instead of H; or empty
  std::vector<int64_t> fragment_offsets;    // by fragment; empty: evenly over the interval
  // Not in the C ABI.
  bool ewma_as_published = false;  // the moments of the detector, as in compat; for comparisons
  const Clock* clock = &Clock::Real();  // of use_async

  // Neither outer optimizer nor reducer: parameters are averaged, and there are no anchors.
  bool plain() const {
    return outer_optimizer == OuterKind::kNone && reducer == ReducerKind::kNone;
  }
  // Outer optimizers of the library's own, which have a learning rate; and those with two betas.
  bool outer_has_rate() const {
    return outer_optimizer != OuterKind::kNone && outer_optimizer != OuterKind::kCallback;
  }
  bool outer_has_betas() const {
    return outer_optimizer == OuterKind::kAdamw || outer_optimizer == OuterKind::kLion;
  }
  // Whether the outer step depends on norms of what goes into it.
  bool scales_outer() const {
    return clip_pseudo_grad > 0 || staleness_penalty || outer_momentum_clip > 0;
  }
  // On a device, deltas under way at once at most: two keep the link busy while one of them is finished. But
  // calls that draw at random draw in the order in which they are copied to the host, so there is only one.
  int in_flight() const {
    const bool draws = sparsification_method == Sparsification::kRandom ||
                       sparsification_method == Sparsification::kRescaledRandom ||
                       wire_rounding == WireRounding::kStochastic;
    return draws || (prefetch == 0 && overlap_steps == 0) ? 1 : 2;
  }
  // How deltas are merged and travel, but for the weights.
  Merging merging() const;
  // T with its default put in.
  double temperature() const {
    return weight_softmax_temperature > 0 ? weight_softmax_temperature : 1;
  }
  int64_t interval_ns() const {
    return static_cast<int64_t>(local_sgd_sync_time * static_cast<double>(kSecond));
  }
  // Steps that all replicas together make at least between two exchanges.
  int64_t least_steps() const { return use_async ? min_total_global_steps : 1; }
};

using EditOption = Option<EditOptions>;
// In the order of edit_option_list.h.
absl::Span<const EditOption> EditOptionTable();

// kInvalidArgument names the option, its value and what to do instead.
absl::Status CheckOptions(const EditOptions& options);
// Also that every shard of a layer has something left when it is sparsified; `counts`: elements of the layers that train.
absl::Status CheckDensity(const EditOptions& options, int slots, absl::Span<const int64_t> counts);
// What all ranks must give alike: the rows that are shared.
std::vector<NamedValue> SharedOptions(const EditOptions& options);

}  // namespace entrain
