#include "lib/base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace entrain {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // bits reversed

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    }
    table[byte] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = MakeTable();

#if defined(__x86_64__)

// The instruction has a latency of three cycles, and one instruction can begin in each cycle. So
// three blocks of this number of bytes are summed in parallel, and their sums are joined
// afterwards.
constexpr size_t kBlock = 4096;

uint64_t Load(const uint8_t* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

// The sum of a text followed by kBlock bytes of zeros is a linear function of the sum of the text:
// one table per byte of that sum.
using Shift = std::array<std::array<uint32_t, 256>, 4>;

__attribute__((target("sse4.2"))) Shift MakeShift() {
  uint32_t of_bit[32];
  for (int bit = 0; bit < 32; ++bit) {
    uint64_t crc = uint32_t{1} << bit;
    for (size_t i = 0; i < kBlock; i += 8) {
      crc = _mm_crc32_u64(crc, 0);
    }
    of_bit[bit] = static_cast<uint32_t>(crc);
  }
  Shift shift{};
  for (size_t place = 0; place < 4; ++place) {
    for (size_t byte = 0; byte < 256; ++byte) {
      for (size_t bit = 0; bit < 8; ++bit) {
        shift[place][byte] ^= (byte >> bit & 1) != 0 ? of_bit[8 * place + bit] : 0;
      }
    }
  }
  return shift;
}

uint64_t ShiftBlock(const Shift& shift, uint64_t crc) {
  return shift[0][crc & 255] ^ shift[1][crc >> 8 & 255] ^ shift[2][crc >> 16 & 255] ^
         shift[3][crc >> 24 & 255];
}

__attribute__((target("sse4.2"))) uint32_t BySse42(const uint8_t* at, size_t count,
                                                   uint32_t before) {
  static const Shift shift = MakeShift();
  uint64_t crc = ~before;
  for (; count >= 3 * kBlock; count -= 3 * kBlock, at += 3 * kBlock) {
    uint64_t second = 0, third = 0;
    for (size_t i = 0; i < kBlock; i += 8) {
      crc = _mm_crc32_u64(crc, Load(at + i));
      second = _mm_crc32_u64(second, Load(at + kBlock + i));
      third = _mm_crc32_u64(third, Load(at + 2 * kBlock + i));
    }
    crc = ShiftBlock(shift, ShiftBlock(shift, crc) ^ second) ^ third;
  }
  for (; count >= 8; count -= 8, at += 8) {
    crc = _mm_crc32_u64(crc, Load(at));
  }
  for (; count > 0; --count, ++at) {
    crc = _mm_crc32_u8(static_cast<uint32_t>(crc), *at);
  }
  return ~static_cast<uint32_t>(crc);
}

#endif

}  // namespace

uint32_t Crc32cByTable(const void* bytes, size_t count, uint32_t before) {
  const auto* const at = static_cast<const uint8_t*>(bytes);
  uint32_t crc = ~before;
  for (size_t i = 0; i < count; ++i) {
    crc = (crc >> 8) ^ kTable[(crc ^ at[i]) & 255];
  }
  return ~crc;
}

uint32_t Crc32c(const void* bytes, size_t count, uint32_t before) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) {
    return BySse42(static_cast<const uint8_t*>(bytes), count, before);
  }
#endif
  return Crc32cByTable(bytes, count, before);
}

}  // namespace entrain
