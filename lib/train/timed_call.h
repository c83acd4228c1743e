// How the calls of training objects are made: with the object's own time limit and a user tag, so
// that ranks need not start them in the same order.
#pragma once

#include <cstdint>

#include "lib/base/call.h"

namespace entrain {

// timeout_ns 0: the communicator's default. `background`: the waiter is a courier and sleeps at
// once.
inline CallOptions TimedCall(int64_t timeout_ns, int64_t tag, bool background) {
  CallOptions options;
  if (timeout_ns > 0) {
    options.deadline = Deadline::After(timeout_ns);
    options.timeout_ns = timeout_ns;
  }
  options.user_tag = tag;
  options.background = background;
  return options;
}

}  // namespace entrain
