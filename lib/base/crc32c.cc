#include "lib/base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace entrain {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // in reversed bit order

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

// Some compilers count the CRC32 instruction to SSE4.2, and some as a set of its own.
#define ENTRAIN_CRC32 "sse4.2,crc32"

// The CRC32 instruction has a latency of three cycles, and a new one can start in every cycle. So
// the loop computes the checksums of three blocks of kBlock bytes in parallel, and then joins them.
// The blocks are short, so that the hardware prefetcher sees one sequential read.
constexpr size_t kBlock = 256;

uint64_t Load(const uint8_t* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

// Maps the checksum of a text to the checksum of the same text with kBlock zero bytes appended. The
// map is linear, so one table for each byte of the checksum is enough.
using Shift = std::array<std::array<uint32_t, 256>, 4>;

__attribute__((target(ENTRAIN_CRC32))) Shift MakeShift() {
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

__attribute__((target(ENTRAIN_CRC32))) uint32_t Sum(const uint8_t* at, size_t count, uint64_t crc) {
  static const Shift shift = MakeShift();
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
  return static_cast<uint32_t>(crc);
}

// ---- With VPCLMULQDQ: one instruction multiplies four pairs of polynomials
//
// The checksum of a text is the remainder of a polynomial modulo P. A block of 16 bytes can be
// multiplied by t^n mod P and added to the bytes that are n bits closer to the end of the text. The
// remainder does not change.

#define ENTRAIN_FOLDING ENTRAIN_CRC32 ",avx512f,vpclmulqdq"
constexpr size_t kStep = 4 * sizeof(__m512i);

// Returns t^n mod P in reversed bit order, as a factor for carry-less multiplication.
constexpr int64_t Factor(int n) {
  uint32_t power = 0x80000000;  // t^0
  for (int i = 0; i < n; ++i) {
    power = (power >> 1) ^ ((power & 1) != 0 ? kPolynomial : 0);
  }
  return int64_t{power} << 1;
}

// Returns the factors by which Move multiplies the low half and the high half of each block. The
// product is the block moved by `bits` bits.
template <int bits>
__attribute__((target(ENTRAIN_FOLDING))) __m512i FactorsFor() {
  constexpr int64_t kLow = Factor(bits + 32), kHigh = Factor(bits - 32);
  return _mm512_set_epi64(kHigh, kLow, kHigh, kLow, kHigh, kLow, kHigh, kLow);
}

__attribute__((target(ENTRAIN_FOLDING))) __m512i Move(__m512i blocks, __m512i factors,
                                                      __m512i onto) {
  const __m512i low = _mm512_clmulepi64_epi128(blocks, factors, 0x00);
  const __m512i high = _mm512_clmulepi64_epi128(blocks, factors, 0x11);
  return _mm512_xor_si512(_mm512_xor_si512(low, high), onto);
}

// `count` must be a multiple of kStep and not 0.
__attribute__((target(ENTRAIN_FOLDING))) uint64_t SumSteps(const uint8_t* at, size_t count,
                                                           uint64_t crc) {
  __m512i sums[4];
  for (size_t i = 0; i < 4; ++i) {
    sums[i] = _mm512_loadu_si512(at + i * sizeof(__m512i));
  }
  sums[0] = _mm512_xor_si512(sums[0],
                             _mm512_zextsi128_si512(_mm_cvtsi64_si128(static_cast<int64_t>(crc))));
  const __m512i by_step = FactorsFor<8 * kStep>();
  for (at += kStep, count -= kStep; count > 0; at += kStep, count -= kStep) {
    for (size_t i = 0; i < 4; ++i) {
      sums[i] = Move(sums[i], by_step, _mm512_loadu_si512(at + i * sizeof(__m512i)));
    }
  }
  const __m512i by_register = FactorsFor<8 * sizeof(__m512i)>();
  for (size_t i = 1; i < 4; ++i) {
    sums[i] = Move(sums[i - 1], by_register, sums[i]);
  }
  uint64_t words[8];
  _mm512_storeu_si512(words, sums[3]);
  crc = 0;
  for (const uint64_t word : words) {
    crc = _mm_crc32_u64(crc, word);
  }
  return crc;
}

uint32_t ByInstruction(const void* bytes, size_t count, uint32_t before) {
  return ~Sum(static_cast<const uint8_t*>(bytes), count, static_cast<uint32_t>(~before));
}

uint32_t ByFolding(const void* bytes, size_t count, uint32_t before) {
  const auto* const at = static_cast<const uint8_t*>(bytes);
  const size_t whole = count / kStep * kStep;
  uint64_t crc = static_cast<uint32_t>(~before);
  if (whole > 0) {
    crc = SumSteps(at, whole, crc);
  }
  return ~Sum(at + whole, count - whole, crc);
}

#endif

uint32_t ByTable(const void* bytes, size_t count, uint32_t before) {
  const auto* const at = static_cast<const uint8_t*>(bytes);
  uint32_t crc = ~before;
  for (size_t i = 0; i < count; ++i) {
    crc = (crc >> 8) ^ kTable[(crc ^ at[i]) & 255];
  }
  return ~crc;
}

}  // namespace

std::vector<Crc32cWay> Crc32cWays() {
  std::vector<Crc32cWay> ways;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2") != 0) {
    if (__builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("vpclmulqdq") != 0) {
      ways.push_back({"vpclmulqdq", ByFolding});
    }
    ways.push_back({"sse4.2", ByInstruction});
  }
#endif
  ways.push_back({"table", ByTable});
  return ways;
}

uint32_t Crc32c(const void* bytes, size_t count, uint32_t before) {
  static const auto sum = Crc32cWays().front().sum;
  return sum(bytes, count, before);
}

}  // namespace entrain
