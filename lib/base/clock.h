// A monotonic clock, real or fake, and deadlines. A deadline is an absolute instant of the clock.
// Each layer passes the deadline, and not the remaining time, to the layer below. So the time that
// a layer takes counts too.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>

namespace entrain {

constexpr int64_t kMicrosecond = 1000;
constexpr int64_t kMillisecond = 1000 * kMicrosecond;
constexpr int64_t kSecond = 1000 * kMillisecond;
// The time limit of a wait if the caller gives none.
constexpr int64_t kDefaultTimeoutNs = 1800 * kSecond;

// Monotonic nanoseconds. Thread safety: any thread.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t Now() const = 0;
  // Returns an instant that may be up to 10 ms earlier than Now(). Takes only a few nanoseconds.
  // Use it for records of events, not for deadlines.
  virtual int64_t Roughly() const { return Now(); }
  // Returns CLOCK_MONOTONIC. The object is never destroyed.
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

// An absolute instant of a Clock. Never() is later than every instant.
struct Deadline {
  int64_t at_ns = std::numeric_limits<int64_t>::max();

  static Deadline Never() { return {}; }
  static Deadline After(int64_t ns, const Clock& clock = Clock::Real());
  // Returns the instant `ns` after `now_ns`. For callers that have already read the clock.
  static Deadline From(int64_t now_ns, int64_t ns) {
    return ns >= std::numeric_limits<int64_t>::max() - now_ns ? Never() : Deadline{now_ns + ns};
  }
  bool Passed(int64_t now_ns) const { return now_ns >= at_ns; }
  // Returns the nanoseconds from `now_ns` to the deadline, or 0 if the deadline has passed.
  int64_t Left(int64_t now_ns) const { return now_ns >= at_ns ? 0 : at_ns - now_ns; }
  friend bool operator<(Deadline a, Deadline b) { return a.at_ns < b.at_ns; }
};

// Conditions that end a blocking call early: its deadline, and a flag that another thread sets. The
// blocking call reads the flag at least every 20 ms.
struct Stop {
  Deadline deadline;
  const std::atomic<bool>* cancelled = nullptr;
  bool Cancelled() const {
    return cancelled != nullptr && cancelled->load(std::memory_order_acquire);
  }
};

// Measures the lifetime of the object, in nanoseconds. The destructor adds it to a counter.
class AddTime {
 public:
  explicit AddTime(uint64_t* total) : total_(total) {}
  ~AddTime() { *total_ += static_cast<uint64_t>(Clock::Real().Now() - start_); }
  AddTime(const AddTime&) = delete;
  AddTime& operator=(const AddTime&) = delete;

 private:
  uint64_t* const total_;
  const int64_t start_ = Clock::Real().Now();
};

}  // namespace entrain
