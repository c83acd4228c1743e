// Receives a message, or the rest of a message, in fragments. The sender sends them through the
// ring after a CTS, in order.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <cstring>

#include "lib/base/bytes.h"

namespace entrain::shm {

class RingTransfer {
 public:
  RingTransfer(uint64_t from, uint64_t end) : next_(from), end_(end) {}

  // Copies a fragment to its position in `into`, the buffer of the whole message. Returns false,
  // and copies nothing, if nothing is missing or the fragment is longer than the missing part.
  bool Take(ConstBytes fragment, Bytes into) {
    if (!Fits(fragment)) {
      return false;
    }
    if (!fragment.empty()) {
      std::memcpy(into.data() + next_, fragment.data(), fragment.size());
    }
    next_ += fragment.size();
    return true;
  }
  bool Fits(ConstBytes fragment) const { return !whole() && fragment.size() <= end_ - next_; }
  bool whole() const { return next_ == end_; }

 private:
  uint64_t next_, end_;
};

}  // namespace entrain::shm
