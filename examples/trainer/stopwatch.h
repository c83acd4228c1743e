// Time on the monotonic clock, in seconds.
#pragma once

#include <chrono>

namespace trainer {

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Measures the time in which calls wait for other ranks: adds its own lifetime to *sum.
class Waiting {
 public:
  explicit Waiting(double* sum) : sum_(sum) {}
  ~Waiting() { *sum_ += watch_.seconds(); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  double* const sum_;
  const Stopwatch watch_;
};

}  // namespace trainer
