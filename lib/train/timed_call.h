// Options of the calls of training objects. A call has the object's own time limit, and a user tag
// if ranks need not start their calls in the same order. On device memory most calls have no tag,
// and ranks start them in one order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "lib/base/call.h"
#include "lib/comm/mesh.h"

namespace entrain {

// If timeout_ns is 0, the communicator's default applies. With `background` the waiting thread is a
// worker and sleeps at once.
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

// Returns the time limit of a wait for a device or a worker: timeout_ns or, if timeout_ns is 0, the
// longest default of the groups. Null groups are skipped.
inline int64_t TimeLimit(int64_t timeout_ns, std::initializer_list<const Communicator*> groups) {
  int64_t longest = 0;
  for (const Communicator* group : groups) {
    longest = std::max(longest, group == nullptr ? 0 : group->timeout_ns());
  }
  return timeout_ns > 0 ? timeout_ns : longest > 0 ? longest : kDefaultTimeoutNs;
}
inline int64_t TimeLimit(int64_t timeout_ns, const Mesh& mesh) {
  return TimeLimit(timeout_ns, {mesh.comm(Axis::kModel).get(), mesh.comm(Axis::kSync).get()});
}

}  // namespace entrain
