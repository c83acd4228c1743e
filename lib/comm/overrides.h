// Algorithms named by a string: "COLLECTIVE:ALGORITHM[@LOW-HIGH]", comma separated; sizes in bytes
// with K, M, G, HIGH may be "inf"; the bytes are those of the larger buffer of one rank (1M where
// parts are uneven and no rank knows them all: gather_v, scatter_v, all_to_all_v).
// "all_reduce:ring@1M-inf,broadcast:tree". The first that covers a size counts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "lib/base/call.h"

namespace entrain {

struct Override {
  CallKind kind;
  std::string algorithm;
  int64_t low = 0, high = 0;  // bytes, low <= size <= high
  bool Covers(CallKind of, int64_t bytes) const {
    return of == kind && low <= bytes && bytes <= high;
  }
};
absl::StatusOr<std::vector<Override>> ParseOverrides(absl::string_view text);
// What ParseOverrides reads.
std::string ToText(absl::Span<const Override> overrides);

}  // namespace entrain
