// Measures the time without events, for a thread that polls calls. A look is one poll of all calls.
// The time begins at the last look that made a step, or that noticed a call started since the
// previous look. So a time without calls does not count.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

namespace entrain {

class QuietSpell {
 public:
  // Must be called after each look. `started` is the number of calls that were started before the
  // look. `done`: the look did something. Returns the time since the last event; empty if there was
  // an event.
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
