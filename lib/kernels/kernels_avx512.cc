// AVX-512 F, BW, DQ and VL; see CMakeLists.txt for the flags.
#define ENTRAIN_KERNELS_ISA avx512
#include "lib/kernels/kernels_impl.inc"
