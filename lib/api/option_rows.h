// Connects an option list (lib/train/option_list.h) with its C struct: each row of the list has a
// field of the same name in the struct. Implements the functions of the API that describe options,
// such as entrain_edit_option and entrain_acco_option.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

#include "include/entrain/train.h"
#include "lib/api/boundary.h"
#include "lib/base/config.h"
#include "lib/base/status.h"
#include "lib/train/option_list.h"

#define ENTRAIN_OPTION_VALUE(type, name, fallback, range, matters, why, shared, help) \
  static_cast<double>(config.name),
#define ENTRAIN_OPTION_OFFSET(type, name, fallback, range, matters, why, shared, help) \
  offsetof(Config, name),
#define ENTRAIN_OPTION_COPY(type, name, fallback, range, matters, why, shared, help) \
  to->name = static_cast<decltype(to->name)>(from.name);

// Declares the struct `Rows`, which connects a list with its C struct and its C++ struct. `Rows` is
// the template argument of the functions below.
#define ENTRAIN_OPTION_ROWS(Rows, LIST, CStruct, CppStruct, TABLE)                \
  struct Rows {                                                                   \
    using Config = CStruct;                                                       \
    using Options = CppStruct;                                                    \
    static constexpr const char* kConfig = #CStruct;                              \
    static constexpr size_t kOffsets[] = {LIST(ENTRAIN_OPTION_OFFSET)};           \
    static absl::Span<const entrain::Option<Options>> table() { return TABLE(); } \
    static std::vector<double> Values(const Config& config) {                     \
      return {LIST(ENTRAIN_OPTION_VALUE)};                                        \
    }                                                                             \
    template <typename From, typename To>                                         \
    static void Copy(const From& from, To* to) {                                  \
      LIST(ENTRAIN_OPTION_COPY)                                                   \
    }                                                                             \
  }

namespace entrain::api {

static_assert(ENTRAIN_OPTION_SWITCH == static_cast<int32_t>(OptionType::kSwitch));
static_assert(ENTRAIN_OPTION_F64 == static_cast<int32_t>(OptionType::kF64));

// Returns an error if a switch or a choice of the C struct has a value out of range. Rows::Copy
// must not convert such a value to a bool or an enumeration.
template <typename Rows>
absl::Status CheckCopyable(const typename Rows::Config& config) {
  const std::vector<double> values = Rows::Values(config);
  for (size_t i = 0; i < values.size(); ++i) {
    const OptionRow& row = Rows::table()[i];
    if (row.type == OptionType::kSwitch || row.type == OptionType::kChoice) {
      ENTRAIN_RETURN_IF_ERROR(CheckRange(row, values[i]));
    }
  }
  return absl::OkStatus();
}

// Checks the range of each row's value, and returns options with these values. Fields without a row
// keep their defaults.
template <typename Rows>
absl::StatusOr<typename Rows::Options> NumbersOf(const typename Rows::Config& config) {
  const std::vector<double> values = Rows::Values(config);
  for (size_t i = 0; i < values.size(); ++i) {
    ENTRAIN_RETURN_IF_ERROR(CheckRange(Rows::table()[i], values[i]));
  }
  typename Rows::Options options;
  Rows::Copy(config, &options);
  return options;
}

template <typename Rows>
absl::Status CheckIndex(int32_t index) {
  const size_t rows = Rows::table().size();
  return index >= 0 && static_cast<size_t>(index) < rows
             ? absl::OkStatus()
             : absl::InvalidArgumentError(absl::StrCat("option ", index, " is not one of ", rows));
}

template <typename Rows>
absl::Status DescribeOption(int32_t index, entrain_edit_option_t* option) {
  ENTRAIN_RETURN_IF_ERROR(CheckIndex<Rows>(index));
  const OptionRow& row = Rows::table()[static_cast<size_t>(index)];
  const entrain_edit_option_t known = {
      .size = sizeof(known),
      .name = row.name,
      .choices = row.range.choices,
      .help = row.help,
      .offset = Rows::kOffsets[index],
      .default_value = row.fallback,
      .least = row.range.least,
      .most = row.range.most,
      .type = static_cast<int32_t>(row.type),
      .open = (row.range.without_least ? 1 : 0) + (row.range.without_most ? 2 : 0)};
  return WriteStruct(&known, sizeof(known), option, "entrain_edit_option_t");
}

// Implements entrain_edit_option_matters and entrain_acco_option_matters. `known` must have the
// defaults of the C struct; the fields of *config replace them.
template <typename Rows>
absl::Status OptionMatters(const typename Rows::Config* config, typename Rows::Config known,
                           int32_t index, int32_t* matters) {
  ENTRAIN_RETURN_IF_ERROR(CopyStruct(config, &known, sizeof(known), Rows::kConfig));
  ENTRAIN_RETURN_IF_ERROR(NotNull(matters, "matters"));
  ENTRAIN_RETURN_IF_ERROR(CheckIndex<Rows>(index));
  ENTRAIN_ASSIGN_OR_RETURN(const auto options, NumbersOf<Rows>(known));
  *matters = Rows::table()[static_cast<size_t>(index)].matters(options) ? 1 : 0;
  return absl::OkStatus();
}

}  // namespace entrain::api
