// What an error of a socket says about the peer, in words for an operator.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace entrain {

// `doing`: "receiving". kUnavailable, unless this process is short of something.
absl::Status ConnectionError(int error, absl::string_view doing);
// Whether the error says that the connection is over, rather than that nothing can be moved now.
bool IsFatal(int error);

}  // namespace entrain
