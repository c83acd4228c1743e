// Checks that settings are equal on all ranks of a group, before the ranks depend on them. If a
// setting differs between two ranks, the error names the setting, both values and both ranks.
// Without this check, the ranks would hang later.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "lib/comm/communicator.h"

namespace entrain {

struct NamedValue {
  std::string name;
  double value = 0;
};

// Collective; blocks. All ranks must give equal names in equal order. If a value differs between
// ranks, returns kDataLoss (MISMATCH) on all ranks. The error's text is like "shard: 2 on rank 0, 4
// on rank 1 of GROUP".
absl::Status AgreeOn(Communicator& comm, absl::string_view group,
                     absl::Span<const NamedValue> values, const CallOptions& options = {});

}  // namespace entrain
