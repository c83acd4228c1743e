// Copying into lines that another core looks at, and out of lines that another core has written:
// as few transfers of lines as there can be, and many at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "transports/shm/byte_ring.h"

namespace entrain::shm {

// The length up to which what is here is quicker than memcpy: less where processes share a core, as
// many a line need not come from another.
constexpr size_t MostByLines(bool spare_cores) {
  return spare_cores ? 4096 : 2048;
}

constexpr size_t kCopyUnit = 16;

inline void CopyUnit(std::byte* to, const std::byte* from) {
  std::memcpy(to, from, kCopyUnit);
  std::atomic_signal_fence(std::memory_order_seq_cst);  // a move of its own, in this order
}

// From the end on. The reader polls the first line, and takes it away whenever something is written
// there: it is to be written last, and once.
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

// In order, so that each line is asked for as soon as it can be.
inline void CopyOutOfLines(std::byte* to, const std::byte* from, size_t bytes) {
  size_t at = 0;
  for (; at + kCopyUnit <= bytes; at += kCopyUnit) {
    CopyUnit(to + at, from + at);
  }
  if (at < bytes) {
    std::memcpy(to + at, from + at, bytes - at);
  }
}

// Asks for the lines of what is to be read, but the first: that is here.
inline void FetchLines(const std::byte* from, size_t bytes) {
  constexpr size_t kLine = RingFormat::kLine;
  for (size_t at = kLine - reinterpret_cast<uintptr_t>(from) % kLine; at < bytes; at += kLine) {
    __builtin_prefetch(from + at);
  }
}

}  // namespace entrain::shm
