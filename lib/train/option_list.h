// Macros and types for lists of options: edit_option_list.h and acco_option_list.h. A list has one
// row for each option. The following code is made from a row:
//   the field of the C++ struct, with its default and checks
//   the comparison between ranks
//   the copy from and to the C struct (lib/api/option_rows.h)
//   the answers of entrain_option. The flags of entrain-train are made
//   from these answers
//   the field of the Python dataclass (tools/python_declarations.py)
//
// X(type, name, default, range, matters, why, shared, help):
//   range    the allowed values
//   matters  a condition on the options `o`. If it is false, the option has no effect
//   why      the end of the error message for an option that is set but has no effect; NULL: the
//            option always has an effect
//   shared   true if all ranks must give the same value
//   help     one line for users
//
// The field has the same name in the C struct.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "lib/base/status.h"
#include "lib/comm/agree.h"

namespace entrain {

// Declares a field of the C++ struct.
#define ENTRAIN_OPTION_FIELD(type, name, fallback, range, matters, why, shared, help) \
  type name = fallback;
// Initialises an Option<Options>. `Options` must name the C++ struct where the macro is used.
#define ENTRAIN_OPTION_ROW(type, name, fallback, range, matters, why, shared, help)        \
  {{#name, TypeOfOption<type>(), static_cast<double>(fallback), range, why, shared, help}, \
   []([[maybe_unused]] const Options& o) -> bool { return matters; },                      \
   [](const Options& o) { return static_cast<double>(o.name); }},

// The values that an option may have. A choice is the index of a name in `choices`, from 0. NaN is
// in no range.
struct OptionRange {
  double least, most;
  bool without_least = false, without_most = false;  // true: the bound is not allowed
  const char* choices = nullptr;                     // separated by commas
  const char* constants = nullptr;                   // names in the C ABI: "ENTRAIN_REDUCER_*"
  bool says_negative = false;  // the error message for a value below 0 is "is negative"
};

namespace option_range {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr OptionRange Switch() {
  return {.least = 0, .most = 1};
}
constexpr OptionRange AtLeast(double least) {
  return {.least = least, .most = kInfinity, .without_most = true};
}
constexpr OptionRange NotNegative() {
  return {.least = 0, .most = kInfinity, .without_most = true, .says_negative = true};
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

}  // namespace option_range

// The values are those of ENTRAIN_OPTION_* in the C ABI.
enum class OptionType : int32_t {
  kSwitch = 0,
  kChoice = 1,
  kI32 = 2,
  kI64 = 3,
  kU64 = 4,
  kF64 = 5
};

template <typename T>
constexpr OptionType TypeOfOption() {
  return std::is_same_v<T, bool>       ? OptionType::kSwitch
         : std::is_enum_v<T>           ? OptionType::kChoice
         : std::is_same_v<T, int32_t>  ? OptionType::kI32
         : std::is_same_v<T, int64_t>  ? OptionType::kI64
         : std::is_same_v<T, uint64_t> ? OptionType::kU64
                                       : OptionType::kF64;
}

// The part of a row that is the same for all structs of options. Option adds the other members.
struct OptionRow {
  const char* name;
  OptionType type;
  double fallback;  // the default
  OptionRange range;
  const char* why;
  bool shared;
  const char* help;
};
template <typename Options>
struct Option : OptionRow {
  bool (*matters)(const Options& options);
  double (*value)(const Options& options);
};

// Returns kInvalidArgument. The message contains the option's name, its value, and `why`, which
// should suggest a remedy. All errors about options have this form.
template <typename T>
absl::Status RefuseOption(absl::string_view name, T value, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", value, " ", why));
}
absl::Status RefuseOption(const OptionRow& option, double value, absl::string_view why);
absl::Status CheckRange(const OptionRow& option, double value);

template <typename Options>
absl::Status CheckRanges(absl::Span<const Option<Options>> table, const Options& options) {
  for (const Option<Options>& option : table) {
    ENTRAIN_RETURN_IF_ERROR(CheckRange(option, option.value(options)));
  }
  return absl::OkStatus();
}

// Returns an error if an option that has no effect has a value other than its default. The user who
// has set this value expects an effect.
template <typename Options>
absl::Status CheckInert(absl::Span<const Option<Options>> table, const Options& options) {
  for (const Option<Options>& option : table) {
    if (option.value(options) != option.fallback && !option.matters(options)) {
      return RefuseOption(option, option.value(options), option.why);
    }
  }
  return absl::OkStatus();
}

// Appends the values of the rows that must be equal on all ranks.
template <typename Options>
void AppendShared(absl::Span<const Option<Options>> table, const Options& options,
                  std::vector<NamedValue>* shared) {
  for (const Option<Options>& option : table) {
    if (option.shared) {
      shared->push_back({option.name, option.value(options)});
    }
  }
}

}  // namespace entrain
