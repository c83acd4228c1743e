// The options of EDiT, under the names of the published code, and which of them make sense
// together. include/entrain/train.h says what each means.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "lib/comm/agree.h"

namespace entrain {

// Values are the C ABI's (train.h).
enum class OuterKind : int32_t { kNone = 0, kSgd = 1 };
enum class ReducerKind : int32_t { kNone = 0, kLinear = 1 };

struct EditOptions {
  int64_t local_sgd_sync_interval = 1;  // H
  int64_t local_sgd_warmup_steps = 0;   // W_s
  int32_t gradient_accumulation_steps = 1;
  ReducerKind reducer = ReducerKind::kNone;
  bool pseudo_gradnorm_reduce = false;
  bool normalize = true;
  double weight_softmax_temperature = 0;  // T; 0: unset
  double clip_pseudo_grad = 0;            // phi; 0: off
  OuterKind outer_optimizer = OuterKind::kNone;
  bool outer_nesterov = false;
  double outer_lr = 0.7;        // eta
  double outer_momentum = 0.8;  // mu
  double outer_weight_decay = 0;
  int32_t prefetch = 1;
  int64_t timeout_ns = 0;

  // Neither outer optimizer nor reducer: parameters are averaged, and there are no anchors.
  bool plain() const {
    return outer_optimizer == OuterKind::kNone && reducer == ReducerKind::kNone;
  }
  // T with its default put in.
  double temperature() const {
    return weight_softmax_temperature > 0 ? weight_softmax_temperature : 1;
  }
  // b exists.
  bool has_momentum() const { return outer_optimizer == OuterKind::kSgd && outer_momentum != 0; }
};

// kInvalidArgument names the option, its value and what to do instead.
absl::Status CheckOptions(const EditOptions& options);
// What all ranks must give alike: everything but `prefetch` and `timeout_ns`.
std::vector<NamedValue> SharedOptions(const EditOptions& options);

}  // namespace entrain
