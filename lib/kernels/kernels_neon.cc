// Advanced SIMD, which every 64-bit Arm has; see CMakeLists.txt for the flags.
#define ENTRAIN_KERNELS_ISA neon
#include "lib/kernels/kernels_impl.inc"
