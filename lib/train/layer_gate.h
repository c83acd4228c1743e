// The interface through which an exchange holds back gathers: a layer's parameters may be gathered
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
  // Calls `then` exactly once with the status of the exchange: before returning if nothing is under
  // way for the layer, otherwise later from another thread, where `then` must not block.
  virtual void WhenOpen(int layer, absl::AnyInvocable<void(const absl::Status&)> then) = 0;
  // Must be called by the caller's thread before a thread waits for the layer.
  virtual void Expect(int layer) = 0;
  // Blocks until nothing is under way for the layer. On device memory the caller's stream waits
  // instead.
  virtual absl::Status WaitOpen(int layer) = 0;
  // For device memory. The caller's thread calls BegunSoFar, which returns the last exchange of the
  // layer that has begun so far. Another thread calls WaitOver, which blocks until this exchange is
  // over.
  virtual uint64_t BegunSoFar(int layer) const = 0;
  virtual absl::Status WaitOver(int layer, uint64_t begun) = 0;
};

}  // namespace entrain
