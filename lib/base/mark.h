// Mark: a number that an object holds while it lives. The mark tells whether an opaque handle
// refers to a live object of the right kind.
//
// Thread safety: any thread. If the caller passes a wrong handle, the library reads a mark from
// memory that holds no live object of the right kind. The mark detects most of these mistakes, but
// not all.
#pragma once

#include <cstdint>

namespace entrain {

// Returns the mark of a kind. Its lower four bytes are the four letters of `kind`. Its upper four
// bytes do not occur in texts and pointers.
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
  // Volatile: otherwise the compiler would remove this write as dead. value() reads by a volatile
  // pointer too.
  ~Mark() { *const_cast<volatile uint64_t*>(&value_) = 0xdead; }
  uint64_t value() const { return *const_cast<const volatile uint64_t*>(&value_); }

 private:
  uint64_t value_ = kMark;
};

}  // namespace entrain
