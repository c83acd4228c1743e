// The loops of the kernels, for a thread of a grid. nvcc compiles them into kernels
// (gpu_kernels.cu). For tests, the host's compiler compiles them into functions that run all
// threads one after the other. The loops compute the same functions as kernels.cc, but add in
// another order. This order depends only on sizes, so a run has the same bits each time.
//
// A loop is a struct with Run(args, block). `block` is the thread's view of its block:
//   index, blocks    the block's number, and the number of blocks of the grid
//   Each(f)          calls f(thread) for the threads of the block; no thread continues before all
//                    calls have returned
//   shared           kGpuThreads + 1 doubles of the block
// A value that a thread keeps from one Each to the next must be in memory or in `shared`.
#pragma once

#include <cmath>
#include <cstdint>

#include "examples/trainer/gpu_args.h"
#include "examples/trainer/kernels.h"

#if defined(__CUDACC__)
#define TRAINER_ANYWHERE __device__
#else
#define TRAINER_ANYWHERE
#endif

namespace trainer {

// Calls f(i) for i < count, each on one thread of the grid.
template <typename Block, typename F>
TRAINER_ANYWHERE void ForElements(const Block& block, int64_t count, F f) {
  block.Each([&](int thread) {
    const int64_t stride = int64_t{block.blocks} * kGpuThreads;
    for (int64_t i = int64_t{block.index} * kGpuThreads + thread; i < count; i += stride) {
      f(i);
    }
  });
}

// Calls f(row) for the rows of this block.
template <typename Block, typename F>
TRAINER_ANYWHERE void ForRows(const Block& block, int64_t rows, F f) {
  for (int64_t row = block.index; row < rows; row += block.blocks) {
    f(row);
  }
}

struct GpuPlus {
  TRAINER_ANYWHERE static double Of(double a, double b) { return a + b; }
};
struct GpuGreater {
  TRAINER_ANYWHERE static double Of(double a, double b) { return a > b ? a : b; }
};

// Calls of(thread) for all threads, combines the results in a tree, and leaves the total in
// shared[kGpuThreads].
template <typename Combine, typename Block, typename F>
TRAINER_ANYWHERE void CombineThreads(const Block& block, F of) {
  double* const shared = block.shared;
  block.Each([&](int thread) { shared[thread] = of(thread); });
  for (int half = kGpuThreads / 2; half > 0; half /= 2) {
    block.Each([&](int thread) {
      if (thread < half) {
        const double both = Combine::Of(shared[thread], shared[thread + half]);
        shared[half == 1 ? kGpuThreads : thread] = both;
      }
    });
  }
}

// Leaves the sum of of(i) over i < count in shared[kGpuThreads].
template <typename Block, typename F>
TRAINER_ANYWHERE void SumOver(const Block& block, int count, F of) {
  CombineThreads<GpuPlus>(block, [&](int thread) {
    double sum = 0;
    for (int i = thread; i < count; i += kGpuThreads) {
      sum += static_cast<double>(of(i));
    }
    return sum;
  });
}

// Calls f(i) for i < count, on the threads of the block.
template <typename Block, typename F>
TRAINER_ANYWHERE void ForColumns(const Block& block, int count, F f) {
  block.Each([&](int thread) {
    for (int i = thread; i < count; i += kGpuThreads) {
      f(i);
    }
  });
}

TRAINER_ANYWHERE inline float GpuSigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

// ---- Element by element

struct GpuAdd {
  template <typename Block>
  TRAINER_ANYWHERE static void Run(const GpuVectorArgs& args, const Block& block) {
    ForElements(block, args.count, [&](int64_t i) { args.out[i] += args.a[i]; });
  }
};

struct GpuScale {
  template <typename Block>
  TRAINER_ANYWHERE static void Run(const GpuVectorArgs& args, const Block& block) {
    ForElements(block, args.count, [&](int64_t i) { args.out[i] *= args.factor; });
  }
};

// out = gelu(a)
struct GpuGelu {
  template <typename Block>
  TRAINER_ANYWHERE static void Run(const GpuVectorArgs& args, const Block& block) {
    ForElements(block, args.count, [&](int64_t i) {
      const float x = args.a[i];
      args.out[i] = x * GpuSigmoid(kGelu * (x + kGeluCubic * x * x * x));
    });
  }
};

// `out` contains the gradient of gelu(a). Replaces it by the gradient of a.
struct GpuGeluBackward {
  template <typename Block>
  TRAINER_ANYWHERE static void Run(const GpuVectorArgs& args, const Block& block) {
    ForElements(block, args.count, [&](int64_t i) {
      const float x = args.a[i], square = x * x;
      const float s = GpuSigmoid(kGelu * (x + kGeluCubic * square * x));
      const float slope = kGelu * (1.0f + 3.0f * kGeluCubic * square);
      args.out[i] *= s + x * s * (1.0f - s) * slope;
    });
  }
};

struct GpuWiden {
  template <typename Block>
  TRAINER_ANYWHERE static void Run(const GpuConvertArgs& args, const Block& block) {
    ForElements(block, args.count, [&](int64_t i) {
      const uint32_t bits = uint32_t{static_cast<const uint16_t*>(args.in)[i]} << 16;
      static_cast<float*>(args.out)[i] = __builtin_bit_cast(float, bits);
    });
  }
};

struct GpuNarrow {
  template <typename Block>
  TRAINER_ANYWHERE static void Run(const GpuConvertArgs& args, const Block& block) {
    ForElements(block, args.count, [&](int64_t i) {
      const auto bits = __builtin_bit_cast(uint32_t, static_cast<const float*>(args.in)[i]);
      const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
      const bool nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
      static_cast<uint16_t*>(args.out)[i] =
          static_cast<uint16_t>(nan ? ((bits >> 16) | 0x40u) : rounded);
    });
  }
};

struct GpuFromBytes {
  template <typename Block>
  TRAINER_ANYWHERE static void Run(const GpuConvertArgs& args, const Block& block) {
    ForElements(block, args.count, [&](int64_t i) {
      const auto byte = static_cast<float>(static_cast<const uint8_t*>(args.in)[i]);
      static_cast<float*>(args.out)[i] = byte * args.factor;
    });
  }
};

// Sets every row of out to the gain.
struct GpuRepeatRow {
  template <typename Block>
  TRAINER_ANYWHERE static void Run(const GpuRowsArgs& args, const Block& block) {
    ForElements(block, int64_t{args.rows} * args.width,
                [&](int64_t i) { args.out[i] = args.gain[i % args.width]; });
  }
};

// Computes out = silu(gate) * up, where a[rows, 2 width] holds both halves of each row.
struct GpuSwiGlu {
  template <typename Block>
  TRAINER_ANYWHERE static void Run(const GpuRowsArgs& args, const Block& block) {
    ForElements(block, int64_t{args.rows} * args.width, [&](int64_t i) {
      const int64_t row = i / args.width;
      const float gate = args.a[i + row * args.width];
      args.out[i] = gate * GpuSigmoid(gate) * args.a[i + (row + 1) * args.width];
    });
  }
};

// Computes out[rows, 2 width] = the gradients of both halves. b[rows, width] is the gradient of the
// product.
struct GpuSwiGluBackward {
  template <typename Block>
  TRAINER_ANYWHERE static void Run(const GpuRowsArgs& args, const Block& block) {
    ForElements(block, int64_t{args.rows} * args.width, [&](int64_t i) {
      const int64_t row = i / args.width;
      const int64_t at = i + row * args.width, up_at = at + args.width;
      const float gate = args.a[at], s = GpuSigmoid(gate);
      args.out[up_at] = args.b[i] * gate * s;
      args.out[at] = args.b[i] * args.a[up_at] * s * (1.0f + gate * (1.0f - s));
    });
  }
};

// ---- Row by row

// Computes out = a / rms(a) * gain.
struct GpuRmsNorm {
  template <typename Block>
  TRAINER_ANYWHERE static void Run(const GpuRowsArgs& args, const Block& block) {
    ForRows(block, args.rows, [&](int64_t row) {
      const float* const x = args.a + row * args.width;
      float* const y = args.out + row * args.width;
      SumOver(block, args.width, [&](int i) { return x[i] * x[i]; });
      ForColumns(block, args.width, [&](int i) {
        const auto mean = static_cast<float>(block.shared[kGpuThreads] / args.width);
        const float inverse = 1.0f / sqrtf(mean + args.factor);
        if (i == 0) {
          args.row_factor[row] = inverse;
        }
        y[i] = x[i] * inverse * args.gain[i];
      });
    });
  }
};

// Adds the gradient of the norm's input b to out. a is the gradient of the norm's result.
struct GpuRmsNormBackward {
  template <typename Block>
  TRAINER_ANYWHERE static void Run(const GpuRowsArgs& args, const Block& block) {
    ForRows(block, args.rows, [&](int64_t row) {
      const float *const grad = args.a + row * args.width, *const x = args.b + row * args.width;
      float* const out = args.out + row * args.width;
      SumOver(block, args.width, [&](int i) { return grad[i] * args.gain[i] * x[i]; });
      ForColumns(block, args.width, [&](int i) {
        const float inverse = args.row_factor[row];
        const float pull = static_cast<float>(block.shared[kGpuThreads] / args.width) * inverse *
                           inverse * inverse;
        out[i] += grad[i] * args.gain[i] * inverse - x[i] * pull;
      });
    });
  }
};

// Turns the first `count` elements of x into probabilities. `top` must be the largest of them.
// Leaves the sum of the exponentials in shared[kGpuThreads].
template <typename Block>
TRAINER_ANYWHERE void SoftmaxOfRow(const Block& block, float* x, int count, double top) {
  SumOver(block, count, [&](int i) { return x[i] = expf(x[i] - static_cast<float>(top)); });
  ForColumns(block, count, [&](int i) { x[i] /= static_cast<float>(block.shared[kGpuThreads]); });
}
// Leaves the largest element in shared[kGpuThreads].
template <typename Block>
TRAINER_ANYWHERE void LargestOfRow(const Block& block, const float* x, int count) {
  CombineThreads<GpuGreater>(block, [&](int thread) {
    float top = x[0];
    for (int i = thread; i < count; i += kGpuThreads) {
      top = x[i] > top ? x[i] : top;
    }
    return static_cast<double>(top);
  });
}

// out[rows, width] consists of matrices of `width` rows. Row r of a matrix keeps columns 0 .. r as
// probabilities, and the others become 0.
struct GpuCausalSoftmax {
  template <typename Block>
  TRAINER_ANYWHERE static void Run(const GpuRowsArgs& args, const Block& block) {
    ForRows(block, args.rows, [&](int64_t row) {
      float* const x = args.out + row * args.width;
      const int visible = static_cast<int>(row % args.width) + 1;
      LargestOfRow(block, x, visible);
      const double top = block.shared[kGpuThreads];
      SoftmaxOfRow(block, x, visible, top);
      ForColumns(block, args.width - visible, [&](int i) { x[visible + i] = 0; });
    });
  }
};

// `out` contains the gradient of the probabilities `a`. Replaces it by the gradient of the scores,
// times `factor`.
struct GpuSoftmaxBackward {
  template <typename Block>
  TRAINER_ANYWHERE static void Run(const GpuRowsArgs& args, const Block& block) {
    ForRows(block, args.rows, [&](int64_t row) {
      const float* const p = args.a + row * args.width;
      float* const grad = args.out + row * args.width;
      SumOver(block, args.width, [&](int i) { return p[i] * grad[i]; });
      ForColumns(block, args.width, [&](int i) {
        grad[i] = args.factor * p[i] * (grad[i] - static_cast<float>(block.shared[kGpuThreads]));
      });
    });
  }
};

// Turns logits into probabilities.
struct GpuCrossEntropy {
  template <typename Block>
  TRAINER_ANYWHERE static void Run(const GpuTargetsArgs& args, const Block& block) {
    ForRows(block, args.rows, [&](int64_t row) {
      float* const x = args.logits + row * args.vocabulary;
      const int target = args.targets[row];
      LargestOfRow(block, x, args.vocabulary);
      const double top = block.shared[kGpuThreads];
      block.Each([&](int thread) {
        if (thread == 0) {
          // If several logits are the largest, the prediction is the first of them.
          bool hit = static_cast<double>(x[target]) == top;
          for (int i = 0; hit && i < target; ++i) {
            hit = static_cast<double>(x[i]) < top;
          }
          args.of_rows[2 * row] = top - static_cast<double>(x[target]);
          args.of_rows[2 * row + 1] = hit ? 1 : 0;
        }
      });
      SoftmaxOfRow(block, x, args.vocabulary, top);
      block.Each([&](int thread) {
        if (thread == 0) {
          args.of_rows[2 * row] += log(block.shared[kGpuThreads]);
        }
      });
    });
  }
};

// p becomes (p - onehot(target)) * factor.
struct GpuCrossEntropyBackward {
  template <typename Block>
  TRAINER_ANYWHERE static void Run(const GpuTargetsArgs& args, const Block& block) {
    ForElements(block, int64_t{args.rows} * args.vocabulary, [&](int64_t i) {
      const float one = i % args.vocabulary == args.targets[i / args.vocabulary] ? 1.0f : 0.0f;
      args.logits[i] = (args.logits[i] - one) * args.factor;
    });
  }
};

// ---- Over rows

// A block takes 32 columns. Eight threads share the rows of each column.
struct GpuColumnSums {
  template <typename Block>
  TRAINER_ANYWHERE static void Run(const GpuColumnSumsArgs& args, const Block& block) {
    constexpr int kColumns = 32, kShares = kGpuThreads / kColumns;
    const int groups = (args.width + kColumns - 1) / kColumns;
    ForRows(block, groups, [&](int64_t group) {
      const int first = static_cast<int>(group) * kColumns;
      block.Each([&](int thread) {
        const int column = first + thread % kColumns;
        double sum = 0;
        for (int row = thread / kColumns; row < args.rows && column < args.width; row += kShares) {
          const int64_t i = int64_t{row} * args.width + column;
          sum += static_cast<double>(
              args.b == nullptr ? args.a[i] : args.a[i] * args.b[i] * args.row_factor[row]);
        }
        block.shared[thread] = sum;
      });
      block.Each([&](int thread) {
        if (thread < kColumns && first + thread < args.width) {
          double sum = 0;
          for (int share = 0; share < kShares; ++share) {
            sum += block.shared[share * kColumns + thread];
          }
          args.out[first + thread] += static_cast<float>(sum);
        }
      });
    });
  }
};

struct GpuEmbed {
  template <typename Block>
  TRAINER_ANYWHERE static void Run(const GpuEmbedArgs& args, const Block& block) {
    ForElements(block, int64_t{args.tokens} * args.width, [&](int64_t i) {
      args.out[i] = args.in[int64_t{args.inputs[i / args.width]} * args.width + i % args.width];
    });
  }
};

// Computes the table's gradient. A block takes one row of the table, and looks for the byte of this
// row among all tokens.
struct GpuEmbedBackward {
  template <typename Block>
  TRAINER_ANYWHERE static void Run(const GpuEmbedArgs& args, const Block& block) {
    ForRows(block, 256, [&](int64_t byte) {
      ForColumns(block, args.width, [&](int column) {
        float sum = 0;
        for (int token = 0; token < args.tokens; ++token) {
          if (args.inputs[token] == byte) {
            sum += args.in[int64_t{token} * args.width + column];
          }
        }
        args.out[byte * args.width + column] += sum;
      });
    });
  }
};

// ---- Heads

// Calls f(joined, split, angle) for every pair (i, i + head_dim / 2). `joined` and `split` are the
// indices of the pair's first element in these arrays. `angle` is the index of the pair's angle, or
// -1 if the pair is not rotated.
template <typename Block, typename F>
TRAINER_ANYWHERE void ForPairs(const GpuHeadsArgs& args, const Block& block, F f) {
  const int half = args.head_dim / 2, width = args.heads * args.head_dim;
  const int64_t tokens = int64_t{args.rows} * args.length;
  ForElements(block, tokens * args.parts * args.heads * half, [&](int64_t n) {
    const int i = static_cast<int>(n % half);
    const int head = static_cast<int>(n / half % args.heads);
    const int part = static_cast<int>(n / half / args.heads % args.parts);
    const int64_t token = n / half / args.heads / args.parts;
    const int64_t row = token / args.length, position = token % args.length;
    const int64_t joined = (token * args.parts + part) * width + head * args.head_dim + i;
    const int64_t matrix = (part * int64_t{args.rows} + row) * args.heads + head;
    const int64_t split = (matrix * args.length + position) * args.head_dim + i;
    f(joined, split, part < args.turned ? position * half + i : -1);
  });
}

struct GpuSplitHeads {
  template <typename Block>
  TRAINER_ANYWHERE static void Run(const GpuHeadsArgs& args, const Block& block) {
    const int half = args.head_dim / 2;
    ForPairs(args, block, [&](int64_t joined, int64_t split, int64_t angle) {
      const float a = args.joined[joined], b = args.joined[joined + half];
      const float c = angle < 0 ? 1 : args.cosine[angle], s = angle < 0 ? 0 : args.sine[angle];
      args.split[split] = a * c - b * s;
      args.split[split + half] = a * s + b * c;
    });
  }
};

// The inverse of GpuSplitHeads. The inverse rotation is also the backward pass of the rotation.
struct GpuJoinHeads {
  template <typename Block>
  TRAINER_ANYWHERE static void Run(const GpuHeadsArgs& args, const Block& block) {
    const int half = args.head_dim / 2;
    ForPairs(args, block, [&](int64_t joined, int64_t split, int64_t angle) {
      const float a = args.split[split], b = args.split[split + half];
      const float c = angle < 0 ? 1 : args.cosine[angle], s = angle < 0 ? 0 : args.sine[angle];
      args.joined[joined] = a * c + b * s;
      args.joined[joined + half] = b * c - a * s;
    });
  }
};

// ---- Sums

struct GpuSquares {
  template <typename Block>
  TRAINER_ANYWHERE static void Run(const GpuSquaresArgs& args, const Block& block) {
    CombineThreads<GpuPlus>(block, [&](int thread) {
      const int64_t stride = int64_t{block.blocks} * kGpuThreads;
      double sum = 0;
      for (int64_t i = int64_t{block.index} * kGpuThreads + thread; i < args.count; i += stride) {
        sum += static_cast<double>(args.x[i]) * static_cast<double>(args.x[i]);
      }
      return sum;
    });
    block.Each([&](int thread) {
      if (thread == 0) {
        args.partial[block.index] = block.shared[kGpuThreads];
      }
    });
  }
};

struct GpuTotal {
  template <typename Block>
  TRAINER_ANYWHERE static void Run(const GpuTotalArgs& args, const Block& block) {
    for (int column = 0; column < args.columns; ++column) {
      SumOver(block, args.count,
              [&](int i) { return args.values[int64_t{i} * args.columns + column]; });
      block.Each([&](int thread) {
        if (thread == 0) {
          args.total[column] = block.shared[kGpuThreads];
        }
      });
    }
  }
};

}  // namespace trainer
