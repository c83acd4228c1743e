// What tells an object behind an opaque handle from one of another kind, and from one that is gone: a number that the
// object holds while it lives.
//
// Thread safety: any thread. Looking at memory that is no object any more is what a caller's mistake makes of it; a mark
// finds most such mistakes and proves nothing.
#pragma once

#include <cstdint>

namespace entrain {

// The number of a kind: `kind` (four letters) behind four bytes that texts and pointers do not have.
constexpr uint64_t MarkOf(const char (&kind)[5]) {
  uint64_t mark = 0xe17a1f00'00000000u;
  for (int i = 0; i < 4; ++i) {
    mark |= static_cast<uint64_t>(static_cast<unsigned char>(kind[i])) << (8 * i);
  }
  return mark;
}

template <uint64_t kMark>
class Mark {
 public:
  static constexpr uint64_t kValue = kMark;
  Mark() = default;
  Mark(const Mark&) {}
  Mark& operator=(const Mark&) { return *this; }
  // Volatile, as is the look: nobody reads the number in a way that the compiler sees.
  ~Mark() { *const_cast<volatile uint64_t*>(&value_) = 0xdead; }
  uint64_t value() const { return *const_cast<const volatile uint64_t*>(&value_); }

 private:
  uint64_t value_ = kMark;
};

}  // namespace entrain
