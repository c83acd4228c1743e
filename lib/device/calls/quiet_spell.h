// Measures the time since the last event, for a thread that polls all calls again and again. An
// event is a step of a call, or the start of a call. So the time before the start of a call does
// not count.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

namespace entrain {

class QuietSpell {
 public:
  // Must be called after each poll of all calls. `started` is the number of calls that were started
  // before the poll. `done` is true if the poll made a step. Returns the time in ns since the last
  // event. Returns nullopt if this poll had an event.
  std::optional<int64_t> AfterLook(int64_t now_ns, uint64_t started, bool done) {
    if (std::exchange(known_, started) != started || done) {
      since_ns_ = now_ns;
      return std::nullopt;
    }
    return now_ns - since_ns_;
  }

 private:
  uint64_t known_ = 0;
  int64_t since_ns_ = 0;
};

}  // namespace entrain
