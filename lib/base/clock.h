// Time as the library sees it: a monotonic clock, real or fake, and deadlines as absolute instants
// of it. Each layer passes the instant on; none computes "time left" twice.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>

namespace entrain {

constexpr int64_t kMicrosecond = 1000;
constexpr int64_t kMillisecond = 1000 * kMicrosecond;
constexpr int64_t kSecond = 1000 * kMillisecond;
// Of what is waited for, where nobody says.
constexpr int64_t kDefaultTimeoutNs = 1800 * kSecond;

// Monotonic nanoseconds. Thread safety: Now() may be called from any thread.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t Now() const = 0;
  // CLOCK_MONOTONIC; lives for ever.
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
  // `ns` after an instant that has been read already.
  static Deadline From(int64_t now_ns, int64_t ns) {
    return ns >= std::numeric_limits<int64_t>::max() - now_ns ? Never() : Deadline{now_ns + ns};
  }
  bool Passed(int64_t now_ns) const { return now_ns >= at_ns; }
  // Nanoseconds from `now_ns` until the instant, at least 0.
  int64_t Left(int64_t now_ns) const { return now_ns >= at_ns ? 0 : at_ns - now_ns; }
  friend bool operator<(Deadline a, Deadline b) { return a.at_ns < b.at_ns; }
};

// Why a blocking call may end before it has what it wants: its deadline, or a flag that another
// thread sets. The flag is looked at no later than every 20 ms.
struct Stop {
  Deadline deadline;
  const std::atomic<bool>* cancelled = nullptr;
  bool Cancelled() const {
    return cancelled != nullptr && cancelled->load(std::memory_order_acquire);
  }
};

}  // namespace entrain
