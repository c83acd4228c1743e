// The short way of a small blocking call: the calling thread moves all messages itself, at once, with
// nothing posted, queued or allocated. Its messages are those of the executor, so ranks may take
// either way; and where it would have to wait for long, an executor goes on from where it stopped.
#pragma once

#include <cstddef>

#include "absl/container/inlined_vector.h"

#include "lib/engine/engine.h"
#include "lib/engine/executor.h"
#include "lib/engine/plan.h"

namespace entrain {

class Express {
 public:
  // Of a plan with `express`, for a call without a function of the caller's. All outlive it. `scratch`: plan.slot_bytes.
  Express(const Plan& plan, const Call& call, const Descriptor& descriptor, const Wiring& wiring,
          const Kernels& kernels, std::byte* scratch);

  // [driver], see Engine::TakeIfQuiet. True: the call is over. False: see progress().
  bool Run(Engine& engine);
  const Progress& progress() const { return progress_; }

 private:
  bool SendAll(const Round& round);
  bool ReceiveAll(const Round& round, InlineBackoff& backoff);
  // Waits for what was lent.
  bool TakeBackAll(const Round& round, InlineBackoff& backoff);
  // Copies to the scratch what of this round's messages still lies where it came.
  void Keep();

  const Plan& plan_;
  const Wiring& wiring_;
  const Descriptor& descriptor_;
  const Binding binding_;
  const Lane& lane_;
  std::byte* const scratch_;
  Progress progress_;
  absl::InlinedVector<Lent, 8> lent_;     // of this round
  bool crowded_ = false, sends_ = false;  // sends_: in this round
};

// One message of send or recv the same way, of at most kMaxExpressBytes. [driver] False: an executor
// has to go on from `progress`.
bool ExpressSend(Engine& engine, const Wiring& wiring, const Descriptor& descriptor, int to,
                 ConstBytes data, Progress* progress);
bool ExpressRecv(Engine& engine, const Wiring& wiring, const Descriptor& descriptor, int from,
                 Bytes into, Progress* progress);

}  // namespace entrain
