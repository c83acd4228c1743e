// The interface through which an exchange delays gathers. The parameters of a layer may be gathered
// only after the exchange has written them.
//
// Thread safety: any thread.
#pragma once

#include <cstdint>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"

namespace entrain {

class LayerGate {
 public:
  virtual ~LayerGate() = default;
  // Calls `then` exactly once, with the status of the layer's exchange. If no exchange of the layer
  // is under way, calls `then` before returning. Otherwise calls `then` later on another thread,
  // where `then` must not block.
  virtual void WhenOpen(int layer, absl::AnyInvocable<void(const absl::Status&)> then) = 0;
  // Lets the worker exchange the layer. Must be called by the caller's thread before a thread waits
  // for the layer.
  virtual void Expect(int layer) = 0;
  // Blocks until no exchange of the layer is under way.
  virtual absl::Status WaitOpen(int layer) = 0;
};

}  // namespace entrain
