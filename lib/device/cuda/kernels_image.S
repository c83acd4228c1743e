/* The module with all kernels, as data of the library. */
  .section .rodata
  .globl entrain_cuda_image
  .hidden entrain_cuda_image
  .balign 64
entrain_cuda_image:
  .incbin ENTRAIN_CUDA_IMAGE
  .byte 0
  .section .note.GNU-stack, "", %progbits
