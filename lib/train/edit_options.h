// The options of EDiT, under the names of the published code, and which of them make sense
// together. include/entrain/train.h says what each means.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "lib/base/clock.h"
#include "lib/base/merging.h"
#include "lib/comm/agree.h"

namespace entrain {

// Values are the C ABI's (train.h).
enum class OuterKind : int32_t { kNone = 0, kSgd = 1, kAdamw = 2, kCallback = 3 };
enum class ReducerKind : int32_t { kNone = 0, kLinear = 1, kGta = 2 };
// What becomes of theta when an exchange that ran behind further steps is merged; see train.h.
enum class OverlapMerge : int32_t { kAdd = 0, kMix = 1, kRestart = 2 };
enum class FragmentPattern : int32_t { kSequential = 0, kStrided = 1 };

// a ← a step against grad, elements of one layer's shard on this rank. `step` is 1 for the first. Not 0: it failed.
using OuterStepFn = int32_t (*)(void* user, int32_t layer, int64_t step, float* anchor,
                                const float* grad, size_t count);

struct EditOptions {
  int64_t local_sgd_sync_interval = 1;  // H
  bool use_async = false;               // A-EDiT: exchanges by time
  double local_sgd_sync_time = 600;     // tau, seconds
  int64_t min_total_global_steps = 100;
  bool use_step_weight = false;
  double step_weight_ratio = 0.5;      // r
  int64_t local_sgd_warmup_steps = 0;  // W_s
  int32_t gradient_accumulation_steps = 1;
  ReducerKind reducer = ReducerKind::kNone;
  Consensus consensus_method = Consensus::kNone;                 // of gta
  Sparsification sparsification_method = Sparsification::kNone;  // of gta
  double density = 1;                                            // of what is sparsified
  uint64_t seed = 0;                                             // of whatever is random
  WireFormat wire_format = WireFormat::kFull;
  int32_t wire_block = 0;
  WireRounding wire_rounding = WireRounding::kNearest;
  bool error_feedback = false;
  bool int8_mask = false;  // of no effect on results; signs are not stored
  bool pseudo_gradnorm_reduce = false;
  bool normalize = true;
  double weight_softmax_temperature = 0;  // T; 0: unset
  double clip_pseudo_grad = 0;            // phi; 0: off
  OuterKind outer_optimizer = OuterKind::kNone;
  bool outer_nesterov = false;
  double outer_lr = 0.7;        // eta
  double outer_momentum = 0.8;  // mu
  double outer_weight_decay = 0;
  double outer_beta1 = 0.9, outer_beta2 = 0.999, outer_eps = 1e-8;  // adamw
  OuterStepFn outer_step = nullptr;                                 // callback
  void* outer_user = nullptr;
  bool skip_anomaly = false;
  double ewma_alpha = 0.02;
  int64_t ewma_warmup_steps = 120;  // unit: exchanges
  double ewma_threshold = 3;
  bool ewma_as_published = false;  // the moments of the detector, as in compat; for comparisons
  bool cpu_offload = false;        // on a device: anchors and outer state are on the host
  bool is_debug = false;
  bool compat = false;  // arithmetic of the published code
  int32_t prefetch = 1;
  // 0: forward passes wait for the exchange. Otherwise it runs behind the steps that follow, and is merged with what they have
  // done: by steps, after so many of them; by time, when it has come (1).
  int32_t overlap_steps = 0;
  OverlapMerge overlap_merge = OverlapMerge::kAdd;
  double overlap_mix = 0.5;        // alpha, of kMix
  bool staleness_penalty = false;  // see staleness.h
  double outer_momentum_clip = 0;  // largest norm of a module's b; 0: off
  int32_t fragments = 1;           // P; each is exchanged at steps of its own
  FragmentPattern fragment_pattern = FragmentPattern::kSequential;
  std::vector<int32_t> fragment_of_layer;   // by layer, instead of the pattern; or empty
  std::vector<int64_t> fragment_intervals;  // by fragment, instead of H; or empty
  std::vector<int64_t> fragment_offsets;    // by fragment; empty: evenly over the interval
  int64_t timeout_ns = 0;
  const Clock* clock = &Clock::Real();  // of use_async

  // Neither outer optimizer nor reducer: parameters are averaged, and there are no anchors.
  bool plain() const {
    return outer_optimizer == OuterKind::kNone && reducer == ReducerKind::kNone;
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
  // Arrays as long as the anchors that the outer optimizer keeps: b; or both moments of adamw.
  int outer_arrays() const {
    return outer_optimizer == OuterKind::kAdamw                        ? 2
           : outer_optimizer == OuterKind::kSgd && outer_momentum != 0 ? 1
                                                                       : 0;
  }
};

// kInvalidArgument names the option, its value and what to do instead.
absl::Status CheckOptions(const EditOptions& options);
// Also that every shard of a layer has something left when it is sparsified; `counts`: elements of the layers that train.
absl::Status CheckDensity(const EditOptions& options, int slots, absl::Span<const int64_t> counts);
// What all ranks must give alike: everything but `prefetch` and `timeout_ns`.
std::vector<NamedValue> SharedOptions(const EditOptions& options);

}  // namespace entrain
