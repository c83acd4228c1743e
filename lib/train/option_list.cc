#include "lib/train/option_list.h"

namespace entrain {

absl::Status RefuseOption(const OptionRow& option, double value, absl::string_view why) {
  return option.type == OptionType::kF64
             ? RefuseOption<double>(option.name, value, why)
             : RefuseOption<int64_t>(option.name, static_cast<int64_t>(value), why);
}

absl::Status CheckRange(const OptionRow& option, double value) {
  const OptionRange& range = option.range;
  if ((range.without_least ? value > range.least : value >= range.least) &&
      (range.without_most ? value < range.most : value <= range.most)) {
    return absl::OkStatus();
  }
  if (option.type == OptionType::kSwitch || option.type == OptionType::kChoice) {
    return absl::InvalidArgumentError(absl::StrCat(
        option.name, " ", value, " is ",
        range.constants == nullptr ? "neither 0 (off) nor 1 (on)"
                                   : absl::StrCat("not an ", range.constants, " value")));
  }
  if (range.says_negative) {
    return RefuseOption(option, value, "is negative");
  }
  if (range.most == option_range::kInfinity) {
    const char* const why = option.type != OptionType::kF64 ? "is less than "
                            : range.without_least           ? "is not a finite number above "
                                                            : "is not a finite number of at least ";
    return RefuseOption(option, value, absl::StrCat(why, range.least));
  }
  return RefuseOption(option, value,
                      absl::StrCat("is not in ", range.without_least ? "(" : "[", range.least, ", ",
                                   range.most, range.without_most ? ")" : "]"));
}

}  // namespace entrain
