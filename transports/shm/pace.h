// How quick the ways of a large message are just now: reading the sender's memory, and copying out of
// the ring. Where virtual cores share no cache for a while, reading takes as long as before and the
// ring five times longer. So the copies that are made are timed, and now and then the other way is
// taken, to have it timed too. Likewise with long messages that come alone, as a whole: half in either
// way is the quickest on one machine, all through the ring, in which both cores copy, on another
// (README.md).
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace entrain::shm {

// The largest message, of a power of two of bytes from 4 to 32 KiB, that is there sooner through the
// ring than by an announcement and reading: what reading takes here, a copy within this process, is
// measured once. Where nothing can be read it is the largest.
size_t RingPaysUpTo();

class Pace {
 public:
  enum Copy { kRead, kTake };         // from the peer's memory, out of the ring
  enum Way { kWhole, kHalf, kRing };  // of a long message: read all of it, half, none

  // Copies below this say little.
  static constexpr size_t kLeast = 16 << 10;
  // `bytes` took `ns`. Far too long: something else had the core; that counts little.
  void Took(Copy copy, size_t bytes, int64_t ns) { Note(bytes, ns, &ns_per_kib_[copy]); }
  void Came(Way way, size_t bytes, int64_t ns) { Note(bytes, ns, &long_ns_per_kib_[way]); }

  // Whether the receiver has less to do with what comes through the ring. Asked once a message.
  bool RingIsQuicker() {
    const bool now = ++asked_ % kTryEvery == 0;
    return (ns_per_kib_[kTake] < 0.9 * ns_per_kib_[kRead]) != now;
  }

  // For a message of at least kLong that comes alone: `reading` or the ring.
  static constexpr size_t kLong = 1 << 20;
  Way WayOfLong(Way reading) {
    const bool ring = long_ns_per_kib_[kRing] < long_ns_per_kib_[reading];
    return ring != (++long_ % kTryEvery == kTryEvery / 4) ? kRing : reading;
  }

 private:
  static constexpr unsigned kTryEvery = 64;

  static void Note(size_t bytes, int64_t ns, double* usual) {
    const double now = static_cast<double>(ns) * 1024 / static_cast<double>(bytes);
    *usual += (std::min(now, 4 * *usual) - *usual) / 8;
  }

  double ns_per_kib_[2] = {65, 30};
  double long_ns_per_kib_[3] = {100, 100, 100};
  unsigned asked_ = 0, long_ = 0;
};

}  // namespace entrain::shm
