// How quick the two ways of a large message are just now: reading the sender's memory, and copying
// out of the ring. Where virtual cores share no cache for a while, reading takes as long as before
// and the ring five times longer. So the copies that are made are timed, and now and then the other
// way is taken, to have it timed too.
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace entrain::shm {

class Pace {
 public:
  enum Copy { kRead, kTake };  // from the peer's memory, out of the ring

  // Copies below this say little.
  static constexpr size_t kLeast = 16 << 10;
  // `bytes` took `ns`. Far too long: something else had the core; that counts little.
  void Took(Copy copy, size_t bytes, int64_t ns) {
    double& usual = ns_per_kib_[copy];
    const double now = static_cast<double>(ns) * 1024 / static_cast<double>(bytes);
    usual += (std::min(now, 4 * usual) - usual) / 8;
  }

  // Whether the receiver has less to do with what comes through the ring. Asked once a message.
  bool RingIsQuicker() {
    const bool now = ++asked_ % kTryEvery == 0;
    return (ns_per_kib_[kTake] < 0.9 * ns_per_kib_[kRead]) != now;
  }

 private:
  static constexpr unsigned kTryEvery = 64;

  double ns_per_kib_[2] = {65, 30};
  unsigned asked_ = 0;
};

}  // namespace entrain::shm
