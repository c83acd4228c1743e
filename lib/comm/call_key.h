// The shape of a call without options. Two calls with equal keys differ only in their addresses.
#pragma once

#include <cstdint>

#include "lib/base/call.h"

namespace entrain {

struct CallKey {
  CallKind kind;
  DType dtype;
  ReduceOp op;
  int root;
  int64_t count;
  friend bool operator==(const CallKey&, const CallKey&) = default;
};

}  // namespace entrain
