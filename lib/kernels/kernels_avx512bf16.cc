// AVX-512 BF16, and the instructions of kernels_avx512.cc; see CMakeLists.txt for the flags.
#define ENTRAIN_KERNELS_ISA avx512bf16
#include "lib/kernels/kernels_impl.inc"
