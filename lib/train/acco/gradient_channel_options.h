// The options of a gradient channel. include/entrain/train.h explains each option;
// acco_option_list.h has a row for each option that is a single number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "lib/base/dtype.h"
#include "lib/comm/agree.h"
#include "lib/comm/failure/survivors.h"
#include "lib/memory/buffer.h"
#include "lib/optim/optimizer.h"
#include "lib/train/acco/acco_option_list.h"
#include "lib/train/elastic/applicants.h"
#include "lib/train/on_loss.h"
#include "lib/train/option_list.h"

namespace entrain {

// The values are those of the C ABI (train.h).
enum class DelayMethod : int32_t { kAcco = 0, kDpu = 1, kWp = 2, kZero1 = 3 };
enum class ProgressUnit : int32_t { kCommits = 0, kGradients = 1, kTokens = 2 };

// Makes one step of the caller's optimizer on elements [first, first + count) of this rank's shard;
// see entrain_acco_step_fn.
using ShardStepFn = int32_t (*)(void* user, int32_t preview, int64_t step, double lr, size_t first,
                                size_t count, const void* grads, void* master, void* out);
using ScheduleFn = double (*)(void* user, int64_t progress);

// A range of the parameters, [first, first + count), with its optimizer and a factor for its
// learning rate.
struct ParameterGroup {
  int64_t first = 0, count = 0;
  std::shared_ptr<const Optimizer> optimizer;  // null: ChannelOptions::optimizer
  double lr_scale = 1;
};

// The largest number of ranks of a channel with option admit. The ranks must agree on each
// admission, and Survivors allows no more ranks in an agreement.
constexpr int kMostChannelRanks = Survivors::kMostRanks;

struct ChannelOptions {
  ENTRAIN_ACCO_OPTIONS(ENTRAIN_OPTION_FIELD)
  int64_t count = 0;       // number of parameters (Psi)
  void* params = nullptr;  // memory of the caller
  int64_t limit_ns = 0;    // time limit of a wait for other ranks
  DType params_dtype = DType::kF32;
  DType grads_dtype = DType::kF32;  // type of the accumulator
  DType wire_dtype = DType::kF32;   // type in which gradients are sent
  std::vector<int32_t> scripted;    // by round: exact number of micro-batches; empty: not used
  ScheduleFn schedule = nullptr;    // replaces lr, min_lr, schedule_warmup and schedule_total
  void* schedule_user = nullptr;
  std::shared_ptr<const Optimizer> optimizer;  // for elements in no group; null if `step` is set
  ShardStepFn step = nullptr;
  void* user = nullptr;
  std::vector<ParameterGroup> groups;  // ascending, disjoint; empty if `step` is set
  // With admit: the store in which newcomers apply, and the name of their applications.
  OpenStoreFn admit_store = nullptr;
  std::string admit_name = "acco";
  std::vector<NamedValue> identity;  // ParseIdentity
  std::string identity_text;         // the same, for checkpoints

  // Returns the type of the shard on which the optimizer works.
  DType master_dtype() const { return params_dtype == DType::kF64 ? DType::kF64 : DType::kF32; }
  // Returns true if ranks may be lost without an error, or may join.
  bool ranks_change() const { return on_loss == OnLoss::kFinish || admit == Admit::kExchange; }
};

// Returns the options in the order of acco_option_list.h.
absl::Span<const Option<ChannelOptions>> AccoOptionTable();
// Returns kInvalidArgument if an option is wrong. The message names the option, its value and a
// remedy.
absl::Status CheckOptions(const ChannelOptions& options);
// Returns kInvalidArgument if the options do not allow this number of ranks.
absl::Status CheckRanks(const ChannelOptions& options, int ranks);
// SharedOptions and SharedGroups return the values that must be equal on all ranks. SharedGroups
// must be called only if all ranks have the same number of groups.
std::vector<NamedValue> SharedOptions(const ChannelOptions& options);
std::vector<NamedValue> SharedGroups(const ChannelOptions& options);
// Returns the values that must be equal on members and newcomers (NamedGroups). Optimizers do not
// have the same hyper-parameters. So each optimizer is represented by the result of a step on fixed
// values.
std::vector<std::vector<NamedValue>> AlikeForNewcomers(const ChannelOptions& options);
// Returns groups that cover all parameters, each with its optimizer: the given groups, and groups
// for the elements between them. If the caller has a step function, returns no group. The options
// must have been checked.
std::vector<ParameterGroup> AllGroups(const ChannelOptions& options);
// Returns the learning rate at `progress`, whose unit is schedule_unit. If `schedule` is null, the
// rate rises linearly until schedule_warmup. Then the rate falls along half a cosine until
// schedule_total; if schedule_total is 0, it stays at lr.
double RateAt(const ChannelOptions& options, int64_t progress);

}  // namespace entrain
