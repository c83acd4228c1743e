// The wire format of a slice of a contribution or of a result. Used if only some elements are sent,
// or if they are sent in another type.
//
//   u64 values | form << 56   the number of values, and the form: how positions are encoded
//   positions                 kDense: none, because all elements are sent
//                             kBitmap: one bit per element, in words of 64 bits; the first element
//                             is the lowest bit
//                             kIndices: the u32 index of each element that is sent, ascending
//                             The sender uses the shortest of the three forms.
//   values                    in the type of the elements; or bf16; or
//                             int8: an f32 scale per block, then one byte per value
//                             int4: an f32 scale per block, then two values per byte, the first in
//                             the lower half
//                             int2: an f32 scale per block, then four values per byte, the first in
//                             the lowest bits
//
// A slice is padded to a multiple of 8 bytes. A slice without elements takes no bytes.
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

// Random numbers that depend only on the key and on a position. The thread and the order of calls
// have no influence.
class Draws {
 public:
  Draws() = default;
  Draws(uint64_t seed, uint64_t a, uint64_t b, uint64_t c);
  uint32_t At(uint64_t place) const;

 private:
  uint64_t key_ = 0;
};

// Selects the elements of a vector that are sent. Elements must be passed to Choose in ascending
// order, because Choose updates `ties`. Zeros are selected only by kAll.
struct Sieve {
  enum Kind : uint8_t { kAll, kNonzero, kLargest, kRandom };
  Kind kind = kAll;
  // kLargest: compared with the elements' bits without the sign. kRandom: compared with the draws.
  uint64_t threshold = 0;
  int64_t ties = 0;  // kLargest: how many elements equal to the threshold are still to be kept
  Draws draws;       // kRandom only
  // Not null if kLargest applies to each chunk separately. Merging::Kept then gives the number of
  // elements of a chunk that are kept. `threshold` and `ties` are those of the current chunk.
  const Merging* chunks = nullptr;

  // Returns the sieve that keeps the k largest magnitudes of x. Of equal magnitudes, those with
  // lower index are kept. A NaN is larger than all numbers.
  static Sieve Largest(DType dtype, const void* x, int64_t count, int64_t k);
};

struct Packing {
  DType dtype = DType::kF32;
  WireFormat format = WireFormat::kFull;  // formats other than kFull: f32 only
  int64_t block = 0;                      // IsScaled formats: values per scale
  WireRounding rounding = WireRounding::kNearest;
};

// The elements of a slice that a Sieve selected, and the number of bytes of the packed slice.
struct Chosen {
  enum Form : uint8_t { kDense, kBitmap, kIndices };
  int64_t count = 0, values = 0, bytes = 0;
  Form form = kDense;
  std::vector<uint64_t> words;  // one bit per element; empty: all elements
};

// `first` is the position of the slice in the whole vector. `x` points to the first element of the
// slice.
Chosen Choose(const Packing& packing, Sieve& sieve, const void* x, int64_t first, int64_t count);
// Multiplies the values by `factor`, packs them, and writes chosen.bytes bytes to `out`. `draws` is
// for stochastic rounding.
void Pack(const Kernels& kernels, const Packing& packing, const Chosen& chosen, const void* x,
          double factor, const Draws& draws, int64_t first, std::byte* out);
// Returns the bytes of a slice if all its elements are sent.
int64_t DenseBytes(const Packing& packing, int64_t count);

// Returns the largest number of bytes that a slice of `count` elements can take.
int64_t MostBytes(const Packing& packing, int64_t count);

// Decodes a packed slice, from its first element to its last.
class Unpacker {
 public:
  static constexpr int64_t kPiece = 2048;
  // Checks all bytes of the slice. `count` is its number of elements. Returns DATA_LOSS if the
  // slice is malformed.
  static absl::StatusOr<Unpacker> Open(const Packing& packing, ConstBytes packed, int64_t count);
  // Writes the next `count` elements to `out`. An element that was not sent is 0. `count` must be
  // kPiece, except in the last call.
  void Next(const Kernels& kernels, void* out, int64_t count);

 private:
  template <typename Bits>
  void NextAs(const Kernels& kernels, Bits* out, int64_t count);
  void Values(const Kernels& kernels, void* out, int64_t count);  // decodes the next `count` values

  Packing packing_;
  Chosen::Form form_ = Chosen::kDense;
  const std::byte *positions_ = nullptr, *values_ = nullptr;
  int64_t count_ = 0, values_count_ = 0;
  int64_t next_element_ = 0, next_value_ = 0;
};

}  // namespace entrain
