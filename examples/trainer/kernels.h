// The arithmetic of the model: dense products through BLAS, and the loops between them. All are
// pure functions over row-major f32 arrays, and know nothing about layers or parameters. Backward
// functions add to the gradients of weights and gains (+=). They overwrite the gradients of
// activations, except if their comment says otherwise. Thread safety: any thread, because there is
// no state.
#pragma once

#include <cstdint>

namespace trainer {

inline constexpr float kNormEpsilon = 1e-5f;  // added in RmsNorm
// Gelu: Phi(x) is about Sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 x^3)), because (1 + tanh) / 2 is a
// sigmoid.
inline constexpr float kGelu = 1.595769122f, kGeluCubic = 0.044715f;

// y[n, out] = beta * y + x[n, in] * w[out, in]^T
void Product(const float* x, const float* w, float* y, int n, int in, int out, float beta = 0.0f);
// dx[n, in] = beta * dx + dy[n, out] * w[out, in]
void ProductInputGradient(const float* dy, const float* w, float* dx, int n, int in, int out,
                          float beta = 0.0f);
// dw[out, in] += dy[n, out]^T * x[n, in]
void ProductWeightGradient(const float* dy, const float* x, float* dw, int n, int in, int out);

// y = x / rms(x) * gain, row by row. inverse_rms[n] receives 1 / rms(x) for the backward pass.
void RmsNorm(const float* x, const float* gain, float* y, float* inverse_rms, int n, int width);
// dx += gradient of x; dgain += gradient of the gain.
void RmsNormBackward(const float* dy, const float* x, const float* gain, const float* inverse_rms,
                     float* dx, float* dgain, int n, int width);

// y[n, f] = silu(gate) * up, where gate_up[n, 2f] holds both halves of each row.
void SwiGlu(const float* gate_up, float* y, int n, int f);
void SwiGluBackward(const float* dy, const float* gate_up, float* dgate_up, int n, int f);

// y = x * Phi(x). Phi is the distribution function of the normal distribution, in the usual
// approximation by tanh.
void Gelu(const float* x, float* y, int64_t n);
// `dy` becomes the gradient of x, in place.
void GeluBackward(float* dy, const float* x, int64_t n);

// Computes cosine[position, i] and sine[position, i] of the rotary angles, for i < head_dim / 2.
void RotaryTables(int length, int head_dim, float* cosine, float* sine);
// Rotates the pairs (i, i + head_dim / 2) of every head of one row by the angles of its position.
// direction +1: forward; -1: the inverse, which is also the backward pass.
void Rotate(float* row, int heads, int head_dim, const float* cosine, const float* sine,
            float direction);

// Turns scores[rows, stride] into causal probabilities. Row r keeps columns 0 .. first + r. Its
// other columns up to `columns` become 0.
void CausalSoftmax(float* scores, int rows, int columns, int stride, int first);
// Computes dscores = scale * p * (dscores - sum(p * dscores)), in place, over all `columns`.
void SoftmaxBackward(const float* p, float* dscores, int rows, int columns, int p_stride,
                     int d_stride, float scale);

// Turns logits[n, vocab] into probabilities and returns the sum of -log p(target) in nats.
double CrossEntropy(float* logits, const uint8_t* targets, int n, int vocab);
// Returns the number of rows of p[n, vocab] that have their largest entry at the target.
int64_t CountHits(const float* p, const uint8_t* targets, int n, int vocab);
// p[n, vocab] becomes (p - onehot(target)) * scale.
void CrossEntropyBackward(float* p, const uint8_t* targets, int n, int vocab, float scale);

// dst += src
void Add(float* dst, const float* src, int64_t n);
// Returns the sum of squares, computed in double.
double SumOfSquares(const float* x, int64_t n);
// dst *= factor
void Scale(float* dst, float factor, int64_t n);

// bf16 is the upper half of f32. Narrowing rounds to nearest even, and a NaN stays a NaN.
void WidenBf16(const uint16_t* src, float* dst, int64_t n);
void NarrowBf16(const float* src, uint16_t* dst, int64_t n);

}  // namespace trainer
