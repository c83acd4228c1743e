// How the calls of training objects are made: with the object's own time limit, and a user tag where
// ranks need not start them in the same order; on device memory most have none, and one order.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lib/base/call.h"
#include "lib/comm/mesh.h"

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

// What that comes to for who waits for a device. 0: the longer default of the two groups.
inline int64_t TimeLimit(int64_t timeout_ns, const Mesh& mesh) {
  return timeout_ns > 0 ? timeout_ns
                        : std::max(mesh.comm(Axis::kModel)->timeout_ns(),
                                   mesh.comm(Axis::kSync)->timeout_ns());
}

}  // namespace entrain
