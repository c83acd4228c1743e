// Copies into cache lines that another core polls, and out of cache lines that another core has
// written. These functions move as few lines as possible between cores, and let these moves
// overlap.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "transports/shm/byte_ring.h"

namespace entrain::shm {

// Returns the length up to which these functions are faster than memcpy. The length is smaller if
// processes share a core, because many lines then need not move.
constexpr size_t MostByLines(bool spare_cores) {
  return spare_cores ? 4096 : 2048;
}

constexpr size_t kCopyUnit = 16;

inline void CopyUnit(std::byte* to, const std::byte* from) {
  std::memcpy(to, from, kCopyUnit);
  std::atomic_signal_fence(std::memory_order_seq_cst);  // keeps each move separate and in order
}

// Copies from the end to the beginning. The reader polls the first line. Each write to this line
// makes the reader fetch the line again. So the first line must be written last, and only once.
inline void CopyIntoLines(std::byte* to, const std::byte* from, size_t bytes) {
  size_t at = bytes & ~(kCopyUnit - 1);
  if (at < bytes) {
    std::memcpy(to + at, from + at, bytes - at);
  }
  while (at > 0) {
    at -= kCopyUnit;
    CopyUnit(to + at, from + at);
  }
}

// Copies in order, so that each line is requested as soon as possible.
inline void CopyOutOfLines(std::byte* to, const std::byte* from, size_t bytes) {
  size_t at = 0;
  for (; at + kCopyUnit <= bytes; at += kCopyUnit) {
    CopyUnit(to + at, from + at);
  }
  if (at < bytes) {
    std::memcpy(to + at, from + at, bytes - at);
  }
}

// Prefetches the lines of a record that is about to be read, except the first line, which this core
// already has.
inline void FetchLines(const std::byte* from, size_t bytes) {
  constexpr size_t kLine = RingFormat::kLine;
  for (size_t at = kLine - reinterpret_cast<uintptr_t>(from) % kLine; at < bytes; at += kLine) {
    __builtin_prefetch(from + at);
  }
}

}  // namespace entrain::shm
