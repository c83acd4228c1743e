// A monotonic clock, real or fake, and deadlines, which are absolute instants of that clock. Each
// layer passes the instant to the layer below, and not the remaining time, so that no time is lost
// between layers.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>

namespace entrain {

constexpr int64_t kMicrosecond = 1000;
constexpr int64_t kMillisecond = 1000 * kMicrosecond;
constexpr int64_t kSecond = 1000 * kMillisecond;
// The time limit of a wait for which the caller gives no limit.
constexpr int64_t kDefaultTimeoutNs = 1800 * kSecond;

// Monotonic nanoseconds. Thread safety: any thread.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t Now() const = 0;
  // Returns an instant at most 10 ms before Now(). The call takes only a few nanoseconds. For
  // records of events, not for deadlines.
  virtual int64_t Roughly() const { return Now(); }
  // CLOCK_MONOTONIC. Never destroyed.
  static const Clock& Real();
};

// A clock that a test moves by hand.
class FakeClock final : public Clock {
 public:
  int64_t Now() const override { return now_.load(std::memory_order_relaxed); }
  void Advance(int64_t ns) { now_.fetch_add(ns, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> now_{1};
};

// An absolute instant of a Clock. Copyable, comparable; Never() is later than every instant.
struct Deadline {
  int64_t at_ns = std::numeric_limits<int64_t>::max();

  static Deadline Never() { return {}; }
  static Deadline After(int64_t ns, const Clock& clock = Clock::Real());
  // Returns the instant `ns` after `now_ns`, the time that the caller has already read.
  static Deadline From(int64_t now_ns, int64_t ns) {
    return ns >= std::numeric_limits<int64_t>::max() - now_ns ? Never() : Deadline{now_ns + ns};
  }
  bool Passed(int64_t now_ns) const { return now_ns >= at_ns; }
  // Returns the nanoseconds from `now_ns` until the instant, at least 0.
  int64_t Left(int64_t now_ns) const { return now_ns >= at_ns ? 0 : at_ns - now_ns; }
  friend bool operator<(Deadline a, Deadline b) { return a.at_ns < b.at_ns; }
};

// Ends a blocking call early: by its deadline, or by a flag that another thread sets. The call
// looks at the flag at least every 20 ms.
struct Stop {
  Deadline deadline;
  const std::atomic<bool>* cancelled = nullptr;
  bool Cancelled() const {
    return cancelled != nullptr && cancelled->load(std::memory_order_acquire);
  }
};

}  // namespace entrain
