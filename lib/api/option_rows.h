// Connects an option list (lib/train/option_list.h) with its C struct: each row of the list has a
// field of the same name in the struct.
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
#include "lib/train/acco/gradient_channel_options.h"
#include "lib/train/edit/edit_options.h"
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

ENTRAIN_OPTION_ROWS(EditRows, ENTRAIN_EDIT_OPTIONS, entrain_edit_config_t, EditOptions,
                    EditOptionTable);
ENTRAIN_OPTION_ROWS(AccoRows, ENTRAIN_ACCO_OPTIONS, entrain_acco_config_t, ChannelOptions,
                    AccoOptionTable);

}  // namespace entrain::api
