// Mark: a number that an object holds while it lives. It distinguishes an object behind an opaque
// handle from an object of another kind and from a destroyed one.
//
// Thread safety: any thread. With a wrong handle the library reads memory that is no such object;
// that is the caller's mistake. A mark detects most such mistakes, but proves nothing.
#pragma once

#include <cstdint>

namespace entrain {

// Returns the number of a kind: `kind` (four letters) and, above it, four bytes that do not occur
// in texts and pointers.
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
  // Volatile, as is value(): otherwise the compiler would remove the write as dead.
  ~Mark() { *const_cast<volatile uint64_t*>(&value_) = 0xdead; }
  uint64_t value() const { return *const_cast<const volatile uint64_t*>(&value_); }

 private:
  uint64_t value_ = kMark;
};

}  // namespace entrain
