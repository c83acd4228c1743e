// What a call gets before it starts, and what the parts on its path ask of the communicator
// (CommShell). CommCore implements the interface and owns the parts, so a part can call it at any
// time. There is no other upcall inside lib/comm: the parts that decide about failures return what
// has to be done.
//
// Thread safety: Keep, Submit and EndHere: any thread. All others are [driver].
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"

#include "lib/base/call.h"
#include "lib/engine/inline_call.h"
#include "lib/engine/plan.h"
#include "lib/engine/work.h"
#include "lib/memory/buffer.h"

namespace entrain {

class CallWork;
struct PartGroup;

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
  RefPtr<Work> whole = {};           // the work of which this call is a part, or null
  const PartGroup* among = nullptr;  // the ranks that exchange the call; null: all ranks
};

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
