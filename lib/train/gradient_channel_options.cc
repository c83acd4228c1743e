// What a gradient channel can be asked for.
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/train/gradient_channel.h"

namespace entrain {
namespace {

constexpr double kPi = 3.14159265358979323846;

template <typename T>
absl::Status Refuse(absl::string_view name, T value, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", value, " ", why));
}

absl::Status CheckNotNegative(absl::string_view name, int64_t value) {
  return value >= 0 ? absl::OkStatus() : Refuse(name, value, "is negative");
}

absl::Status CheckTypes(const ChannelOptions& o) {
  const auto is = [](DType dtype, std::initializer_list<DType> any) {
    return std::find(any.begin(), any.end(), dtype) != any.end();
  };
  if (!is(o.params_dtype, {DType::kF32, DType::kBF16, DType::kF64})) {
    return Refuse("params_dtype", NameOf(o.params_dtype), "is none of f32, bf16, f64");
  }
  if (o.params_dtype == DType::kF64) {
    if (o.step == nullptr) {
      return Refuse("params_dtype", "f64", "needs a step of the caller's own; optim is for f32");
    }
    if (o.grads_dtype != DType::kF64 || o.wire_dtype != DType::kF64) {
      return Refuse("params_dtype", "f64", "goes with grads_dtype and wire_dtype f64");
    }
    return absl::OkStatus();
  }
  if (!is(o.grads_dtype, {o.params_dtype, DType::kF32})) {
    return Refuse("grads_dtype", NameOf(o.grads_dtype), "is neither params_dtype nor f32");
  }
  if (!is(o.wire_dtype, {DType::kF32, DType::kBF16})) {
    return Refuse("wire_dtype", NameOf(o.wire_dtype), "is neither f32 nor bf16");
  }
  return absl::OkStatus();
}

absl::Status CheckSchedule(const RateSchedule& s) {
  for (const auto& [name, value] : {std::make_pair("lr", s.lr), {"min_lr", s.min_lr}}) {
    if (!(value >= 0) || !std::isfinite(value)) {
      return Refuse(name, value, "is not a finite number of at least 0");
    }
  }
  if (s.min_lr > s.lr) {
    return Refuse("min_lr", s.min_lr, absl::StrCat("is above lr ", s.lr));
  }
  ENTRAIN_RETURN_IF_ERROR(CheckNotNegative("schedule_warmup", s.warmup));
  ENTRAIN_RETURN_IF_ERROR(CheckNotNegative("schedule_total", s.total));
  if (s.total > 0 && s.warmup >= s.total) {
    return Refuse("schedule_warmup", s.warmup,
                  absl::StrCat("is not below schedule_total ", s.total));
  }
  if (s.total == 0 && s.min_lr > 0) {
    return Refuse("min_lr", s.min_lr, "has no effect without schedule_total; set both");
  }
  return absl::OkStatus();
}

absl::Status CheckCounts(const ChannelOptions& o) {
  if (o.min_microbatches < 1) {
    return Refuse("min_microbatches", o.min_microbatches, "is less than 1");
  }
  if (o.max_microbatches != 0 && o.max_microbatches < o.min_microbatches) {
    return Refuse("max_microbatches", o.max_microbatches,
                  absl::StrCat("is below min_microbatches ", o.min_microbatches, "; 0: no limit"));
  }
  for (const int32_t count : o.scripted) {
    if (count < 1) {
      return Refuse("scripted_counts", count, "is less than 1");
    }
  }
  if (!o.scripted.empty() && (o.min_microbatches != 1 || o.max_microbatches != 0)) {
    return Refuse("scripted_counts", o.scripted[0],
                  "with min_microbatches or max_microbatches, which would have no effect; set one");
  }
  ENTRAIN_RETURN_IF_ERROR(CheckNotNegative("warmup_rounds", o.warmup_rounds));
  if (o.warmup_rounds > 0 && o.method == DelayMethod::kZero1) {
    return Refuse("warmup_rounds", o.warmup_rounds,
                  "has no effect with method zero1, all of whose rounds are synchronous; set 0");
  }
  return CheckNotNegative("limit", o.limit);
}

absl::Status CheckGroup(const ChannelOptions& o, size_t index, int64_t free_from) {
  const ParameterGroup& group = o.groups[index];
  const std::string name = absl::StrCat("groups[", index, "].");
  if (group.first < 0 || group.first >= o.count) {
    return Refuse(name + "first", group.first,
                  absl::StrCat("is not one of ", o.count, " elements"));
  }
  if (group.first < free_from) {
    return Refuse(name + "first", group.first,
                  absl::StrCat("is below ", free_from,
                               ", where the group before it ends; groups are ascending"));
  }
  if (group.count < 1 || group.count > o.count - group.first) {
    return Refuse(name + "count", group.count,
                  absl::StrCat("is not 1 to ", o.count - group.first, ", from element ",
                               group.first, " to the end"));
  }
  if (!(group.lr_scale > 0) || !std::isfinite(group.lr_scale)) {
    return Refuse(name + "lr_scale", group.lr_scale, "is not a finite number above 0");
  }
  if (group.optimizer == nullptr && o.optimizer == nullptr) {
    return Refuse(name + "optim", "NULL", "and optim is NULL too; set one of them");
  }
  return absl::OkStatus();
}

// Whether each element has an optimizer, and only one.
absl::Status CheckOptimizers(const ChannelOptions& o) {
  if (!o.groups.empty() && o.step != nullptr) {
    return Refuse("group_count", o.groups.size(),
                  "with a step, which steps all elements; set one of them");
  }
  if (o.groups.empty() && (o.optimizer == nullptr) == (o.step == nullptr)) {
    return Refuse("optim", o.optimizer == nullptr ? "NULL" : "given",
                  o.optimizer == nullptr ? "without a step; set one of them"
                                         : "with a step; set one of them");
  }
  int64_t end = 0, gap = -1;  // the first element in no group
  for (size_t i = 0; i < o.groups.size(); ++i) {
    ENTRAIN_RETURN_IF_ERROR(CheckGroup(o, i, end));
    gap = gap < 0 && o.groups[i].first > end ? end : gap;
    end = o.groups[i].first + o.groups[i].count;
  }
  gap = gap < 0 && end < o.count ? end : gap;
  return o.groups.empty() || o.optimizer != nullptr || gap < 0
             ? absl::OkStatus()
             : Refuse("optim", "NULL", absl::StrCat("and element ", gap, " lies in no group"));
}

}  // namespace

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
    return Refuse("count", o.count, "is less than 1");
  }
  if (o.params == nullptr) {
    return Refuse("params", "NULL", "is no memory for parameters");
  }
  ENTRAIN_RETURN_IF_ERROR(CheckOptimizers(o));
  ENTRAIN_RETURN_IF_ERROR(CheckTypes(o));
  ENTRAIN_RETURN_IF_ERROR(CheckCounts(o));
  if (!(o.clip_norm >= 0) || !std::isfinite(o.clip_norm)) {
    return Refuse("clip_norm", o.clip_norm, "is not a finite number of at least 0");
  }
  ENTRAIN_RETURN_IF_ERROR(CheckNotNegative("timeout_ns", o.timeout_ns));
  return CheckSchedule(o.schedule);
}

double RateSchedule::At(int64_t progress) const {
  if (fn != nullptr) {
    return fn(user, progress);
  }
  if (progress < warmup) {
    return lr * static_cast<double>(progress) / static_cast<double>(warmup);
  }
  if (total == 0) {
    return lr;
  }
  const double part =
      std::min(1.0, static_cast<double>(progress - warmup) / static_cast<double>(total - warmup));
  return min_lr + (lr - min_lr) * 0.5 * (1 + std::cos(kPi * part));
}

}  // namespace entrain
