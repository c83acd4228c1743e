// Random numbers that are a function of a key, so that they are equal on every machine and in every
// run. (The distributions of <random> differ between standard libraries.)
#pragma once

#include <cmath>
#include <cstdint>

namespace trainer {

// Returns a well-mixed 64-bit hash of two numbers (SplitMix64's finaliser).
inline uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t z = a + 0x9E3779B97F4A7C15ull * (b + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// SplitMix64. Not thread safe.
class Random {
 public:
  explicit Random(uint64_t key) : key_(key) {}

  uint64_t Next() { return Mix(key_, counter_++); }
  // Returns a number in [0, 1) with 53 bits.
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }
  // Returns a number in [0, bound), bound > 0. The bias is below bound / 2^64.
  uint64_t Below(uint64_t bound) { return Next() % bound; }
  // Returns a normal number with mean 0 and deviation 1 (Box and Muller).
  double Normal() {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - Uniform()));
    return radius * std::cos(6.283185307179586 * Uniform());
  }

 private:
  const uint64_t key_;
  uint64_t counter_ = 0;
};

}  // namespace trainer
