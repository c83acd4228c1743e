#include "lib/train/edit_options.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <type_traits>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"

namespace entrain {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// As many z-scores as the warm-up has exchanges are kept for each layer.
constexpr double kMaxEwmaWarmup = 1 << 20;
constexpr double kMaxSyncTime = 1e9;  // so that it is well within 64 bits of nanoseconds
// Smaller ones are 0 in f32, and a zero gradient would be divided by it.
constexpr double kLeastEps = 1e-37;

// The ranges of edit_option_list.h. NaN lies in none.
constexpr OptionRange Switch() {
  return {.least = 0, .most = 1};
}
constexpr OptionRange AtLeast(double least) {
  return {.least = least, .most = kInfinity, .without_most = true};
}
constexpr OptionRange Above(double bound) {
  return {.least = bound, .most = kInfinity, .without_least = true, .without_most = true};
}
constexpr OptionRange Within(double least, double most) {
  return {.least = least, .most = most};
}
constexpr OptionRange From(double least, double bound) {
  return {.least = least, .most = bound, .without_most = true};
}
constexpr OptionRange UpTo(double bound, double most) {
  return {.least = bound, .most = most, .without_least = true};
}
constexpr OptionRange Between(double low, double high) {
  return {.least = low, .most = high, .without_least = true, .without_most = true};
}
constexpr OptionRange OneOf(const char* constants, const char* choices) {
  double last = 0;
  for (const char* at = choices; *at != 0; ++at) {
    last += *at == ',' ? 1 : 0;
  }
  return {.least = 0, .most = last, .choices = choices, .constants = constants};
}

template <typename T>
constexpr EditOption::Type TypeOf() {
  using Type = EditOption::Type;
  return std::is_same_v<T, bool>       ? Type::kSwitch
         : std::is_enum_v<T>           ? Type::kChoice
         : std::is_same_v<T, int32_t>  ? Type::kI32
         : std::is_same_v<T, int64_t>  ? Type::kI64
         : std::is_same_v<T, uint64_t> ? Type::kU64
                                       : Type::kF64;
}

constexpr EditOption kOptions[] = {
#define ENTRAIN_ROW(type, name, fallback, range, matters, why, shared, help) \
  {#name,                                                                    \
   TypeOf<type>(),                                                           \
   static_cast<double>(fallback),                                            \
   range,                                                                    \
   []([[maybe_unused]] const EditOptions& o) -> bool { return matters; },    \
   why,                                                                      \
   shared,                                                                   \
   help,                                                                     \
   [](const EditOptions& o) { return static_cast<double>(o.name); }},
    ENTRAIN_EDIT_OPTIONS(ENTRAIN_ROW)
#undef ENTRAIN_ROW
};

template <typename T>
absl::Status Refuse(absl::string_view name, T value, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", value, " ", why));
}

absl::Status Refuse(const EditOption& option, double value, absl::string_view why) {
  return option.type == EditOption::Type::kF64
             ? Refuse(option.name, value, why)
             : Refuse(option.name, static_cast<int64_t>(value), why);
}

// Another value than the default of an option that does not matter: whoever set it expects an effect.
absl::Status CheckInert(const EditOptions& o) {
  for (const EditOption& option : kOptions) {
    if (option.value(o) != option.fallback && !option.matters(o)) {
      return Refuse(option, option.value(o), option.why);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAtLeast(absl::string_view name, int64_t value, int64_t least) {
  return value >= least ? absl::OkStatus()
                        : Refuse(name, value, absl::StrCat("is less than ", least));
}

absl::Status CheckOuter(const EditOptions& o) {
  const bool callback = o.outer_optimizer == OuterKind::kCallback;
  if (callback != (o.outer_step != nullptr)) {
    return Refuse("outer_step", callback ? "NULL" : "a function",
                  callback ? "cannot be called; set it with outer_optimizer callback"
                           : "has no effect without outer_optimizer callback; set both");
  }
  if (o.outer_lr == 0 && o.outer_optimizer != OuterKind::kNone && !callback) {
    return Refuse("outer_lr", o.outer_lr, "would never move the anchor; it must be positive");
  }
  if (o.outer_weight_decay > 0 && (o.staleness_penalty || o.outer_momentum_clip > 0)) {
    return Refuse("outer_weight_decay", o.outer_weight_decay,
                  "does not go with staleness_penalty and outer_momentum_clip; set 0");
  }
  return absl::OkStatus();
}

absl::Status CheckOverlap(const EditOptions& o) {
  if (o.overlap_steps == 0) {
    return absl::OkStatus();
  }
  if (o.plain()) {
    return Refuse("overlap_steps", o.overlap_steps,
                  "needs an anchor to merge with; set an outer_optimizer or a reducer");
  }
  if (o.use_async && o.overlap_steps != 1) {
    return Refuse("overlap_steps", o.overlap_steps,
                  "has no effect with use_async, which merges when the exchange has come; set 1");
  }
  std::vector<int64_t> intervals = o.fragment_intervals;
  intervals.push_back(o.local_sgd_sync_interval);
  const int64_t shortest = *std::min_element(
      intervals.begin(), intervals.size() > 1 ? intervals.end() - 1 : intervals.end());
  if (!o.use_async && o.overlap_steps > shortest) {
    return Refuse("overlap_steps", o.overlap_steps,
                  absl::StrCat("is more than ",
                               o.fragment_intervals.empty() ? "local_sgd_sync_interval "
                                                            : "the shortest of fragment_intervals ",
                               shortest, ": the next exchange would begin before"));
  }
  return absl::OkStatus();
}

absl::Status CheckFragmentNumbers(const EditOptions& o) {
  if (o.fragments > 1 && o.use_async) {
    return Refuse(
        "fragments", o.fragments,
        "with use_async, whose replicas meet when the time is up, all layers at once; set 1");
  }
  const auto count = static_cast<size_t>(o.fragments);
  for (const auto& [name, values, least] :
       {std::make_tuple("fragment_intervals", &o.fragment_intervals, int64_t{1}),
        std::make_tuple("fragment_offsets", &o.fragment_offsets, int64_t{0})}) {
    if (!values->empty() && values->size() != count) {
      return Refuse(name, values->size(), absl::StrCat("numbers for ", count, " fragments"));
    }
    for (const int64_t value : *values) {
      ENTRAIN_RETURN_IF_ERROR(CheckAtLeast(name, value, least));
    }
  }
  if (!o.fragment_of_layer.empty() && o.fragments == 1) {
    return Refuse("fragment_of_layer", 1, "has no effect with one fragment; set fragments");
  }
  if (o.fragment_pattern != FragmentPattern::kSequential && !o.fragment_of_layer.empty()) {
    return Refuse("fragment_pattern", static_cast<int32_t>(o.fragment_pattern),
                  "has no effect with fragment_of_layer; set one");
  }
  if (!o.fragment_intervals.empty() && (o.local_sgd_sync_interval != 1 || o.use_async)) {
    return Refuse("fragment_intervals", o.fragment_intervals[0],
                  "with local_sgd_sync_interval or use_async, which would have no effect; set one");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Span<const EditOption> EditOptionTable() {
  return kOptions;
}

absl::Status CheckRange(const EditOption& option, double value) {
  const OptionRange& range = option.range;
  if ((range.without_least ? value > range.least : value >= range.least) &&
      (range.without_most ? value < range.most : value <= range.most)) {
    return absl::OkStatus();
  }
  if (option.type == EditOption::Type::kSwitch || option.type == EditOption::Type::kChoice) {
    return absl::InvalidArgumentError(absl::StrCat(
        option.name, " ", value, " is ",
        range.constants == nullptr ? "neither 0 (off) nor 1 (on)"
                                   : absl::StrCat("not an ", range.constants, " value")));
  }
  if (range.most == kInfinity) {
    const char* const why = option.type != EditOption::Type::kF64 ? "is less than "
                            : range.without_least                 ? "is not a finite number above "
                                                  : "is not a finite number of at least ";
    return Refuse(option, value, absl::StrCat(why, range.least));
  }
  return Refuse(option, value,
                absl::StrCat("is not in ", range.without_least ? "(" : "[", range.least, ", ",
                             range.most, range.without_most ? ")" : "]"));
}

absl::Status CheckOptions(const EditOptions& options) {
  for (const EditOption& option : kOptions) {
    ENTRAIN_RETURN_IF_ERROR(CheckRange(option, option.value(options)));
  }
  ENTRAIN_RETURN_IF_ERROR(CheckOuter(options));
  ENTRAIN_RETURN_IF_ERROR(CheckInert(options));
  if (options.use_step_weight && options.step_weight_ratio == 0) {
    return Refuse("step_weight_ratio", 0, "leaves use_step_weight without effect; set it above 0");
  }
  ENTRAIN_RETURN_IF_ERROR(CheckMerging(options.merging()));
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
        return Refuse("density", options.density,
                      absl::StrCat("leaves nothing of a shard of ", here, " elements (a layer of ",
                                   count, " over ", slots, " ranks)"));
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
  for (const EditOption& option : kOptions) {
    if (option.shared) {
      shared.push_back({option.name, option.value(options)});
    }
  }
  return shared;
}

}  // namespace entrain
