/* The module with all kernels, as data of the program. */
  .section .rodata
  .globl trainer_gpu_image
  .hidden trainer_gpu_image
  .balign 64
trainer_gpu_image:
  .incbin TRAINER_GPU_IMAGE
  .byte 0
  .section .note.GNU-stack, "", %progbits
