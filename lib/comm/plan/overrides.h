// Overrides: a text in which the user selects the algorithms of collectives. Example:
// "all_reduce:ring@1M-inf,broadcast:tree".
//
// The text is a list of entries "COLLECTIVE:ALGORITHM[@LOW-HIGH]", separated by commas. LOW and
// HIGH are numbers of bytes, and may end in K, M or G. HIGH may be "inf". An entry without a range
// covers all sizes. The size of a call is the size of the larger of its two buffers on one rank.
// The size of a gather_v, scatter_v or all_to_all_v counts as 1M, because not all ranks know the
// sizes of all parts. If several entries cover a call, the first entry whose algorithm can run the
// call is used.
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
  int64_t low = 0, high = 0;  // the smallest and the largest size that this entry covers, in bytes
  bool Covers(CallKind of, int64_t bytes) const {
    return of == kind && low <= bytes && bytes <= high;
  }
};
// Returns the entries of the text, or kInvalidArgument with the reason.
absl::StatusOr<std::vector<Override>> ParseOverrides(absl::string_view text);
// Returns a text that ParseOverrides reads.
std::string ToText(absl::Span<const Override> overrides);

}  // namespace entrain
