// Copies a part of a message to its place.
#pragma once

#include <cstddef>
#include <cstring>

#include "lib/base/stream_copy.h"

namespace entrain::shm {

// With `cold`, copies past the caches. An empty part may have any addresses.
inline void CopyPart(std::byte* to, const std::byte* from, size_t bytes, bool cold) {
  if (bytes == 0) {
    return;
  }
  if (cold) {
    StreamCopy(to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace entrain::shm
