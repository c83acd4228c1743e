// How quick the ways of a large message are just now: reading the sender's memory, and copying out of
// the ring. Where virtual cores share no cache for a while, reading takes as long as before and the
// ring five times longer. So the copies that are made are timed, and now and then the other way is
// taken, to have it timed too. Likewise with long messages that come alone, as a whole: half in either
// way is the quickest on one machine, all through the ring, in which both cores copy, on another
// (README.md). Where processes share cores, the work of both sides is compared instead, of very long
// messages and of what no cache holds.
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

namespace entrain::shm {

// The largest message, of a power of two of bytes from 4 to 32 KiB, that is there sooner through the
// ring than by an announcement and reading: what reading takes here, a copy within this process, is
// measured once. Where nothing can be read it is the largest.
size_t RingPaysUpTo();

// What copies of one kind take when nothing comes between: new pages, somebody else who has the core.
// So it follows quicker ones soon and slower ones slowly.
class CopyTime {
 public:
  void Note(size_t bytes, int64_t ns) {
    const double now = static_cast<double>(ns) * 1024 / static_cast<double>(bytes);
    const double more = std::min(now, 4 * ns_per_kib_) - ns_per_kib_;
    ns_per_kib_ = known() ? ns_per_kib_ + more / (more < 0 ? 2 : 8) : now;
  }
  // As noted somewhere else. 0: not known.
  static CopyTime Of(uint32_t ns_per_mib) {
    CopyTime time;
    time.ns_per_kib_ = static_cast<double>(ns_per_mib) / 1024;
    return time;
  }
  bool known() const { return ns_per_kib_ > 0; }
  double ns_per_kib() const { return ns_per_kib_; }
  uint32_t ns_per_mib() const {
    return static_cast<uint32_t>(
        std::min<double>(ns_per_kib_ * 1024, std::numeric_limits<uint32_t>::max()));
  }

 private:
  double ns_per_kib_ = 0;
};

class Pace {
 public:
  enum Copy { kRead, kTake };         // from the peer's memory, out of the ring
  enum Way { kWhole, kHalf, kRing };  // of a long message: read all of it, half, none

  // Copies below this say little.
  static constexpr size_t kLeast = 16 << 10;
  // `bytes` took `ns`. Far too long: something else had the core; that counts little.
  void Took(Copy copy, size_t bytes, int64_t ns) { Note(bytes, ns, &ns_per_kib_[copy]); }
  // The same of messages that RingIsLessWork was asked about.
  void Worked(Copy copy, size_t bytes, int64_t ns) { work_[copy].Note(bytes, ns); }
  // What the sender says that a copy into the ring takes it, and to how many peers it sends just now.
  void Puts(const CopyTime& put, uint32_t receivers) {
    put_ = put;
    receivers_ = receivers;
  }
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

  // Where processes share cores a message's own time says little: it waits for the core as others do.
  // What counts is the work. Whether the copies through the ring are less of it than reading, for a
  // message from one of `senders` peers that send here now. Where we send too (`both`), all
  // processes are busy anyway, and it does not matter whose copies they are; else the two share them,
  // and the one that has more to do counts. Asked once a message; the other way is tried now and then.
  bool RingIsLessWork(uint64_t bytes, int senders, bool both) {
    const CopyTime &take = work_[kTake], &read = work_[kRead];
    bool less = false;
    if (put_.known() && take.known() && read.known()) {
      const double put = put_.ns_per_kib(), all_reads = read.ns_per_kib() * senders;
      less = both ? put + take.ns_per_kib() < 0.9 * read.ns_per_kib()
                  : std::max(put * receivers_, take.ns_per_kib() * senders) < 0.9 * all_reads;
    }
    const auto parts = static_cast<unsigned>(std::clamp<uint64_t>(bytes / kPart, 1, kRun));
    return less != IsRareTrial(std::exchange(parts_, parts_ + parts));
  }

  // For a message of at least kLong that comes alone: `reading` or the ring. The slower of the two is
  // tried again at the 2nd, 4th, 8th ... and every 64th.
  static constexpr size_t kLong = 1 << 20, kVeryLong = 8 << 20;
  Way WayOfLong(Way reading) {
    ++long_;
    const Way quicker =
        came_[kRing] > 0 && long_ns_per_kib_[kRing] < long_ns_per_kib_[reading] ? kRing : reading;
    return IsTrial(long_) == (quicker == kRing) ? reading : kRing;
  }

 private:
  static constexpr unsigned kTryEvery = 64;
  static constexpr double kWeight = 1.0 / 8;    // of what comes, in what is usual
  static constexpr unsigned kTryRarely = 2048;  // a trial on shared cores can cost a whole slice
  static constexpr unsigned kRun = 4;
  static constexpr uint64_t kPart = 256 << 10;

  static bool IsTrial(unsigned asked) {
    return asked > 1 && ((asked & (asked - 1)) == 0 || asked % kTryEvery == 0);
  }
  // Of messages of 1 MiB together, as the first few find in the caches what the other way left there.
  static bool IsRareTrial(unsigned asked) {
    return asked / kRun == 1 || asked / kRun == 8 ||
           (asked >= kTryRarely && asked % kTryRarely < kRun);
  }

  static double PerKib(size_t bytes, int64_t ns) {
    return static_cast<double>(ns) * 1024 / static_cast<double>(bytes);
  }
  static void Note(size_t bytes, int64_t ns, double* usual, double weight = kWeight) {
    *usual += (std::min(PerKib(bytes, ns), 4 * *usual) - *usual) * weight;
  }

  double ns_per_kib_[2] = {65, 30};
  CopyTime work_[2], put_;
  uint32_t receivers_ = 1;
  double long_ns_per_kib_[3] = {100, 100, 100};
  unsigned asked_ = 0, long_ = 0, came_[3] = {};
  unsigned parts_ = 0;  // of the messages asked about, each kRun at most
};

}  // namespace entrain::shm
