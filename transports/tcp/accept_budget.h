// A token bucket for connections accepted from strangers (acceptor.h). It limits these connections
// to a burst and a rate. So a flood of connections costs only a bounded part of the engine's time.
// Further connections wait in the kernel's queue, or the kernel refuses them. A connection that
// proves to be from a peer costs no token. This class reads no clock.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lib/base/clock.h"

namespace entrain {

class AcceptBudget {
 public:
  static constexpr int64_t kBurst = 1024, kPerSecond = 500;
  // When the tokens are used up, the caller must accept no connection until there are kBatch
  // tokens.
  static constexpr int64_t kBatch = 16;

  // Takes a token for a connection that the caller is about to accept. Returns false if there is no
  // token. The caller must then wait until ready_at().
  bool Take(int64_t now_ns) {
    if (paid_at_ - now_ns > (kBurst - 1) * kIntervalNs) {
      return false;
    }
    paid_at_ = std::max(paid_at_, now_ns) + kIntervalNs;
    return true;
  }
  // Gives back the token of a connection that proved to be from a peer.
  void GiveBack() { paid_at_ -= kIntervalNs; }
  Deadline ready_at() const { return {paid_at_ - (kBurst - kBatch) * kIntervalNs}; }

 private:
  static constexpr int64_t kIntervalNs = kSecond / kPerSecond;
  int64_t paid_at_ = 0;  // the time at which all taken tokens are back in the bucket
};

}  // namespace entrain
