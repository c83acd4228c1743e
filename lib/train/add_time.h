// Measures the lifetime of the object, in nanoseconds. The destructor adds it to a counter.
#pragma once

#include <cstdint>

#include "lib/base/clock.h"

namespace entrain {

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
