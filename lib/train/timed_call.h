// How the calls of training objects are made: with the object's own time limit and a user tag, so
// that ranks need not start them in the same order.
#pragma once

#include <cstdint>

#include "lib/base/call.h"
#include "lib/comm/communicator.h"

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

// What that comes to. `comm` null: a rank alone, which waits for nobody but its device.
inline int64_t TimeLimit(int64_t timeout_ns, const Communicator* comm) {
  constexpr int64_t kAlone = 300 * kSecond;
  return timeout_ns > 0 ? timeout_ns : comm == nullptr ? kAlone : comm->timeout_ns();
}

}  // namespace entrain
