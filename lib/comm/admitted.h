// What a call gets before it starts.
#pragma once

#include <cstdint>
#include <memory>

#include "lib/base/call.h"
#include "lib/engine/inline_call.h"
#include "lib/engine/plan.h"
#include "lib/engine/work.h"
#include "lib/memory/buffer.h"

namespace entrain {

// From CallFunnel.
struct Admitted {
  std::shared_ptr<const Plan> plan;
  OwnedBuffer scratch;
  Wiring wiring;
  // True: the call has no number yet, and must wait for its number in a line of CallFunnel.
  bool waits = false;
};

// The properties of a call, without those that CallFunnel adds.
struct CallBegin {
  Call call;
  // If the input is not in the caller's buffer, the buffer to which the call's input points.
  OwnedBuffer staged = {};
  Progress from = {};  // the progress that the inline path has made
  int64_t started_ns = 0;
  RefPtr<Work> whole = {};  // the work of which this call is a part, or null
};

}  // namespace entrain
