// A slice of a contribution, or of a result, as it travels when not every element does, or not in its own type:
//
//   u64 values | form << 56      how many values, and which elements they are:
//   positions                    kDense: all, none is named; kBitmap: a bit an element, in words of 64, the first in the
//                                lowest; kIndices: u32 each, ascending. Whichever takes fewest bytes.
//   values                       in the elements' type; bf16; int8: an f32 scale a block, then a byte each; int4: the
//                                same with two to a byte, the first in the low half; int2: with four, likewise
//
// padded to a multiple of 8 bytes. A slice of no elements is no bytes.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "lib/base/bytes.h"
#include "lib/base/dtype.h"
#include "lib/base/merging.h"
#include "lib/kernels/kernels.h"

namespace entrain {

// Random numbers by their place: the same whoever asks, in whatever order.
class Draws {
 public:
  Draws() = default;
  Draws(uint64_t seed, uint64_t a, uint64_t b, uint64_t c);
  uint32_t At(uint64_t place) const;
  uint64_t key() const { return key_; }  // all that they depend on (draws.h)

 private:
  uint64_t key_ = 0;
};

// Which elements of a vector travel, asked in ascending order. Zeros never do, but for kAll.
struct Sieve {
  enum Kind : uint8_t { kAll, kNonzero, kLargest, kRandom };
  Kind kind = kAll;
  uint64_t threshold =
      0;             // kLargest: of the elements' bits without the sign; kRandom: of the draws
  int64_t ties = 0;  // kLargest: how many at the threshold are still to be kept
  Draws draws;       // kRandom
  // kLargest of each chunk: null, or how many of so many elements; threshold and ties are then the chunk's.
  const Merging* chunks = nullptr;

  // The k largest magnitudes of x; of equal ones the first. A NaN is larger than all numbers.
  static Sieve Largest(DType dtype, const void* x, int64_t count, int64_t k);
};

struct Packing {
  DType dtype = DType::kF32;
  WireFormat format = WireFormat::kFull;  // others: of f32 only
  int64_t block = 0;                      // where IsScaled: values a scale
  WireRounding rounding = WireRounding::kNearest;
};

// What a sieve left of a slice, and the bytes it takes.
struct Chosen {
  enum Form : uint8_t { kDense, kBitmap, kIndices };
  int64_t count = 0, values = 0, bytes = 0;
  Form form = kDense;
  std::vector<uint64_t> words;  // a bit an element; empty: all
};

// `first`: the slice's place in the whole vector, `x` its first element.
Chosen Choose(const Packing& packing, Sieve& sieve, const void* x, int64_t first, int64_t count);
// Writes chosen.bytes. The values are multiplied by `factor` first. `draws`: for stochastic rounding.
void Pack(const Kernels& kernels, const Packing& packing, const Chosen& chosen, const void* x,
          double factor, const Draws& draws, int64_t first, std::byte* out);
// All of them, as zeros: bytes of Choose's Chosen by a sieve of kAll.
int64_t DenseBytes(const Packing& packing, int64_t count);

// The most bytes that a slice of so many elements can take.
int64_t MostBytes(const Packing& packing, int64_t count);

// The elements of a packed slice, in order.
class Unpacker {
 public:
  static constexpr int64_t kPiece = 2048;
  // Checks all of it against `count`, the elements of the slice. DATA_LOSS: it is malformed.
  static absl::StatusOr<Unpacker> Open(const Packing& packing, ConstBytes packed, int64_t count);
  // The next `count` elements, zeros where nothing travelled: kPiece, or fewer at the end.
  void Next(const Kernels& kernels, void* out, int64_t count);

 private:
  template <typename Bits>
  void NextAs(const Kernels& kernels, Bits* out, int64_t count);
  void Values(const Kernels& kernels, void* out, int64_t count);  // the next ones

  Packing packing_;
  Chosen::Form form_ = Chosen::kDense;
  const std::byte *positions_ = nullptr, *values_ = nullptr;
  int64_t count_ = 0, values_count_ = 0;
  int64_t next_element_ = 0, next_value_ = 0;
};

}  // namespace entrain
