#include "lib/base/clock.h"

#include <ctime>

namespace entrain {
namespace {

class MonotonicClock final : public Clock {
 public:
  int64_t Now() const override {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t{t.tv_sec} * kSecond + t.tv_nsec;
  }
};

}  // namespace

const Clock& Clock::Real() {
  static const MonotonicClock clock;
  return clock;
}

Deadline Deadline::After(int64_t ns, const Clock& clock) {
  return From(clock.Now(), ns);
}

}  // namespace entrain
