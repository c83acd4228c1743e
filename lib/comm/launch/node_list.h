// Slurm's compressed lists of hosts: "node[01-03,07],gpu5" is node01 node02 node03 node07 gpu5.
//
//   list   = host { "," host }
//   host   = { text | "[" range { "," range } "]" }     several brackets: every combination; the
//                                                       last bracket varies fastest
//   range  = LOW [ "-" HIGH ]                           digits; padded with zeros to LOW's width
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace entrain {

constexpr size_t kMostNodes = 1 << 17;

// Returns the hosts in the order of the list. Does not remove duplicates. kInvalidArgument: the
// list is empty, malformed, or has more than kMostNodes hosts. The error has the reason and the
// position.
absl::StatusOr<std::vector<std::string>> ExpandNodeList(absl::string_view list);

}  // namespace entrain
