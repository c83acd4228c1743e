// Measures the time without events, for a thread that looks after calls. The time begins at the
// last look that did something, or that found a call started after the look before. So a time
// without calls does not count.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

namespace entrain {

class QuietSpell {
 public:
  // After each look. `started` counts the calls that were started before the look; `done`: the look did something.
  // Returns how long nothing has happened; empty: something has.
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
