// The loops are plain C++ that the compiler vectorises. The loops are compiled for several
// instruction sets if the platform can choose among these sets at start-up. A sum that may be
// reordered is marked with `omp simd` (vectors, no threads).
#include "examples/trainer/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <cblas.h>

// Sanitizers do not support functions that the loader chooses (ifunc).
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TRAINER_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TRAINER_CLONES
#endif

namespace trainer {
namespace {

// Functions that the clones call must be inlined into the clones (always_inline). Otherwise these
// functions are compiled for the baseline processor.

// exp(x) to about 2 ulp, in a form that vectorises. Below -87 the result is the smallest possible
// (1e-38), not 0.
[[gnu::always_inline]] inline float FastExp(float x) {
  const float clamped = std::min(std::max(x, -87.0f), 88.0f);
  const float scaled = clamped * 1.44269504f;
  const auto whole = static_cast<int32_t>(scaled + (scaled < 0.0f ? -0.5f : 0.5f));
  const float n = static_cast<float>(whole);
  const float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const int32_t bits = (whole + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof(power));
  return p * power;
}

[[gnu::always_inline]] inline float Sigmoid(float x) {
  return 1.0f / (1.0f + FastExp(-x));
}

// Computes the probabilities of one row in place. Returns the logarithm of the normaliser: log p(i)
// = x(i) - result.
[[gnu::always_inline]] inline float SoftmaxRow(float* x, int n) {
  float top = x[0];
#pragma omp simd reduction(max : top)
  for (int i = 1; i < n; ++i) {
    top = std::max(top, x[i]);
  }
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int i = 0; i < n; ++i) {
    x[i] = FastExp(x[i] - top);
    sum += x[i];
  }
  const float inverse = 1.0f / sum;
  for (int i = 0; i < n; ++i) {
    x[i] *= inverse;
  }
  return top + std::log(sum);
}

}  // namespace

void Product(const float* x, const float* w, float* y, int n, int in, int out, float beta) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, out, in, 1.0f, x, in, w, in, beta, y,
              out);
}

void ProductInputGradient(const float* dy, const float* w, float* dx, int n, int in, int out,
                          float beta) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, in, out, 1.0f, dy, out, w, in, beta, dx,
              in);
}

void ProductWeightGradient(const float* dy, const float* x, float* dw, int n, int in, int out) {
  cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, out, in, n, 1.0f, dy, out, x, in, 1.0f, dw,
              in);
}

TRAINER_CLONES void RmsNorm(const float* x, const float* gain, float* y, float* inverse_rms, int n,
                            int width) {
  for (int r = 0; r < n; ++r) {
    const float* row = x + static_cast<int64_t>(r) * width;
    float* out = y + static_cast<int64_t>(r) * width;
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < width; ++i) {
      sum += row[i] * row[i];
    }
    const float inverse = 1.0f / std::sqrt(sum / static_cast<float>(width) + kNormEpsilon);
    inverse_rms[r] = inverse;
    for (int i = 0; i < width; ++i) {
      out[i] = row[i] * inverse * gain[i];
    }
  }
}

TRAINER_CLONES void RmsNormBackward(const float* dy, const float* x, const float* gain,
                                    const float* inverse_rms, float* dx, float* dgain, int n,
                                    int width) {
  for (int r = 0; r < n; ++r) {
    const int64_t at = static_cast<int64_t>(r) * width;
    const float* row = x + at;
    const float* grad = dy + at;
    float* out = dx + at;
    const float inverse = inverse_rms[r];
    float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
    for (int i = 0; i < width; ++i) {
      dot += grad[i] * gain[i] * row[i];
      dgain[i] += grad[i] * row[i] * inverse;
    }
    const float pull = dot * inverse * inverse * inverse / static_cast<float>(width);
    for (int i = 0; i < width; ++i) {
      out[i] += grad[i] * gain[i] * inverse - row[i] * pull;
    }
  }
}

TRAINER_CLONES void SwiGlu(const float* gate_up, float* y, int n, int f) {
  for (int r = 0; r < n; ++r) {
    const float* gate = gate_up + static_cast<int64_t>(r) * 2 * f;
    const float* up = gate + f;
    float* out = y + static_cast<int64_t>(r) * f;
    for (int i = 0; i < f; ++i) {
      out[i] = gate[i] * Sigmoid(gate[i]) * up[i];
    }
  }
}

TRAINER_CLONES void SwiGluBackward(const float* dy, const float* gate_up, float* dgate_up, int n,
                                   int f) {
  for (int r = 0; r < n; ++r) {
    const float* gate = gate_up + static_cast<int64_t>(r) * 2 * f;
    const float* up = gate + f;
    const float* grad = dy + static_cast<int64_t>(r) * f;
    float* dgate = dgate_up + static_cast<int64_t>(r) * 2 * f;
    float* dup = dgate + f;
    for (int i = 0; i < f; ++i) {
      const float s = Sigmoid(gate[i]);
      dup[i] = grad[i] * gate[i] * s;
      dgate[i] = grad[i] * up[i] * s * (1.0f + gate[i] * (1.0f - s));
    }
  }
}

TRAINER_CLONES void Gelu(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    y[i] = x[i] * Sigmoid(kGelu * (x[i] + kGeluCubic * x[i] * x[i] * x[i]));
  }
}

TRAINER_CLONES void GeluBackward(float* dy, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float square = x[i] * x[i];
    const float s = Sigmoid(kGelu * (x[i] + kGeluCubic * square * x[i]));
    const float slope = kGelu * (1.0f + 3.0f * kGeluCubic * square);
    dy[i] *= s + x[i] * s * (1.0f - s) * slope;
  }
}

void RotaryTables(int length, int head_dim, float* cosine, float* sine) {
  const int half = head_dim / 2;
  for (int t = 0; t < length; ++t) {
    for (int i = 0; i < half; ++i) {
      const double angle = t * std::pow(10000.0, -2.0 * i / head_dim);
      cosine[t * half + i] = static_cast<float>(std::cos(angle));
      sine[t * half + i] = static_cast<float>(std::sin(angle));
    }
  }
}

TRAINER_CLONES void Rotate(float* row, int heads, int head_dim, const float* cosine,
                           const float* sine, float direction) {
  const int half = head_dim / 2;
  for (int h = 0; h < heads; ++h) {
    float* low = row + h * head_dim;
    float* high = low + half;
    for (int i = 0; i < half; ++i) {
      const float a = low[i];
      const float b = high[i];
      const float s = direction * sine[i];
      low[i] = a * cosine[i] - b * s;
      high[i] = a * s + b * cosine[i];
    }
  }
}

TRAINER_CLONES void CausalSoftmax(float* scores, int rows, int columns, int stride, int first) {
  for (int r = 0; r < rows; ++r) {
    float* row = scores + static_cast<int64_t>(r) * stride;
    const int visible = first + r + 1;
    SoftmaxRow(row, visible);
    std::fill(row + visible, row + columns, 0.0f);
  }
}

TRAINER_CLONES void SoftmaxBackward(const float* p, float* dscores, int rows, int columns,
                                    int p_stride, int d_stride, float scale) {
  for (int r = 0; r < rows; ++r) {
    const float* prob = p + static_cast<int64_t>(r) * p_stride;
    float* grad = dscores + static_cast<int64_t>(r) * d_stride;
    float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
    for (int i = 0; i < columns; ++i) {
      dot += prob[i] * grad[i];
    }
    for (int i = 0; i < columns; ++i) {
      grad[i] = scale * prob[i] * (grad[i] - dot);
    }
  }
}

TRAINER_CLONES double CrossEntropy(float* logits, const uint8_t* targets, int n, int vocab) {
  double loss = 0.0;
  for (int r = 0; r < n; ++r) {
    float* row = logits + static_cast<int64_t>(r) * vocab;
    const float target = row[targets[r]];
    loss += SoftmaxRow(row, vocab) - target;
  }
  return loss;
}

int64_t CountHits(const float* p, const uint8_t* targets, int n, int vocab) {
  int64_t hits = 0;
  for (int r = 0; r < n; ++r) {
    const float* row = p + static_cast<int64_t>(r) * vocab;
    hits += std::max_element(row, row + vocab) - row == targets[r];
  }
  return hits;
}

TRAINER_CLONES void CrossEntropyBackward(float* p, const uint8_t* targets, int n, int vocab,
                                         float scale) {
  for (int r = 0; r < n; ++r) {
    float* row = p + static_cast<int64_t>(r) * vocab;
    row[targets[r]] -= 1.0f;
    for (int i = 0; i < vocab; ++i) {
      row[i] *= scale;
    }
  }
}

TRAINER_CLONES void Add(float* dst, const float* src, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    dst[i] += src[i];
  }
}

TRAINER_CLONES double SumOfSquares(const float* x, int64_t n) {
  double sum = 0.0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  return sum;
}

TRAINER_CLONES void Scale(float* dst, float factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    dst[i] *= factor;
  }
}

TRAINER_CLONES void WidenBf16(const uint16_t* src, float* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = static_cast<uint32_t>(src[i]) << 16;
    std::memcpy(dst + i, &bits, sizeof(bits));
  }
}

TRAINER_CLONES void NarrowBf16(const float* src, uint16_t* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, src + i, sizeof(bits));
    const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    const bool nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
    dst[i] = static_cast<uint16_t>(nan ? ((bits >> 16) | 0x40u) : rounded);
  }
}

}  // namespace trainer
