// The wire format of a slice of a contribution or of a result, if only some elements are sent, or
// if they are sent in another type:
//
//   u64 values | form << 56   the number of values, and the form that says which elements they are
//   positions                 kDense: none, since all elements are sent
//                             kBitmap: one bit per element, in words of 64, the first in the lowest
//                             kIndices: a u32 per element that is sent, ascending
//                             The shortest form is used.
//   values                    in the elements' type; or bf16; or
//                             int8: an f32 scale per block, then one byte per value
//                             int4: an f32 scale per block, then two values per byte, the first in
//                             the low half
//                             int2: an f32 scale per block, then four values per byte
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

// Random numbers by position: they do not depend on the thread or on the order of the calls.
class Draws {
 public:
  Draws() = default;
  Draws(uint64_t seed, uint64_t a, uint64_t b, uint64_t c);
  uint32_t At(uint64_t place) const;
  uint64_t key() const { return key_; }  // the only value on which the numbers depend (draws.h)

 private:
  uint64_t key_ = 0;
};

// Selects the elements of a vector that are sent. The caller must ask about elements in ascending
// order. Zeros are never sent, except with kAll.
struct Sieve {
  enum Kind : uint8_t { kAll, kNonzero, kLargest, kRandom };
  Kind kind = kAll;
  uint64_t threshold =
      0;             // kLargest: a threshold for the elements' bits without the sign; kRandom: for
                     // the draws
  int64_t ties = 0;  // kLargest: how many elements equal to the threshold must still be kept
  Draws draws;       // kRandom
  // Not null for kLargest within each chunk: the object that says how many elements of a chunk are
  // kept. threshold and ties are then those of the current chunk.
  const Merging* chunks = nullptr;

  // Returns the sieve for the k largest magnitudes of x. Of equal magnitudes, the first ones are
  // taken. A NaN is larger than all numbers.
  static Sieve Largest(DType dtype, const void* x, int64_t count, int64_t k);
};

struct Packing {
  DType dtype = DType::kF32;
  WireFormat format = WireFormat::kFull;  // other formats: for f32 only
  int64_t block = 0;                      // if IsScaled: values per scale
  WireRounding rounding = WireRounding::kNearest;
};

// The elements of a slice that a sieve selected, and the bytes that they take when packed.
struct Chosen {
  enum Form : uint8_t { kDense, kBitmap, kIndices };
  int64_t count = 0, values = 0, bytes = 0;
  Form form = kDense;
  std::vector<uint64_t> words;  // one bit per element; empty: all elements
};

// `first` is the position of the slice in the whole vector. `x` points to the slice's first
// element.
Chosen Choose(const Packing& packing, Sieve& sieve, const void* x, int64_t first, int64_t count);
// Multiplies the values by `factor`, and writes chosen.bytes bytes. `draws` is used for stochastic
// rounding.
void Pack(const Kernels& kernels, const Packing& packing, const Chosen& chosen, const void* x,
          double factor, const Draws& draws, int64_t first, std::byte* out);
// Returns the bytes of a slice of which all elements are sent (kAll).
int64_t DenseBytes(const Packing& packing, int64_t count);

// Returns the largest number of bytes that a slice of `count` elements can take.
int64_t MostBytes(const Packing& packing, int64_t count);

// The elements of a packed slice, in order.
class Unpacker {
 public:
  static constexpr int64_t kPiece = 2048;
  // Checks all bytes against `count`, the number of elements of the slice. Returns DATA_LOSS if
  // they are malformed.
  static absl::StatusOr<Unpacker> Open(const Packing& packing, ConstBytes packed, int64_t count);
  // Writes the next `count` elements, with zeros for elements that were not sent. `count` must be
  // kPiece, or fewer at the end.
  void Next(const Kernels& kernels, void* out, int64_t count);

 private:
  template <typename Bits>
  void NextAs(const Kernels& kernels, Bits* out, int64_t count);
  void Values(const Kernels& kernels, void* out, int64_t count);  // for the next values

  Packing packing_;
  Chosen::Form form_ = Chosen::kDense;
  const std::byte *positions_ = nullptr, *values_ = nullptr;
  int64_t count_ = 0, values_count_ = 0;
  int64_t next_element_ = 0, next_value_ = 0;
};

}  // namespace entrain
