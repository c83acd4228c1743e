// Numbers that all ranks of a group must give alike, compared before anything depends on them: a
// setting that differs is a sentence naming it, both values and both ranks, not a hang later.
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

// Collective; blocks. The ranks must give equally many values under the same names. kDataLoss
// (MISMATCH) on all ranks when one value differs: "shard: 2 on rank 0, 4 on rank 1 of `group`".
absl::Status AgreeOn(Communicator& comm, absl::string_view group,
                     absl::Span<const NamedValue> values, const CallOptions& options = {});

}  // namespace entrain
