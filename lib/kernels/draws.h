// Random numbers that depend only on a key and a position. For class Draws (packing.h). Also
// compiled for GPUs.
#pragma once

#include <cstdint>

#if !defined(ENTRAIN_ANYWHERE)
#if defined(__CUDACC__)
#define ENTRAIN_ANYWHERE __host__ __device__
#else
#define ENTRAIN_ANYWHERE
#endif
#endif

namespace entrain {

constexpr uint64_t kDrawStep = 0x9e3779b97f4a7c15u;

// The output function of splitmix64.
ENTRAIN_ANYWHERE inline uint64_t Scramble(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

ENTRAIN_ANYWHERE inline uint32_t DrawAt(uint64_t key, uint64_t place) {
  return static_cast<uint32_t>(Scramble(key + place * kDrawStep) >> 32);
}

}  // namespace entrain
