#include "lib/base/clock.h"

#include <ctime>

namespace entrain {
namespace {

class MonotonicClock final : public Clock {
 public:
  int64_t Now() const override { return Read(CLOCK_MONOTONIC); }
  int64_t Roughly() const override { return Read(CLOCK_MONOTONIC_COARSE); }

 private:
  static int64_t Read(clockid_t id) {
    timespec t;
    clock_gettime(id, &t);
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
