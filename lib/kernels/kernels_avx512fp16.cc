// AVX-512 FP16, and the instructions of kernels_avx512bf16.cc; see CMakeLists.txt for the flags.
#define ENTRAIN_KERNELS_ISA avx512fp16
#include "lib/kernels/kernels_impl.inc"
