// Mark: a number in an object that shows whether an opaque handle refers to a live object of the
// right kind. The destructor changes the number.
//
// Thread safety: any thread. For a wrong handle, the library reads the number from memory that
// holds no such object. Most wrong handles are detected, but not all.
#pragma once

#include <cstdint>

namespace entrain {

// Returns the number for a kind of object. The lower four bytes are the letters of `kind`. The
// upper four bytes do not occur in texts or pointers.
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
  // The write is volatile, because the compiler could remove it as a dead store otherwise. The read
  // in value() is volatile for the same reason.
  ~Mark() { *const_cast<volatile uint64_t*>(&value_) = 0xdead; }
  uint64_t value() const { return *const_cast<const volatile uint64_t*>(&value_); }

 private:
  uint64_t value_ = kMark;
};

}  // namespace entrain
