// How a thread waits that polls for what it waits for: it spins, then offers its core to others, then sleeps.
#pragma once

#include <cstdint>

#include <sched.h>

#include "lib/base/clock.h"

namespace entrain {

// A hint to the core that its thread spins.
inline void CpuPause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Counts polls that found nothing. The caller polls, pauses by Spin or else Yield, and sleeps when both return false.
// `crowded`: the host has more ranks than cores, so that a peer may wait for this core.
//
// Thread safety: none.
class Backoff {
 public:
  static constexpr int kSpins = 64;
  // A rank with a core of its own keeps it for so long. Another process would have the core for a scheduler's slice of
  // milliseconds; the peer, which waits meanwhile, would give up its own core too.
  static constexpr int64_t kKeepNs = 100 * kMicrosecond;
  // Waking a sleeper takes up to a hundred microseconds on a virtual machine, and a peer that reads some MiB is done
  // sooner.
  static constexpr int64_t kYieldNs = kMillisecond;
  static constexpr int kExpectedSpins = 16;

  // A poll found something.
  void Reset() { *this = Backoff(); }
  // What is waited for is on its way: the next polls keep the core, crowded or not.
  void Expect() { expected_ = kExpectedSpins; }

  // Pauses for some cycles. False: that was long enough; nothing was done.
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

  // Lets others have the core, if they want it. False: that was long enough; nothing was done.
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
  int64_t since_ns_ = kNever;  // of the first Yield
};

}  // namespace entrain
