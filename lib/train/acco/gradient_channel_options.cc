#include "lib/train/acco/gradient_channel_options.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/train/identity.h"

namespace entrain {
namespace {

constexpr double kPi = 3.14159265358979323846;

using namespace option_range;  // NOLINT: the ranges of the list
using Options = ChannelOptions;
constexpr Option<Options> kOptions[] = {ENTRAIN_ACCO_OPTIONS(ENTRAIN_OPTION_ROW)};

absl::Status CheckTypes(const ChannelOptions& o) {
  const auto is = [](DType dtype, std::initializer_list<DType> any) {
    return std::find(any.begin(), any.end(), dtype) != any.end();
  };
  if (!is(o.params_dtype, {DType::kF32, DType::kBF16, DType::kF64})) {
    return RefuseOption("params_dtype", NameOf(o.params_dtype), "is none of f32, bf16, f64");
  }
  if (o.params_dtype == DType::kF64) {
    if (o.step == nullptr) {
      return RefuseOption("params_dtype", "f64",
                          "needs a step of the caller's own; optim is for f32");
    }
    if (o.grads_dtype != DType::kF64 || o.wire_dtype != DType::kF64) {
      return RefuseOption("params_dtype", "f64", "goes with grads_dtype and wire_dtype f64");
    }
    return absl::OkStatus();
  }
  if (!is(o.grads_dtype, {o.params_dtype, DType::kF32})) {
    return RefuseOption("grads_dtype", NameOf(o.grads_dtype), "is neither params_dtype nor f32");
  }
  if (!is(o.wire_dtype, {DType::kF32, DType::kBF16})) {
    return RefuseOption("wire_dtype", NameOf(o.wire_dtype), "is neither f32 nor bf16");
  }
  return absl::OkStatus();
}

absl::Status CheckSchedule(const ChannelOptions& o) {
  if (o.min_lr > o.lr) {
    return RefuseOption("min_lr", o.min_lr, absl::StrCat("is above lr ", o.lr));
  }
  if (o.schedule_total > 0 && o.schedule_warmup >= o.schedule_total) {
    return RefuseOption("schedule_warmup", o.schedule_warmup,
                        absl::StrCat("is not below schedule_total ", o.schedule_total));
  }
  return absl::OkStatus();
}

absl::Status CheckMicrobatches(const ChannelOptions& o) {
  if (o.max_microbatches != 0 && o.max_microbatches < o.min_microbatches) {
    return RefuseOption(
        "max_microbatches", o.max_microbatches,
        absl::StrCat("is below min_microbatches ", o.min_microbatches, "; 0: no limit"));
  }
  for (const int32_t count : o.scripted) {
    if (count < 1) {
      return RefuseOption("scripted_counts", count, "is less than 1");
    }
  }
  if (!o.scripted.empty() && (o.min_microbatches != 1 || o.max_microbatches != 0)) {
    return RefuseOption(
        "scripted_counts", o.scripted[0],
        "with min_microbatches or max_microbatches, which would have no effect; set one");
  }
  return absl::OkStatus();
}

absl::Status CheckGroup(const ChannelOptions& o, size_t index, int64_t free_from) {
  const ParameterGroup& group = o.groups[index];
  const std::string name = absl::StrCat("groups[", index, "].");
  if (group.first < 0 || group.first >= o.count) {
    return RefuseOption(name + "first", group.first,
                        absl::StrCat("is not one of ", o.count, " elements"));
  }
  if (group.first < free_from) {
    return RefuseOption(name + "first", group.first,
                        absl::StrCat("is below ", free_from,
                                     ", where the group before it ends; groups are ascending"));
  }
  if (group.count < 1 || group.count > o.count - group.first) {
    return RefuseOption(name + "count", group.count,
                        absl::StrCat("is not 1 to ", o.count - group.first, ", from element ",
                                     group.first, " to the end"));
  }
  if (!(group.lr_scale > 0) || !std::isfinite(group.lr_scale)) {
    return RefuseOption(name + "lr_scale", group.lr_scale, "is not a finite number above 0");
  }
  if (group.optimizer == nullptr && o.optimizer == nullptr) {
    return RefuseOption(name + "optim", "NULL", "and optim is NULL too; set one of them");
  }
  return absl::OkStatus();
}

// Checks that each element has exactly one optimizer.
absl::Status CheckOptimizers(const ChannelOptions& o) {
  if (!o.groups.empty() && o.step != nullptr) {
    return RefuseOption("group_count", o.groups.size(),
                        "with a step, which steps all elements; set one of them");
  }
  if (o.groups.empty() && (o.optimizer == nullptr) == (o.step == nullptr)) {
    return RefuseOption("optim", o.optimizer == nullptr ? "NULL" : "given",
                        o.optimizer == nullptr ? "without a step; set one of them"
                                               : "with a step; set one of them");
  }
  int64_t end = 0, gap = -1;  // gap: first element in no group
  for (size_t i = 0; i < o.groups.size(); ++i) {
    ENTRAIN_RETURN_IF_ERROR(CheckGroup(o, i, end));
    gap = gap < 0 && o.groups[i].first > end ? end : gap;
    end = o.groups[i].first + o.groups[i].count;
  }
  gap = gap < 0 && end < o.count ? end : gap;
  return o.groups.empty() || o.optimizer != nullptr || gap < 0
             ? absl::OkStatus()
             : RefuseOption("optim", "NULL",
                            absl::StrCat("and element ", gap, " lies in no group"));
}

// With kFinish, each rank keeps a copy of its left neighbour's shard and makes every step on the
// copy too. This is impossible with a step function of the caller, because the library cannot copy
// the function's state.
absl::Status CheckOnLoss(const ChannelOptions& o) {
  if (o.silence > 0 && o.silence < kLeastSilence) {
    return RefuseOption("silence", o.silence, kTooShortSilence);
  }
  const auto refuse = [&](absl::string_view why) {
    return RefuseOption("on_loss", static_cast<int32_t>(o.on_loss), why);
  };
  if (o.on_loss == OnLoss::kFail) {
    return absl::OkStatus();
  }
  if (o.step != nullptr) {
    return refuse(
        "(finish) does not go with a step of the caller's, whose state the library cannot copy; "
        "use optim");
  }
  return absl::OkStatus();
}

// A newcomer receives the optimizer's state of its shard from the members. The library can send
// only state that the library keeps.
absl::Status CheckAdmit(const ChannelOptions& o) {
  const auto refuse = [&](absl::string_view why) {
    return RefuseOption("admit", static_cast<int32_t>(o.admit), why);
  };
  if (o.admit == Admit::kNone) {
    return absl::OkStatus();
  }
  if (o.step != nullptr) {
    return refuse(
        "(exchange) does not go with a step of the caller's, whose state the library cannot send "
        "to newcomers; use optim");
  }
  if (o.admit_store == nullptr) {
    return refuse("(exchange) needs admit_store, in which newcomers apply");
  }
  return absl::OkStatus();
}

// Makes a step on fixed values and returns the sum of the results. Optimizers with different
// hyper-parameters return different numbers.
double TrialStep(const Optimizer& rule) {
  constexpr size_t kElements = 4;
  std::array<float, kElements> master = {1, -2, 0.5, 3}, out = {};
  const std::array<float, kElements> grads = {0.5, -0.25, 1e-7f, 2};
  std::vector<std::vector<float>> arrays;
  std::vector<float*> state;
  for (int i = 0; i < rule.state_arrays(); ++i) {
    const float value = 0.25f / static_cast<float>(i + 1);
    arrays.push_back({value, value / 2, 1e-14f, value / 4});
  }
  for (std::vector<float>& array : arrays) {
    state.push_back(array.data());
  }
  rule.Step({.count = kElements,
             .master = master.data(),
             .grads = grads.data(),
             .state = state,
             .out = out.data(),
             .step = 3,
             .lr = 0.5},
            Apply::kPreview);
  return std::accumulate(out.begin(), out.end(), 0.0);
}

}  // namespace

absl::Span<const Option<ChannelOptions>> AccoOptionTable() {
  return kOptions;
}

std::vector<ParameterGroup> AllGroups(const ChannelOptions& o) {
  std::vector<ParameterGroup> all;
  if (o.step != nullptr) {
    return all;
  }
  int64_t end = 0;
  const auto fill = [&](int64_t to) {
    if (end < to) {
      all.push_back({end, to - end, o.optimizer});
    }
  };
  for (const ParameterGroup& group : o.groups) {
    fill(group.first);
    all.push_back(group);
    all.back().optimizer = group.optimizer ? group.optimizer : o.optimizer;
    end = group.first + group.count;
  }
  fill(o.count);
  return all;
}

absl::Status CheckOptions(const ChannelOptions& o) {
  if (o.count < 1) {
    return RefuseOption("count", o.count, "is less than 1");
  }
  if (o.params == nullptr) {
    return RefuseOption("params", "NULL", "is no memory for parameters");
  }
  ENTRAIN_RETURN_IF_ERROR(CheckOptimizers(o));
  ENTRAIN_RETURN_IF_ERROR(CheckTypes(o));
  ENTRAIN_RETURN_IF_ERROR(CheckMicrobatches(o));
  ENTRAIN_RETURN_IF_ERROR(CheckRanges(AccoOptionTable(), o));
  ENTRAIN_RETURN_IF_ERROR(CheckSchedule(o));
  ENTRAIN_RETURN_IF_ERROR(CheckOnLoss(o));
  ENTRAIN_RETURN_IF_ERROR(CheckAdmit(o));
  return CheckInert(AccoOptionTable(), o);
}

absl::Status CheckRanks(const ChannelOptions& o, int ranks) {
  return o.admit == Admit::kNone || ranks <= kMostChannelRanks
             ? absl::OkStatus()
             : RefuseOption("admit", static_cast<int32_t>(o.admit),
                            absl::StrCat("(exchange) is for at most ", kMostChannelRanks,
                                         " ranks, and the communicator has ", ranks));
}

std::vector<NamedValue> SharedOptions(const ChannelOptions& o) {
  std::vector<NamedValue> shared = {{"count", static_cast<double>(o.count)},
                                    {"params_dtype", static_cast<double>(o.params_dtype)},
                                    {"wire_dtype", static_cast<double>(o.wire_dtype)}};
  AppendShared(AccoOptionTable(), o, &shared);
  shared.push_back({"group_count", static_cast<double>(o.groups.size())});
  shared.push_back(SizeOfIdentity(o.identity));
  return shared;
}

std::vector<NamedValue> SharedGroups(const ChannelOptions& o) {
  std::vector<NamedValue> values;
  for (size_t i = 0; i < o.groups.size(); ++i) {
    const ParameterGroup& group = o.groups[i];
    const std::string name = absl::StrCat("groups[", i, "].");
    values.push_back({name + "first", static_cast<double>(group.first)});
    values.push_back({name + "count", static_cast<double>(group.count)});
    values.push_back({name + "lr_scale", group.lr_scale});
    values.push_back(
        {name + "optim: state arrays",
         static_cast<double>((group.optimizer ? group.optimizer : o.optimizer)->state_arrays())});
  }
  return values;
}

std::vector<std::vector<NamedValue>> AlikeForNewcomers(const ChannelOptions& o) {
  std::vector<NamedValue> rules;
  for (const ParameterGroup& group : AllGroups(o)) {
    const std::string name = absl::StrCat("optim of element ", group.first, ": ");
    rules.push_back({name + "state arrays", static_cast<double>(group.optimizer->state_arrays())});
    rules.push_back({name + "result of a trial step", TrialStep(*group.optimizer)});
  }
  std::vector<std::vector<NamedValue>> alike = {SharedOptions(o)};
  if (!o.groups.empty()) {
    alike.push_back(SharedGroups(o));
  }
  alike.push_back(std::move(rules));
  if (!o.identity.empty()) {
    alike.push_back(o.identity);
  }
  return alike;
}

double RateAt(const ChannelOptions& o, int64_t progress) {
  if (o.schedule != nullptr) {
    return o.schedule(o.schedule_user, progress);
  }
  if (progress < o.schedule_warmup) {
    return o.lr * static_cast<double>(progress) / static_cast<double>(o.schedule_warmup);
  }
  if (o.schedule_total == 0) {
    return o.lr;
  }
  const double part = std::min(1.0, static_cast<double>(progress - o.schedule_warmup) /
                                        static_cast<double>(o.schedule_total - o.schedule_warmup));
  return o.min_lr + (o.lr - o.min_lr) * 0.5 * (1 + std::cos(kPi * part));
}

}  // namespace entrain
