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
  void Came(Way way, size_t bytes, int64_t ns) {
    // The first few count in full: of messages so long there may be no more.
    if (came_[way]++ == 0) {
      long_ns_per_kib_[way] = PerKib(bytes, ns);
    } else {
      Note(bytes, ns, &long_ns_per_kib_[way], std::max(kWeight, 1.0 / came_[way]));
    }
  }

  // Whether the receiver has less to do with what comes through the ring. Asked once a message.
  bool RingIsQuicker() {
    const bool now = ++asked_ % kTryEvery == 0;
    return (ns_per_kib_[kTake] < 0.9 * ns_per_kib_[kRead]) != now;
  }

  // For a message of at least kLong that comes alone: `reading` or the ring. The slower of the two is
  // tried again at the 2nd, 4th, 8th ... and every 64th.
  static constexpr size_t kLong = 1 << 20;
  Way WayOfLong(Way reading) {
    ++long_;
    const Way quicker =
        came_[kRing] > 0 && long_ns_per_kib_[kRing] < long_ns_per_kib_[reading] ? kRing : reading;
    const bool try_other = long_ > 1 && ((long_ & (long_ - 1)) == 0 || long_ % kTryEvery == 0);
    return try_other == (quicker == kRing) ? reading : kRing;
  }

 private:
  static constexpr unsigned kTryEvery = 64;
  static constexpr double kWeight = 1.0 / 8;  // of what comes, in what is usual

  static double PerKib(size_t bytes, int64_t ns) {
    return static_cast<double>(ns) * 1024 / static_cast<double>(bytes);
  }
  static void Note(size_t bytes, int64_t ns, double* usual, double weight = kWeight) {
    *usual += (std::min(PerKib(bytes, ns), 4 * *usual) - *usual) * weight;
  }

  double ns_per_kib_[2] = {65, 30};
  double long_ns_per_kib_[3] = {100, 100, 100};
  unsigned asked_ = 0, long_ = 0, came_[3] = {};
};

}  // namespace entrain::shm
