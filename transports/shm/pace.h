// How quick the ways of a large message are just now: reading the sender's memory, and copying out of
// the ring. Where virtual cores share no cache for a while, reading takes as long as before and the
// ring five times longer. So the copies that are made are timed, and now and then the other way is
// taken, to have it timed too. Messages that come alone are timed as a whole, those of each power of
// two of bytes for themselves (LoneMessages): as long as the caches hold them reading is the quickest on
// one machine and half in either way on another, and of longer ones all through the ring, in which both
// cores copy (docs/lab/shm.md). Where processes share cores, the work of both sides is compared instead, of
// very long messages and of what no cache holds.
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <utility>

namespace entrain::shm {

// The largest message, of a power of two of bytes from 4 to 32 KiB, that is there sooner through the
// ring than by an announcement and reading: what reading takes here, a copy within this process, is
// measured once. Where nothing can be read it is the largest.
size_t RingPaysUpTo();

// What copies of one kind take when nothing comes between: new pages, somebody else who has the core.
// So it follows quicker ones at once and slower ones slowly.
class CopyTime {
 public:
  void Note(size_t bytes, int64_t ns) {
    const double now = static_cast<double>(ns) * 1024 / static_cast<double>(bytes);
    const bool quicker = !known() || now < ns_per_kib_;
    ns_per_kib_ = quicker ? now : ns_per_kib_ + (std::min(now, 4 * ns_per_kib_) - ns_per_kib_) / 8;
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

// Messages of about one length that come alone: what they take by each way.
class LoneMessages {
 public:
  enum Way { kWhole, kHalf, kRing };  // read all of it, half, none
  static constexpr int kWays = 3;
  // Which way of a trial finds the caches as it leaves them itself: the third. Of messages so long that no
  // cache holds them it is the first, and there may be few.
  static constexpr unsigned kRun = 3;
  static constexpr uint64_t kLongest = 4 << 20;

  // The way of the next. `halves`: whether half is one. At first a run of each is tried, then the
  // quickest is taken, and now and then a run of one of the others.
  Way Next(uint64_t bytes, bool halves) {
    const unsigned run = bytes < kLongest ? kRun : 1, now = asked_++;
    const Way others[] = {halves ? kHalf : kRing, kRing};
    if (now < run) {
      return Take(kWhole);
    }
    if (now < (halves ? 3 : 2) * run) {
      return Take(others[now / run - 1]);
    }
    const Way best = Quickest(bytes, halves);
    const unsigned since = now < kTryEvery ? std::bit_floor(now) : now - now % kTryEvery;
    if (since < kTryFirst || now - since >= run) {
      return Take(best);
    }
    // One other, then the other one: the bits of `since` below kTryEvery take turns, and so do those above.
    const unsigned turn = since < kTryEvery ? std::bit_width(since) : since / kTryEvery;
    const auto other = static_cast<Way>((best + 1 + turn % 2) % kWays);
    return Take(other != kHalf || halves ? other : best == kRing ? kWhole : kRing);
  }
  // Such a message took `ns`.
  void Came(Way way, uint64_t bytes, int64_t ns) {
    if (way != last_ || ++settled_ < (bytes < kLongest ? kRun : 1)) {
      return;
    }
    times_[way].Note(bytes, ns);
  }

 private:
  static constexpr uint64_t kNear = 2 << 20;
  static constexpr unsigned kTryFirst = 32, kTryEvery = 256;
  static constexpr double kClearly = 0.85;

  Way Take(Way way) {
    settled_ = way == last_ ? settled_ : 0;
    return last_ = way;
  }
  // What goes through the ring takes room in the caches from what the other side reads at its turn: of
  // messages that the caches hold all are quicker when all are read, though a first one seems not to be.
  Way Quickest(uint64_t bytes, bool halves) const {
    const CopyTime &half = times_[kHalf], &ring = times_[kRing];
    const bool half_is =
        halves && half.known() && (!ring.known() || half.ns_per_kib() < ring.ns_per_kib());
    const CopyTime& best = half_is ? half : ring;
    const bool clearly = best.known() && best.ns_per_kib() < (bytes < kNear ? kClearly : 1) *
                                                                 times_[kWhole].ns_per_kib();
    return !clearly ? kWhole : half_is ? kHalf : kRing;
  }

  CopyTime times_[kWays];
  unsigned asked_ = 0, settled_ = 0;  // settled_: messages by the last way in a row
  Way last_ = kWhole;
};

class Pace {
 public:
  enum Copy { kRead, kTake };  // from the peer's memory, out of the ring

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
  // Of a message that comes alone, of at least kLeastAlone.
  LoneMessages& Alone(uint64_t bytes) {
    const auto power = static_cast<size_t>(std::bit_width(bytes / kLeastAlone));
    return alone_[std::clamp<size_t>(power, 1, std::size(alone_)) - 1];
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

  static constexpr size_t kLeastAlone = 64 << 10, kLong = 1 << 20, kVeryLong = 8 << 20;

 private:
  static constexpr unsigned kTryEvery = 64;
  static constexpr double kWeight = 1.0 / 8;    // of what comes, in what is usual
  static constexpr unsigned kTryRarely = 2048;  // a trial on shared cores can cost a whole slice
  static constexpr unsigned kRun = 4;
  static constexpr uint64_t kPart = 256 << 10;

  // Of messages of 1 MiB together, as the first few find in the caches what the other way left there.
  static bool IsRareTrial(unsigned asked) {
    return asked / kRun == 1 || asked / kRun == 8 ||
           (asked >= kTryRarely && asked % kTryRarely < kRun);
  }

  static void Note(size_t bytes, int64_t ns, double* usual) {
    const double now = static_cast<double>(ns) * 1024 / static_cast<double>(bytes);
    *usual += (std::min(now, 4 * *usual) - *usual) * kWeight;
  }

  double ns_per_kib_[2] = {65, 30};
  CopyTime work_[2], put_;
  uint32_t receivers_ = 1;
  LoneMessages alone_[12];  // by powers of two
  unsigned asked_ = 0;
  unsigned parts_ = 0;  // of the messages asked about, each kRun at most
};

}  // namespace entrain::shm
