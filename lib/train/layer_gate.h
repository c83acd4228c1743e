// What must have happened to a layer before its parameters may be gathered: the interface through
// which an exchange of layers holds back the gathers that read what it writes.
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
  // Calls `then` exactly once with how it ended: before returning when nothing is under way for the
  // layer, otherwise later from another thread, where it must not block.
  virtual void WhenOpen(int layer, absl::AnyInvocable<void(const absl::Status&)> then) = 0;
  // In the caller's thread: somebody is about to wait for the layer.
  virtual void Expect(int layer) = 0;
  // Blocks until nothing is under way for the layer. On device memory the caller's stream waits
  // instead.
  virtual absl::Status WaitOpen(int layer) = 0;
  // On device memory, in the caller's thread: the last exchange of the layer that has been begun so
  // far; and, in another thread, blocks until it is over.
  virtual uint64_t BegunSoFar(int layer) const = 0;
  virtual absl::Status WaitOver(int layer, uint64_t begun) = 0;
};

}  // namespace entrain
