// The calls of a communicator that are under way, in the order in which the driver has started them.
//
// Thread safety: none; the communicator's driver.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lib/base/clock.h"
#include "lib/comm/call_notes.h"
#include "lib/comm/call_work.h"
#include "lib/comm/failure_words.h"
#include "lib/comm/mismatch.h"

namespace entrain {

class OpenCalls final : public ComparedCalls {
 public:
  // A function of the caller's that has run for less is not what holds up a call.
  static constexpr int64_t kLongRunNs = 100 * kMillisecond;

  // Each holds one reference, which whoever removes it gives up.
  void Add(CallWork* work);
  void Remove(CallWork* work);
  bool Has(const CallWork* work) const;
  bool empty() const { return works_.empty(); }
  size_t size() const { return works_.size(); }
  // Adding and removing others moves them.
  CallWork* operator[](size_t index) const { return works_[index]; }
  const std::vector<CallWork*>& works() const { return works_; }
  // The first to be started; null: none is open.
  CallWork* first() const { return works_.empty() ? nullptr : works_.front(); }
  // Receives that wait in line.
  int in_line() const { return in_line_; }
  // These have left their line: their turn has come.
  void LeftLine(size_t receives) { in_line_ -= static_cast<int>(receives); }

  // Null: it is not open.
  const CallWork* Collective(CallId call) const;
  // That, as it is compared with what others call.
  std::optional<OwnCall> OwnCollective(CallId call) const override;
  // The call whose caller made it first; null: none is open.
  CallWork* Oldest() const;
  Deadline FirstDeadline() const override;
  // The call that has its input or output there; null: none.
  const CallWork* UserOf(ConstBytes bytes) const;
  // The caller's own reduction that is running: one at a time, on one thread.
  Running RunningFunction() const;
  // That, if the call waits for it, and has for so long that it counts as what holds it up.
  Running HeldUpByFunction(const CallWork& work, int64_t now_ns) const;

 private:
  std::vector<CallWork*> works_;
  int in_line_ = 0;
};

}  // namespace entrain
