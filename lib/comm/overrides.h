// Algorithms named by a string: "COLLECTIVE:ALGORITHM[@LOW-HIGH]", separated by commas, as in
// "all_reduce:ring@1M-inf,broadcast:tree". LOW and HIGH are bytes with K, M or G. HIGH may be
// "inf". The bytes are those of the larger buffer of one rank. gather_v, scatter_v and
// all_to_all_v, in which no rank knows all parts, have the size 1M. The first entry that covers a
// size counts.
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
// Returns a text that ParseOverrides reads.
std::string ToText(absl::Span<const Override> overrides);

}  // namespace entrain
