// How many connections may be accepted from strangers: a burst, and so many a second, so that a flood of them costs a
// bounded part of the engine's time. The rest waits in the kernel's queue, or is refused there. Whoever proves to be a
// peer costs nothing. A pure machine: no clock inside.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lib/base/clock.h"

namespace entrain {

class AcceptBudget {
 public:
  static constexpr int64_t kBurst = 1024, kPerSecond = 500;
  // After it was spent, accepting waits for so many at once.
  static constexpr int64_t kBatch = 16;

  // One more is about to be accepted. False: the budget is spent; wait until ready_at().
  bool Take(int64_t now_ns) {
    if (paid_at_ - now_ns > (kBurst - 1) * kIntervalNs) {
      return false;
    }
    paid_at_ = std::max(paid_at_, now_ns) + kIntervalNs;
    return true;
  }
  // One that was taken turned out to be a peer.
  void GiveBack() { paid_at_ -= kIntervalNs; }
  Deadline ready_at() const { return {paid_at_ - (kBurst - kBatch) * kIntervalNs}; }

 private:
  static constexpr int64_t kIntervalNs = kSecond / kPerSecond;
  int64_t paid_at_ = 0;  // by then everything taken has been earned
};

}  // namespace entrain
