#include "lib/kernels/packing.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"

namespace entrain {
namespace {

constexpr int64_t kHeader = 8;
constexpr int kFormShift = 56;
constexpr int64_t kWord = 64;  // elements per word of a bitmap

int64_t Ceiling(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

template <typename T>
T Get(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// Calls body(Bits()). Bits is the unsigned integer type that has the size of an element.
template <typename Body>
auto ByWidth(DType dtype, const Body& body) {
  switch (SizeOf(dtype)) {
    case 1:
      return body(uint8_t{});
    case 2:
      return body(uint16_t{});
    case 4:
      return body(uint32_t{});
    default:
      return body(uint64_t{});
  }
}

template <typename Bits>
constexpr Bits kMagnitude = static_cast<Bits>(std::numeric_limits<Bits>::max() >> 1);

// Finds the k-th largest magnitude by a radix selection, from the highest digit down. Each pass
// counts, by their next digit, the elements that begin with the digits found so far.
template <typename Bits>
Sieve LargestOf(const Bits* x, int64_t count, int64_t k) {
  constexpr int kDigit = 11;
  Sieve sieve;
  sieve.kind = Sieve::kLargest;
  sieve.ties = k;
  Bits known = 0;
  for (int low = 8 * static_cast<int>(sizeof(Bits)) - 1; low > 0;) {
    const int width = std::min(kDigit, low);
    low -= width;
    std::array<int64_t, 1 << kDigit> counts{};
    const auto digits = static_cast<Bits>((uint64_t{1} << width) - 1);
    for (int64_t i = 0; i < count; ++i) {
      const auto magnitude = static_cast<Bits>(x[i] & kMagnitude<Bits>);
      if (static_cast<Bits>(magnitude & known) == static_cast<Bits>(sieve.threshold)) {
        ++counts[(magnitude >> low) & digits];
      }
    }
    int digit = (1 << width) - 1;
    for (; counts[static_cast<size_t>(digit)] < sieve.ties; --digit) {
      sieve.ties -= counts[static_cast<size_t>(digit)];
    }
    sieve.threshold |= static_cast<uint64_t>(digit) << low;
    known = static_cast<Bits>(known | static_cast<Bits>(digits << low));
  }
  return sieve;
}

// Returns one bit for each of up to 64 elements: holds(i). The first loop can be vectorised, so the
// bits are gathered in a second loop.
template <typename Holds>
uint64_t BitsWhere(int64_t count, const Holds& holds) {
  std::array<uint8_t, kWord> bytes{};
  for (int64_t i = 0; i < count; ++i) {
    bytes[static_cast<size_t>(i)] = holds(i) ? 1 : 0;
  }
  uint64_t bits = 0;
  for (size_t at = 0; at < kWord; at += 8) {
    // The product moves the lowest bit of byte k to bit 56 + k.
    const uint64_t eight = Get<uint64_t>(reinterpret_cast<const std::byte*>(&bytes[at]));
    bits |= eight * 0x0102040810204080u >> 56 << at;
  }
  return bits;
}

template <typename Bits>
uint64_t WordOf(Sieve& sieve, const Bits* x, int64_t place, int64_t count) {
  const auto magnitude = [&](int64_t i) { return static_cast<Bits>(x[i] & kMagnitude<Bits>); };
  const auto threshold = static_cast<Bits>(sieve.threshold);
  const uint64_t nonzero = BitsWhere(count, [&](int64_t i) { return magnitude(i) != 0; });
  if (sieve.kind == Sieve::kNonzero || nonzero == 0) {
    return nonzero;
  }
  if (sieve.kind == Sieve::kRandom) {
    return nonzero & BitsWhere(count, [&](int64_t i) {
             return sieve.draws.At(static_cast<uint64_t>(place + i)) < sieve.threshold;
           });
  }
  uint64_t kept = BitsWhere(count, [&](int64_t i) { return magnitude(i) > threshold; });
  if (sieve.ties > 0) {
    uint64_t at = BitsWhere(count, [&](int64_t i) { return magnitude(i) == threshold; });
    for (; at != 0 && sieve.ties > 0; at &= at - 1, --sieve.ties) {
      kept |= at & (~at + 1);
    }
  }
  return nonzero & kept;
}

int64_t ValueBytes(const Packing& packing, int64_t values) {
  const int64_t scales = packing.block > 0 ? 4 * Ceiling(values, packing.block) : 0;
  switch (packing.format) {
    case WireFormat::kFull:
      return values * SizeOf(packing.dtype);
    case WireFormat::kBF16:
      return values * 2;
    case WireFormat::kInt8:
      return scales + values;
    case WireFormat::kInt4:
      return scales + Ceiling(values, 2);
    case WireFormat::kInt2:
      return scales + Ceiling(values, 4);
  }
  return 0;
}

int64_t PositionBytes(Chosen::Form form, int64_t count, int64_t values) {
  return form == Chosen::kBitmap    ? Ceiling(count, kWord) * 8
         : form == Chosen::kIndices ? values * 4
                                    : 0;
}

// Rounds up to a multiple of 8. Slices are stored one after the other, and each must begin at a
// multiple of 8.
int64_t Padded(int64_t bytes) {
  return Ceiling(bytes, 8) * 8;
}

// Returns the number of values to process at a time: whole blocks, at least kPiece values.
int64_t ChunkOf(const Packing& packing) {
  return packing.block > 0 ? packing.block * Ceiling(Unpacker::kPiece, packing.block)
                           : Unpacker::kPiece;
}

// Returns a uniformly distributed number in [0, 1).
float Fraction(uint32_t draw) {
  return static_cast<float>(draw >> 8) * 0x1p-24f;
}

uint16_t ToBF16(float x, uint32_t draw) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if (!std::isfinite(x)) {
    return static_cast<uint16_t>(bits >> 16 | (std::isnan(x) ? 0x40 : 0));
  }
  const uint32_t rounded = bits + (draw & 0xffff);
  const bool overflows = (rounded & 0x7fffffff) >= 0x7f800000;
  return static_cast<uint16_t>((overflows ? bits : rounded) >> 16);
}

// Returns the scale by which a block is divided to fit into -most .. most. Returns 0 if all values
// are zero or too small. Returns NaN if a value is not finite.
float ScaleOf(const float* x, int64_t count, int most) {
  int32_t largest = 0;  // magnitudes have the same order as their bits
  for (int64_t i = 0; i < count; ++i) {
    const auto magnitude = static_cast<int32_t>(std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
    largest = magnitude > largest ? magnitude : largest;
  }
  const float scale = std::bit_cast<float>(largest) / static_cast<float>(most);
  return largest >= 0x7f800000                       ? std::numeric_limits<float>::quiet_NaN()
         : scale < std::numeric_limits<float>::min() ? 0
                                                     : scale;
}

// The integer codes of values. A code stands for the value (code * step + shift) * scale. The scale
// of a block is its largest magnitude divided by `divisor`.
struct Levels {
  int divisor, least, most;
  float step, shift;
};
constexpr Levels LevelsOf(WireFormat format) {
  return format == WireFormat::kInt8   ? Levels{127, -127, 127, 1, 0}
         : format == WireFormat::kInt4 ? Levels{7, -7, 7, 1, 0}
                                       : Levels{1, -2, 1, 2.0F / 3, 1.0F / 3};
}

// Rounds x * inverse + offset to a code between `least` and `most`. The unrounded number is within
// -128 .. 128. If `fractions` is null, rounds to nearest even. Otherwise adds a fraction in [0, 1)
// and rounds down.
void Quantize(int8_t* codes, const float* x, const float* fractions, float inverse,
              const Levels& levels, int64_t count) {
  const int least = levels.least, most = levels.most;
  const float offset = -levels.shift / levels.step;
  constexpr float kRounds = 0x1.8p23F;  // the addition of this number rounds to a whole number
  for (int64_t i = 0; i < count; ++i) {
    const float exact =
        x[i] * inverse + (fractions == nullptr ? offset : fractions[i] - 0.5F + offset);
    const auto whole = static_cast<int32_t>((exact + kRounds) - kRounds);
    const int32_t code = whole > most ? most : whole < least ? least : whole;
    codes[i] = static_cast<int8_t>(code);
  }
}

// PackPairs packs two codes of -8 .. 7 into a byte, the first in the lower half. UnpackPairs
// decodes them.
void PackPairs(std::byte* out, const int8_t* codes, int64_t pairs) {
  auto* const bytes = reinterpret_cast<uint8_t*>(out);
  for (int64_t p = 0; p < pairs; ++p) {
    const auto low = static_cast<uint8_t>(codes[2 * p]),
               high = static_cast<uint8_t>(codes[2 * p + 1]);
    bytes[p] = static_cast<uint8_t>((low & 0xf) | high << 4);
  }
}
void UnpackPairs(float* out, const std::byte* from, float scale, int64_t pairs) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(from);
  for (int64_t p = 0; p < pairs; ++p) {
    const int32_t low = ((bytes[p] & 0xf) ^ 8) - 8, high = ((bytes[p] >> 4) ^ 8) - 8;
    out[2 * p] = scale * static_cast<float>(low);
    out[2 * p + 1] = scale * static_cast<float>(high);
  }
}

// Packs four codes of -2 .. 1 into a byte, the first in the lowest bits.
void PackQuads(std::byte* out, const int8_t* codes, int64_t quads) {
  for (int64_t q = 0; q < quads; ++q) {
    uint32_t byte = 0;
    for (int i = 0; i < 4; ++i) {
      byte |= (static_cast<uint32_t>(codes[4 * q + i]) & 3u) << (2 * i);
    }
    out[q] = static_cast<std::byte>(byte);
  }
}
void UnpackQuads(float* out, const std::byte* codes, float scale, int64_t begin, int64_t count) {
  constexpr Levels levels = LevelsOf(WireFormat::kInt2);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = begin + i;
    const auto bits = static_cast<int32_t>(codes[at / 4]) >> (2 * (at % 4)) & 3;
    out[i] = scale * (static_cast<float>((bits ^ 2) - 2) * levels.step + levels.shift);
  }
}

// Writes the values of a packed slice. `begin` is the index of a value in the slice.
class ValueWriter {
  static constexpr int64_t kRun =
      256;  // values that are processed at a time; their codes fill whole bytes

 public:
  ValueWriter(const Kernels& kernels, const Packing& packing, std::byte* out, int64_t values,
              const Draws& draws, int64_t first)
      : kernels_(kernels),
        packing_(packing),
        out_(out),
        codes_(out + (packing.block > 0 ? 4 * Ceiling(values, packing.block) : 0)),
        draws_(draws),
        first_(static_cast<uint64_t>(first)) {}

  // Writes values begin to begin + count - 1. `begin` must be the first value of a block.
  void Write(const void* x, int64_t begin, int64_t count) {
    const auto* const floats = static_cast<const float*>(x);
    if (packing_.format == WireFormat::kFull) {
      const int64_t width = SizeOf(packing_.dtype);
      std::memcpy(out_ + begin * width, x, static_cast<size_t>(count * width));
    } else if (packing_.format == WireFormat::kBF16) {
      WriteBF16(floats, begin, count);
    } else {
      for (int64_t at = 0; at < count; at += packing_.block) {
        WriteBlock(floats + at, begin + at, std::min(packing_.block, count - at));
      }
    }
  }

 private:
  bool stochastic() const { return packing_.rounding == WireRounding::kStochastic; }
  uint32_t Draw(int64_t value) const { return draws_.At(first_ + static_cast<uint64_t>(value)); }

  void WriteBF16(const float* x, int64_t begin, int64_t count) {
    if (!stochastic()) {
      kernels_.cast(out_ + begin * 2, DType::kBF16, x, DType::kF32, count);
      return;
    }
    for (int64_t i = 0; i < count; ++i) {
      const uint16_t bits = ToBF16(x[i], Draw(begin + i));
      std::memcpy(out_ + (begin + i) * 2, &bits, sizeof(bits));
    }
  }

  void WriteBlock(const float* x, int64_t begin, int64_t count) {
    const Levels levels = LevelsOf(packing_.format);
    const float scale = ScaleOf(x, count, levels.divisor);
    std::memcpy(out_ + begin / packing_.block * 4, &scale, sizeof(scale));
    std::array<int8_t, kRun> codes;
    std::array<float, kRun> fractions;
    for (int64_t start = 0; start < count; start += kRun) {
      const int64_t length = std::min(kRun, count - start);
      for (int64_t i = 0; stochastic() && i < length; ++i) {
        fractions[static_cast<size_t>(i)] = Fraction(Draw(begin + start + i));
      }
      if (scale > 0) {
        Quantize(codes.data(), x + start, stochastic() ? fractions.data() : nullptr,
                 1 / scale / levels.step, levels, length);
      } else {
        codes.fill(0);
      }
      WriteCodes(codes, begin + start, length);
    }
  }

  // Sets the unused bits of the last byte to 0.
  void WriteCodes(std::array<int8_t, kRun>& codes, int64_t begin, int64_t count) {
    if (packing_.format == WireFormat::kInt8) {
      std::memcpy(codes_ + begin, codes.data(), static_cast<size_t>(count));
      return;
    }
    std::fill(codes.begin() + count, codes.begin() + Ceiling(count, 4) * 4, int8_t{0});
    if (packing_.format == WireFormat::kInt4) {
      PackPairs(codes_ + begin / 2, codes.data(), Ceiling(count, 2));
    } else {
      PackQuads(codes_ + begin / 4, codes.data(), Ceiling(count, 4));
    }
  }

  const Kernels& kernels_;
  const Packing& packing_;
  std::byte *const out_, *const codes_;
  const Draws& draws_;
  const uint64_t first_;
};

// Gathers the selected values and writes them, chunk by chunk.
template <typename Bits>
void PackAs(const Kernels& kernels, const Packing& packing, const Chosen& chosen, const Bits* x,
            double factor, ValueWriter writer) {
  if (chosen.words.empty() && factor == 1) {
    writer.Write(x, 0, chosen.count);
    return;
  }
  const int64_t chunk = ChunkOf(packing);
  std::vector<Bits> room(static_cast<size_t>(chunk));
  int64_t held = 0, written = 0;
  const auto flush = [&] {
    if (factor != 1) {
      kernels.scale_any(packing.dtype, room.data(), room.data(), held, factor);
    }
    writer.Write(room.data(), written, held);
    written += held;
    held = 0;
  };
  const bool dense = chosen.form == Chosen::kDense;
  for (int64_t start = 0; start < chosen.count; start += kWord) {
    const int64_t length = std::min(kWord, chosen.count - start);
    uint64_t word =
        chosen.words.empty() ? ~uint64_t{0} : chosen.words[static_cast<size_t>(start / kWord)];
    if (dense) {
      for (int64_t i = 0; i < length; ++i) {
        room[static_cast<size_t>(held++)] = (word >> i & 1) != 0 ? x[start + i] : Bits{0};
        if (held == chunk) {
          flush();
        }
      }
      continue;
    }
    for (; word != 0; word &= word - 1) {
      room[static_cast<size_t>(held++)] = x[start + std::countr_zero(word)];
      if (held == chunk) {
        flush();
      }
    }
  }
  flush();
}

absl::Status Malformed(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("a packed slice is malformed: ", what));
}

}  // namespace

// ---- Draws, sieves

namespace {

constexpr uint64_t kDrawStep = 0x9e3779b97f4a7c15u;

// The output function of splitmix64.
uint64_t Scramble(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

Draws::Draws(uint64_t seed, uint64_t a, uint64_t b, uint64_t c) {
  for (const uint64_t next : {seed, a, b, c}) {
    key_ = Scramble(key_ + kDrawStep + next);
  }
}

uint32_t Draws::At(uint64_t place) const {
  return static_cast<uint32_t>(Scramble(key_ + place * kDrawStep) >> 32);
}

Sieve Sieve::Largest(DType dtype, const void* x, int64_t count, int64_t k) {
  return ByWidth(
      dtype, [&](auto bits) { return LargestOf(static_cast<const decltype(bits)*>(x), count, k); });
}

// ---- Packing

int64_t DenseBytes(const Packing& packing, int64_t count) {
  return count == 0 ? 0 : Padded(kHeader + ValueBytes(packing, count));
}

int64_t MostBytes(const Packing& packing, int64_t count) {
  return packing.format != WireFormat::kInt2 || count == 0
             ? DenseBytes(packing, count)
             : Padded(kHeader + PositionBytes(Chosen::kBitmap, count, count) +
                      ValueBytes(packing, count));
}

Chosen Choose(const Packing& packing, Sieve& sieve, const void* x, int64_t first, int64_t count) {
  Chosen chosen;
  chosen.count = chosen.values = count;
  chosen.bytes = DenseBytes(packing, count);
  if (sieve.kind == Sieve::kAll || count == 0) {
    return chosen;
  }
  int64_t kept = 0;
  chosen.words.resize(static_cast<size_t>(Ceiling(count, kWord)));
  ByWidth(packing.dtype, [&](auto bits) {
    const auto* const elements = static_cast<const decltype(bits)*>(x);
    for (size_t w = 0; w < chosen.words.size(); ++w) {
      const int64_t start = static_cast<int64_t>(w) * kWord;
      if (sieve.chunks != nullptr && start % sieve.chunks->sparsify_chunk == 0) {
        const int64_t chunk = std::min<int64_t>(sieve.chunks->sparsify_chunk, count - start);
        const Sieve largest = LargestOf(elements + start, chunk, sieve.chunks->Kept(chunk));
        sieve.threshold = largest.threshold;
        sieve.ties = largest.ties;
      }
      chosen.words[w] =
          WordOf(sieve, elements + start, first + start, std::min(kWord, count - start));
      kept += std::popcount(chosen.words[w]);
    }
  });
  for (const Chosen::Form form : {Chosen::kBitmap, Chosen::kIndices}) {
    const int64_t bytes =
        Padded(kHeader + PositionBytes(form, count, kept) + ValueBytes(packing, kept));
    const bool fits = form != Chosen::kIndices || count <= int64_t{1} << 32;
    // In a dense slice, zeros stand for the elements that are not sent. int2 cannot represent zero.
    const bool better = bytes < chosen.bytes ||
                        (chosen.form == Chosen::kDense && packing.format == WireFormat::kInt2);
    if (fits && better) {
      chosen.form = form;
      chosen.values = kept;
      chosen.bytes = bytes;
    }
  }
  return chosen;
}

void Pack(const Kernels& kernels, const Packing& packing, const Chosen& chosen, const void* x,
          double factor, const Draws& draws, int64_t first, std::byte* out) {
  if (chosen.count == 0) {
    return;
  }
  const uint64_t header = static_cast<uint64_t>(chosen.values) | static_cast<uint64_t>(chosen.form)
                                                                     << kFormShift;
  std::memcpy(out, &header, sizeof(header));
  std::byte* at = out + kHeader;
  if (chosen.form == Chosen::kBitmap) {
    std::memcpy(at, chosen.words.data(), chosen.words.size() * 8);
    at += chosen.words.size() * 8;
  } else if (chosen.form == Chosen::kIndices) {
    for (size_t w = 0; w < chosen.words.size(); ++w) {
      for (uint64_t word = chosen.words[w]; word != 0; word &= word - 1, at += 4) {
        const auto index =
            static_cast<uint32_t>(w * kWord) + static_cast<uint32_t>(std::countr_zero(word));
        std::memcpy(at, &index, sizeof(index));
      }
    }
  }
  const int64_t padding = chosen.bytes - (at - out) - ValueBytes(packing, chosen.values);
  std::memset(out + chosen.bytes - padding, 0, static_cast<size_t>(padding));
  const ValueWriter writer(kernels, packing, at, chosen.values, draws, first);
  ByWidth(packing.dtype, [&](auto bits) {
    PackAs(kernels, packing, chosen, static_cast<const decltype(bits)*>(x), factor, writer);
  });
}

// ---- Unpacking

absl::StatusOr<Unpacker> Unpacker::Open(const Packing& packing, ConstBytes packed, int64_t count) {
  const auto size = static_cast<int64_t>(packed.size());
  Unpacker unpacker;
  unpacker.packing_ = packing;
  unpacker.count_ = count;
  if (count == 0 && size == 0) {
    return unpacker;
  }
  if (count == 0 || size < kHeader) {
    return Malformed(absl::StrCat(size, " bytes for ", count, " elements"));
  }
  const auto header = Get<uint64_t>(packed.data());
  const uint64_t form = header >> kFormShift;
  const auto values = static_cast<int64_t>(header & ((uint64_t{1} << kFormShift) - 1));
  if (form > Chosen::kIndices || values > count || (form == Chosen::kDense && values < count)) {
    return Malformed(
        absl::StrCat("form ", form, " with ", values, " values of ", count, " elements"));
  }
  unpacker.form_ = static_cast<Chosen::Form>(form);
  unpacker.values_count_ = values;
  const int64_t positions = PositionBytes(unpacker.form_, count, values);
  if (size != Padded(kHeader + positions + ValueBytes(packing, values))) {
    return Malformed(absl::StrCat(size, " bytes for ", values, " values"));
  }
  unpacker.positions_ = packed.data() + kHeader;
  unpacker.values_ = unpacker.positions_ + positions;
  if (form == Chosen::kBitmap) {
    int64_t bits = 0;
    for (int64_t w = 0; w < positions / 8; ++w) {
      bits += std::popcount(Get<uint64_t>(unpacker.positions_ + w * 8));
    }
    const int64_t rest = count % kWord;
    const uint64_t beyond =
        rest == 0 ? 0 : Get<uint64_t>(unpacker.positions_ + positions - 8) >> rest;
    if (bits != values || beyond != 0) {
      return Malformed(absl::StrCat(bits, " bits for ", values, " values"));
    }
  }
  int64_t before = -1;
  for (int64_t v = 0; form == Chosen::kIndices && v < values; ++v) {
    const int64_t index = Get<uint32_t>(unpacker.positions_ + v * 4);
    if (index <= before || index >= count) {
      return Malformed(absl::StrCat("index ", index, " after ", before, " of ", count));
    }
    before = index;
  }
  return unpacker;
}

void Unpacker::Values(const Kernels& kernels, void* out, int64_t count) {
  const int64_t begin = next_value_;
  next_value_ += count;
  if (packing_.format == WireFormat::kFull) {
    const int64_t width = SizeOf(packing_.dtype);
    std::memcpy(out, values_ + begin * width, static_cast<size_t>(count * width));
    return;
  }
  auto* const floats = static_cast<float*>(out);
  if (packing_.format == WireFormat::kBF16) {
    kernels.cast(floats, DType::kF32, values_ + begin * 2, DType::kBF16, count);
    return;
  }
  const std::byte* const codes = values_ + 4 * Ceiling(values_count_, packing_.block);
  for (int64_t i = 0; i < count;) {
    // A block ends where the next scale begins.
    const int64_t value = begin + i, block = value / packing_.block;
    const int64_t end = std::min(count, (block + 1) * packing_.block - begin);
    const auto scale = Get<float>(values_ + block * 4);
    if (packing_.format == WireFormat::kInt8) {
      for (; i < end; ++i) {
        floats[i] = scale * static_cast<float>(static_cast<int8_t>(codes[begin + i]));
      }
      continue;
    }
    if (packing_.format == WireFormat::kInt2) {
      UnpackQuads(floats + i, codes, scale, value, end - i);
      i = end;
      continue;
    }
    const auto one = [&](int64_t at) {
      float pair[2];
      UnpackPairs(pair, codes + (begin + at) / 2, scale, 1);
      floats[at] = pair[(begin + at) % 2];
    };
    if ((begin + i) % 2 != 0) {
      one(i++);
    }
    const int64_t pairs = (end - i) / 2;
    UnpackPairs(floats + i, codes + (begin + i) / 2, scale, pairs);
    i += 2 * pairs;
    if (i < end) {
      one(i++);
    }
  }
}

template <typename Bits>
void Unpacker::NextAs(const Kernels& kernels, Bits* out, int64_t count) {
  std::array<Bits, kPiece> room;
  if (form_ == Chosen::kDense) {
    Values(kernels, out, count);
    return;
  }
  std::memset(out, 0, static_cast<size_t>(count) * sizeof(Bits));
  size_t at = 0;
  if (form_ == Chosen::kIndices) {
    std::array<uint32_t, kPiece> places;
    int64_t found = 0;
    for (; next_value_ + found < values_count_; ++found) {
      const int64_t index = Get<uint32_t>(positions_ + (next_value_ + found) * 4);
      if (index >= next_element_ + count) {
        break;
      }
      places[static_cast<size_t>(found)] = static_cast<uint32_t>(index - next_element_);
    }
    Values(kernels, room.data(), found);
    for (; at < static_cast<size_t>(found); ++at) {
      out[places[at]] = room[at];
    }
    return;
  }
  const std::byte* const words = positions_ + next_element_ / 8;
  int64_t found = 0;
  for (int64_t w = 0; w < Ceiling(count, kWord); ++w) {
    found += std::popcount(Get<uint64_t>(words + w * 8));
  }
  Values(kernels, room.data(), found);
  for (int64_t w = 0; w < Ceiling(count, kWord); ++w) {
    for (auto word = Get<uint64_t>(words + w * 8); word != 0; word &= word - 1) {
      out[w * kWord + std::countr_zero(word)] = room[at++];
    }
  }
}

void Unpacker::Next(const Kernels& kernels, void* out, int64_t count) {
  ByWidth(packing_.dtype,
          [&](auto bits) { NextAs(kernels, static_cast<decltype(bits)*>(out), count); });
  next_element_ += count;
}

}  // namespace entrain
