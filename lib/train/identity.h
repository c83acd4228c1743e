// The identity of a run: what the caller says about it, and what must be equal on all replicas. So a
// replica of another job, which shares a store, a directory or a port by mistake, is refused by
// name, and not taken in silently.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "lib/comm/agree.h"

namespace entrain {

// Converts lines KEY=VALUE ("data=book.txt, 81234 bytes\nseed=1") to values for AgreeOn: numbers as
// they are, other texts as hashes. Returns kInvalidArgument for a line without a key, a key that comes
// twice, and more than 64 lines or 4096 bytes.
absl::StatusOr<std::vector<NamedValue>> ParseIdentity(absl::string_view text);

// Compares two texts as ParseIdentity takes them. Returns the keys that differ, with both values: "lr:
// 0.002 there, 0.004 here; seed: 1 there, none here". Empty: the texts agree, or one of them is empty,
// because nothing is known then.
std::string IdentityDiffers(absl::string_view there, absl::string_view here);

// Returns the value that ranks must compare before they compare `identity`: AgreeOn needs the same
// number of values on all ranks.
NamedValue SizeOfIdentity(const std::vector<NamedValue>& identity);

}  // namespace entrain
