// How a polling thread waits: it first spins, then yields its core, then sleeps.
#pragma once

#include <cstdint>

#include <sched.h>

#include "lib/base/clock.h"

namespace entrain {

// Tells the core that this thread spins.
inline void CpuPause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Counts polls that found nothing. After such a poll the caller must call Spin. If Spin returns
// false, the caller must call Yield. If Yield also returns false, the caller must sleep.
//
// `crowded`: the host has more ranks than cores. A peer may then need the core of this thread.
//
// Thread safety: none.
class Backoff {
 public:
  static constexpr int kSpins = 64;
  // For this time, a rank that is not crowded spins in Yield and keeps its core. If it called
  // sched_yield, another process could take the core for a time slice of several milliseconds.
  // Meanwhile the peer would wait and then give up its core too.
  static constexpr int64_t kKeepNs = 100 * kMicrosecond;
  // For this time, a rank yields before it sleeps. On a virtual machine, the wake-up of a sleeping
  // thread takes up to 100 us. A peer that reads a few MiB needs less time.
  static constexpr int64_t kYieldNs = kMillisecond;
  static constexpr int kExpectedSpins = 16;

  // Resets all counts. Must be called after a poll that found something.
  void Reset() { *this = Backoff(); }
  // Must be called when the awaited event is near. The next kExpectedSpins calls of Spin then keep
  // the core, even if `crowded`.
  void Expect() { expected_ = kExpectedSpins; }

  // Pauses for some cycles and returns true. If the thread has spun long enough, does nothing and
  // returns false.
  bool Spin(bool crowded) {
    if (expected_ > 0) {
      --expected_;
    } else if (spins_ == kSpins || crowded) {
      return false;
    } else {
      ++spins_;
    }
    CpuPause();
    return true;
  }

  // Lets other threads use the core and returns true. If the thread has yielded long enough, does
  // nothing and returns false.
  bool Yield(int64_t now_ns, bool crowded) {
    spins_ = kSpins;
    if (since_ns_ == kNever) {
      since_ns_ = now_ns;
    }
    if (now_ns - since_ns_ >= kYieldNs) {
      return false;
    }
    if (!crowded && now_ns - since_ns_ < kKeepNs) {
      CpuPause();
    } else {
      sched_yield();
    }
    return true;
  }

 private:
  static constexpr int64_t kNever = -1;
  int spins_ = 0, expected_ = 0;
  int64_t since_ns_ = kNever;  // time of the first Yield since Reset
};

}  // namespace entrain
