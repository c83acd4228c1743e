// How a polling thread waits: it spins, then yields its core, then sleeps.
#pragma once

#include <cstdint>

#include <sched.h>

#include "lib/base/clock.h"

namespace entrain {

// Tells the core that its thread spins.
inline void CpuPause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Counts polls that found nothing. After such a poll the caller must call Spin. If Spin returns
// false, the caller must call Yield. If both return false, the caller must sleep. `crowded`: the
// host has more ranks than cores, so a peer may wait for this core.
//
// Thread safety: none.
class Backoff {
 public:
  static constexpr int kSpins = 64;
  // A rank with a core of its own keeps the core for this time. If the rank yielded, another
  // process could take the core for a time slice of milliseconds. The peer would wait meanwhile and
  // give up its own core too.
  static constexpr int64_t kKeepNs = 100 * kMicrosecond;
  // A rank yields for this time before it sleeps. Waking a sleeping thread takes up to a hundred
  // microseconds on a virtual machine. A peer that reads a few MiB is done sooner.
  static constexpr int64_t kYieldNs = kMillisecond;
  static constexpr int kExpectedSpins = 16;

  // Resets the counts. Must be called when a poll has found something.
  void Reset() { *this = Backoff(); }
  // Must be called when the awaited event is near. The next polls then keep the core, even if the
  // host is crowded.
  void Expect() { expected_ = kExpectedSpins; }

  // Pauses for some cycles. Returns false, and does nothing, if the thread has spun long enough.
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

  // Offers the core to other threads. Returns false, and does nothing, if the thread has yielded
  // long enough.
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
  int64_t since_ns_ = kNever;  // time of the first Yield
};

}  // namespace entrain
