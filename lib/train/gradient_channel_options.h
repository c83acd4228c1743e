// The options of a gradient channel. include/entrain/train.h says what each means; acco_option_list.h has a row for each that is one
// number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "lib/base/dtype.h"
#include "lib/comm/agree.h"
#include "lib/optim/optimizer.h"
#include "lib/train/acco_option_list.h"
#include "lib/train/option_list.h"
#include "lib/train/placed_array.h"

namespace entrain {

// Values are the C ABI's (train.h).
enum class DelayMethod : int32_t { kAcco = 0, kDpu = 1, kWp = 2, kZero1 = 3 };
enum class ProgressUnit : int32_t { kCommits = 0, kGradients = 1, kTokens = 2 };

// One step of the caller's optimizer on elements [first, first + count) of this rank's shard; see entrain_acco_step_fn.
using ShardStepFn = int32_t (*)(void* user, int32_t preview, int64_t step, double lr, size_t first,
                                size_t count, const void* grads, void* master, void* out);
using ScheduleFn = double (*)(void* user, int64_t progress);

// Elements [first, first + count) of the parameters, with an optimizer and a factor of the rate.
struct ParameterGroup {
  int64_t first = 0, count = 0;
  std::shared_ptr<const Optimizer> optimizer;  // null: ChannelOptions::optimizer
  double lr_scale = 1;
};

struct ChannelOptions {
  ENTRAIN_ACCO_OPTIONS(ENTRAIN_OPTION_FIELD)
  int64_t count = 0;       // Psi
  void* params = nullptr;  // the caller's, lent
  ArraysAt at;             // where they are, and all arrays of the channel's
  DType params_dtype = DType::kF32;
  DType grads_dtype = DType::kF32;  // of the accumulator
  DType wire_dtype = DType::kF32;   // of gradients on their way
  std::vector<int32_t> scripted;    // by round: exactly so many micro-batches; empty: none
  ScheduleFn schedule = nullptr;    // instead of lr, min_lr, schedule_warmup and schedule_total
  void* schedule_user = nullptr;
  std::shared_ptr<const Optimizer> optimizer;  // of what is in no group; or
  ShardStepFn step = nullptr;
  void* user = nullptr;
  std::vector<ParameterGroup> groups;  // ascending, disjoint; not with a step of the caller's own

  // Of the shard that the optimizer works on.
  DType master_dtype() const { return params_dtype == DType::kF64 ? DType::kF64 : DType::kF32; }
};

// In the order of acco_option_list.h.
absl::Span<const Option<ChannelOptions>> AccoOptionTable();
// kInvalidArgument names the option, its value and what to do instead.
absl::Status CheckOptions(const ChannelOptions& options);
// The values that all ranks must give alike. SharedGroups is for ranks that have equally many groups.
std::vector<NamedValue> SharedOptions(const ChannelOptions& options);
std::vector<NamedValue> SharedGroups(const ChannelOptions& options);
// All parameters as groups, those in between and an optimizer for each filled in; empty with a step of the caller's own. Of
// options that have been checked.
std::vector<ParameterGroup> AllGroups(const ChannelOptions& options);
// Returns the learning rate after this much progress, in schedule_unit: linear up to schedule_warmup, then half a cosine.
double RateAt(const ChannelOptions& options, int64_t progress);

}  // namespace entrain
