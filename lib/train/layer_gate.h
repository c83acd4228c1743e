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
  // Blocks until no exchange of the layer is under way. On device memory, makes the caller's stream
  // wait instead.
  virtual absl::Status WaitOpen(int layer) = 0;
  // For device memory. BegunSoFar returns the number of the layer's last exchange that has begun;
  // the caller's thread calls it. WaitOver blocks until this exchange is over; another thread calls
  // it.
  virtual uint64_t BegunSoFar(int layer) const = 0;
  virtual absl::Status WaitOver(int layer, uint64_t begun) = 0;
};

}  // namespace entrain
