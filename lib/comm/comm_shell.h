// What the parts on the path of a call ask of the communicator. CommCore implements the interface and
// owns the parts, so a part can call it at any time. There is no other upcall inside lib/comm: the parts
// that decide about failures return what has to be done.
//
// Thread safety: Keep, Submit and EndHere: any thread. All others are [driver].
#pragma once

#include <memory>

#include "absl/status/status.h"

#include "lib/comm/admitted.h"
#include "lib/engine/engine.h"

namespace entrain {

class CallWork;

class CommShell {
 public:
  virtual ~CommShell() = default;

  // ---- Calls
  // Returns a reference that keeps the communicator alive.
  virtual std::shared_ptr<CommShell> Keep() = 0;
  // Makes the work of an admitted call, counts the call as open, and submits it to the driver. A
  // thread may hold CallFunnel's mutex.
  virtual RefPtr<CallWork> Submit(Admitted admitted, CallBegin begin) = 0;
  // Starts the call of a work. Its job calls this function.
  virtual void StartWork(CallWork* work) = 0;
  // Requests that the driver look soon at calls that are ready, the vote and the inquiry.
  virtual void NeedAttention() = 0;

  // ---- Ends
  // Ends the communicator on all ranks because of an error on this rank. Does not wait.
  virtual void EndHere(const absl::Status& why) = 0;
  // Ends the communicator. When Fail returns, no peer reads or writes a buffer of its calls.
  virtual void Fail(const absl::Status& why) = 0;
};

}  // namespace entrain
