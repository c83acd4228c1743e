// The open calls of a communicator, in the order in which the driver has started them.
//
// Thread safety: none. Belongs to the communicator's driver.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lib/base/clock.h"
#include "lib/comm/call_work.h"
#include "lib/comm/failure/call_notes.h"
#include "lib/comm/failure/failure_words.h"

namespace entrain {

class OpenCalls final {
 public:
  // If the caller's own reduction function has run for at least this time, errors report it as the
  // reason for a delay.
  static constexpr int64_t kLongRunNs = 100 * kMillisecond;

  // OpenCalls holds one reference to each work. The caller of Remove must release this reference.
  void Add(CallWork* work);
  void Remove(CallWork* work);
  bool Has(const CallWork* work) const;
  bool empty() const { return works_.empty(); }
  size_t size() const { return works_.size(); }
  // Indexes change when works are added or removed.
  CallWork* operator[](size_t index) const { return works_[index]; }
  const std::vector<CallWork*>& works() const { return works_; }
  // Returns the work that the driver has started first, or null if no work is open.
  CallWork* first() const { return works_.empty() ? nullptr : works_.front(); }
  // Returns the number of receives that wait in a line of CallFunnel.
  int in_line() const { return in_line_; }
  // Must be called when receives have left their lines because their turn has come. `receives`: the
  // number of these receives.
  void LeftLine(size_t receives) { in_line_ -= static_cast<int>(receives); }

  // Returns null if the collective is not open.
  const CallWork* Collective(CallId call) const;
  // Returns the open collective in the form in which it is compared with peers' calls.
  std::optional<OwnCall> OwnCollective(CallId call) const;
  // Returns the open call with the earliest start by the caller, or null if no call is open.
  CallWork* Oldest() const;
  // The same among the collectives. A receive may be open for any time, so it says little.
  CallWork* OldestCollective() const;
  // Returns the earliest deadline of the calls about which no inquiry has begun. Returns
  // Deadline::Never() if there is no such call.
  Deadline FirstDeadline() const;
  // Returns an open call whose input or output overlaps these bytes, or null.
  const CallWork* UserOf(ConstBytes bytes) const;
  // Returns the caller's reduction function that is running, or an empty value. At most one such
  // function runs at a time, because all such functions run on one thread.
  Running RunningFunction() const;
  // Returns RunningFunction() if `work` waits for a function of the caller, and the running
  // function has run for at least kLongRunNs. Otherwise returns an empty value.
  Running HeldUpByFunction(const CallWork& work, int64_t now_ns) const;

 private:
  std::vector<CallWork*> works_;
  int in_line_ = 0;
};

}  // namespace entrain
