// Options and time limits for the calls of training objects. A call has the time limit of its
// object. If ranks may start their calls in different orders, a call has a user tag.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "lib/base/call.h"
#include "lib/comm/mesh.h"

namespace entrain {

// If `timeout_ns` is 0, the communicator's default applies. `background` says that the thread that
// waits is a worker; it then sleeps at once instead of spinning.
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

// Returns the time limit of a wait for a worker. This is `timeout_ns`, or the longest
// default of the groups if `timeout_ns` is 0. Null groups are skipped.
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
