// The names of the kernels, and their arguments. Arguments are plain structs, for both nvcc and the
// host's compiler. ForEachPointer visits the arrays that a kernel uses. It serves code that
// emulates the device on the host.
#pragma once

#include <cstdint>

namespace trainer {

inline constexpr int kGpuThreads = 256;          // per block
inline constexpr int kGpuMostPartialSums = 512;  // blocks that write one partial sum each

// Computes out[i] from out[i] and a[i]. A kernel may use only some of the fields.
struct GpuVectorArgs {
  float* out = nullptr;
  const float* a = nullptr;
  float factor = 0;
  int64_t count = 0;
  template <typename F>
  void ForEachPointer(F f) {
    f(out);
    f(a);
  }
};

// Converts between f32 and other types.
struct GpuConvertArgs {
  void* out = nullptr;
  const void* in = nullptr;
  int64_t count = 0;
  float factor = 0;  // multiplies the result
  template <typename F>
  void ForEachPointer(F f) {
    f(out);
    f(in);
  }
};

// Computes out[rows, width] from a and b, which have the same number of rows and may be twice as
// wide.
struct GpuRowsArgs {
  float* out = nullptr;
  const float *a = nullptr, *b = nullptr;
  const float* gain = nullptr;  // [width]
  float* row_factor = nullptr;  // [rows]: 1 / rms
  int32_t rows = 0, width = 0;
  float factor = 0;
  template <typename F>
  void ForEachPointer(F f) {
    f(out);
    f(a);
    f(b);
    f(gain);
    f(row_factor);
  }
};

// out[width] += the sum over rows of a. If b and row_factor are not null: of a * b * row_factor.
struct GpuColumnSumsArgs {
  float* out = nullptr;
  const float *a = nullptr, *b = nullptr, *row_factor = nullptr;
  int32_t rows = 0, width = 0;
  template <typename F>
  void ForEachPointer(F f) {
    f(out);
    f(a);
    f(b);
    f(row_factor);
  }
};

// Embedding in a table [256, width], one row per byte of `inputs`. Forward: makes out[tokens,
// width] from rows of the table `in`. Backward: adds the rows of `in` to the table `out`.
struct GpuEmbedArgs {
  float* out = nullptr;
  const float* in = nullptr;
  const uint8_t* inputs = nullptr;
  int32_t tokens = 0, width = 0;
  template <typename F>
  void ForEachPointer(F f) {
    f(out);
    f(in);
    f(inputs);
  }
};

// Copies joined[rows * length, parts * heads * head_dim] to split[parts, rows, heads, length,
// head_dim], or back. Rotates the first `turned` parts by the angles of their positions.
struct GpuHeadsArgs {
  float *joined = nullptr, *split = nullptr;
  const float *cosine = nullptr, *sine = nullptr;  // [length, head_dim / 2]
  int32_t rows = 0, length = 0, heads = 0, head_dim = 0, parts = 0, turned = 0;
  template <typename F>
  void ForEachPointer(F f) {
    f(joined);
    f(split);
    f(cosine);
    f(sine);
  }
};

// `logits`: [rows, vocabulary]. `targets`: [rows], the column of each row's target.
struct GpuTargetsArgs {
  float* logits = nullptr;
  const uint8_t* targets = nullptr;
  double* of_rows =
      nullptr;  // [rows, 2]: -log p(target); 1 if the target had the highest probability, else 0
  int32_t rows = 0, vocabulary = 0;
  float factor = 0;
  template <typename F>
  void ForEachPointer(F f) {
    f(logits);
    f(targets);
    f(of_rows);
  }
};

// partial[k] = the sum of squares of block k's elements of x.
struct GpuSquaresArgs {
  const float* x = nullptr;
  double* partial = nullptr;
  int64_t count = 0;
  template <typename F>
  void ForEachPointer(F f) {
    f(x);
    f(partial);
  }
};

// total[c] = the sum of values[i, c]. The grid must be one block.
struct GpuTotalArgs {
  const double* values = nullptr;
  double* total = nullptr;
  int32_t count = 0, columns = 0;
  template <typename F>
  void ForEachPointer(F f) {
    f(values);
    f(total);
  }
};

// The kernels: name (in the module "trainer_NAME"), arguments, loop.
#define TRAINER_GPU_KERNELS(X)                                       \
  X(add, GpuVectorArgs, GpuAdd)                                      \
  X(scale, GpuVectorArgs, GpuScale)                                  \
  X(gelu, GpuVectorArgs, GpuGelu)                                    \
  X(gelu_backward, GpuVectorArgs, GpuGeluBackward)                   \
  X(widen, GpuConvertArgs, GpuWiden)                                 \
  X(narrow, GpuConvertArgs, GpuNarrow)                               \
  X(from_bytes, GpuConvertArgs, GpuFromBytes)                        \
  X(repeat_row, GpuRowsArgs, GpuRepeatRow)                           \
  X(swiglu, GpuRowsArgs, GpuSwiGlu)                                  \
  X(swiglu_backward, GpuRowsArgs, GpuSwiGluBackward)                 \
  X(rms_norm, GpuRowsArgs, GpuRmsNorm)                               \
  X(rms_norm_backward, GpuRowsArgs, GpuRmsNormBackward)              \
  X(causal_softmax, GpuRowsArgs, GpuCausalSoftmax)                   \
  X(softmax_backward, GpuRowsArgs, GpuSoftmaxBackward)               \
  X(column_sums, GpuColumnSumsArgs, GpuColumnSums)                   \
  X(embed, GpuEmbedArgs, GpuEmbed)                                   \
  X(embed_backward, GpuEmbedArgs, GpuEmbedBackward)                  \
  X(split_heads, GpuHeadsArgs, GpuSplitHeads)                        \
  X(join_heads, GpuHeadsArgs, GpuJoinHeads)                          \
  X(cross_entropy, GpuTargetsArgs, GpuCrossEntropy)                  \
  X(cross_entropy_backward, GpuTargetsArgs, GpuCrossEntropyBackward) \
  X(squares, GpuSquaresArgs, GpuSquares)                             \
  X(total, GpuTotalArgs, GpuTotal)

enum class GpuKernel : int32_t {
#define TRAINER_GPU_ID(name, args, loop) name,
  TRAINER_GPU_KERNELS(TRAINER_GPU_ID)
#undef TRAINER_GPU_ID
      kCount
};

}  // namespace trainer
