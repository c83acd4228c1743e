// The floating-point environment in which the library computes: results are rounded to nearest
// even, numbers below the normal range keep their value (no flush to zero, no denormals are zero),
// and no exception traps.
//
// A reduction must give the same bits on all ranks. The thread that computes may be the caller's,
// or a thread that inherited the caller's environment at its creation. A plug-in or a compiler
// option (-ffast-math) of one rank may have changed this environment. So each thread that computes
// for the library uses the environment of the library:
// - A thread of the library calls Set at its start (lib/base/library_thread.h).
// - A thread of the caller has a FloatEnvironment during each call (lib/api/boundary.h).
// - After a function of the caller has returned, ~CallbackScope calls Set.
//
// The environment is the control word of the vector unit: MXCSR on x86-64, FPCR on AArch64. No code
// of the library computes with the x87 unit. On other machines the class does nothing.
//
// Thread safety: the environment belongs to the thread.
#pragma once

#include <cstdint>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace entrain {

// Sets the library's environment, and restores the environment of the thread at the end of the
// scope. Exception flags that the library's arithmetic raises may stay raised.
class FloatEnvironment {
 public:
  FloatEnvironment() : before_(Read()) {
    if (Differs(before_)) {
      Write(kLibrary);
    }
  }
  ~FloatEnvironment() {
    if (Differs(before_)) {
      Write(before_);
    }
  }
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

  // Sets the library's environment for the rest of this thread's life.
  static void Set() {
    if (Differs(Read())) {
      Write(kLibrary);
    }
  }
  // True if this thread has the library's environment.
  static bool IsSet() { return !Differs(Read()); }

 private:
#if defined(__SSE__)
  using Word = uint32_t;
  static constexpr Word kLibrary = 0x1F80;  // all exceptions masked
  static constexpr Word kFlags = 0x003F;    // the raised exceptions
  static Word Read() {
    return _mm_getcsr();
  }
  static void Write(Word word) {
    _mm_setcsr(word);
  }
#elif defined(__aarch64__)
  using Word = uint64_t;
  static constexpr Word kLibrary = 0;
  static constexpr Word kFlags = 0;  // they have a register of their own
  static Word Read() {
    Word word;
    asm volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void Write(Word word) {
    asm volatile("msr fpcr, %0" : : "r"(word));
  }
#else
  using Word = uint32_t;
  static constexpr Word kLibrary = 0;
  static constexpr Word kFlags = 0;
  static Word Read() {
    return kLibrary;
  }
  static void Write(Word) {}
#endif
  static bool Differs(Word word) {
    return (word & ~kFlags) != (kLibrary & ~kFlags);
  }

  const Word before_;
};

}  // namespace entrain
