#include "lib/base/stream_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace entrain {

#if defined(__SSE2__)
namespace {

constexpr size_t kLine = 64, kPage = 4096, kPages = 4;

// `to` must be at the start of a cache line.
void StreamLine(std::byte* to, const std::byte* from) {
  for (size_t at = 0; at < kLine; at += sizeof(__m128i)) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + at),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)));
  }
}

}  // namespace

void StreamCopy(void* to, const void* from, size_t bytes) {
  auto* dst = static_cast<std::byte*>(to);
  auto* src = static_cast<const std::byte*>(from);
  if (bytes == 0) {
    return;
  }
  const auto advance = [&](size_t done) {
    dst += done;
    src += done;
    bytes -= done;
  };
  const size_t head = std::min(bytes, -reinterpret_cast<uintptr_t>(dst) % kLine);
  std::memcpy(dst, src, head);
  advance(head);
  // A core prefetches within one page only, so the loop reads several pages at a time.
  for (; bytes >= kPages * kPage; advance(kPages * kPage)) {
    for (size_t at = 0; at < kPage; at += kLine) {
      for (size_t page = 0; page < kPages * kPage; page += kPage) {
        StreamLine(dst + page + at, src + page + at);
      }
    }
  }
  for (; bytes >= kLine; advance(kLine)) {
    StreamLine(dst, src);
  }
  _mm_sfence();
  std::memcpy(dst, src, bytes);
}
#else
void StreamCopy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) {
    std::memcpy(to, from, bytes);
  }
}
#endif

}  // namespace entrain
