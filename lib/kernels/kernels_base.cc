// The instructions that every machine of this architecture has.
#define ENTRAIN_KERNELS_ISA base
#include "lib/kernels/kernels_impl.inc"
