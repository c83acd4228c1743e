// Slurm's compressed lists of hosts: "node[01-03,07],gpu5" is node01 node02 node03 node07 gpu5.
//
//   list   = host { "," host }
//   host   = { text | "[" range { "," range } "]" }     of several brackets every combination,
//                                                       the last one fastest
//   range  = LOW [ "-" HIGH ]                           digits; all as wide as LOW, zeros in front
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace entrain {

constexpr size_t kMostNodes = 1 << 17;

// In the list's order, as often as they are in it. kInvalidArgument: empty, malformed, or more than
// kMostNodes; the text says what is wrong where.
absl::StatusOr<std::vector<std::string>> ExpandNodeList(absl::string_view list);

}  // namespace entrain
