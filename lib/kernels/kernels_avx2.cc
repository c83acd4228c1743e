// AVX2 and F16C; see CMakeLists.txt for the flags.
#define ENTRAIN_KERNELS_ISA avx2
#include "lib/kernels/kernels_impl.inc"
