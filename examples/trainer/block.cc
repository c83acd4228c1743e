#include "examples/trainer/block.h"

#include <algorithm>
#include <cmath>

#include <cblas.h>

#include "examples/trainer/kernels.h"

namespace trainer {
namespace {

// Queries are processed in strips of this many rows, so that most of the scores above the diagonal
// are not computed.
constexpr int kStrip = 64;

size_t Elements(int a, int b) {
  return static_cast<size_t>(a) * static_cast<size_t>(b);
}

void RotateAll(const BlockShape& s, const Rotary& rotary, float* qkv, float direction) {
  const int half = s.head_dim() / 2;
  for (int t = 0; t < s.tokens(); ++t) {
    const int position = t % s.length;
    // Queries and keys are contiguous, so one call rotates both, as 2 * heads heads.
    Rotate(qkv + Elements(t, 3 * s.hidden), 2 * s.heads, s.head_dim(),
           rotary.cosine.data() + Elements(position, half),
           rotary.sine.data() + Elements(position, half), direction);
  }
}

// One head of one sequence: pointers to its first query, first key and first value, and to its
// probabilities [length, length].
struct Head {
  const float *q, *k, *v;
  float* p;
};

Head HeadAt(const BlockShape& s, const float* qkv, float* probabilities, int row, int head) {
  const float* q = qkv + Elements(row * s.length, 3 * s.hidden) + head * s.head_dim();
  float* p = probabilities + Elements(row * s.heads + head, s.length * s.length);
  return {q, q + s.hidden, q + 2 * s.hidden, p};
}

void AttendHead(const BlockShape& s, const Head& h, float* out) {
  const int d = s.head_dim();
  const int stride = 3 * s.hidden;
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  for (int first = 0; first < s.length; first += kStrip) {
    const int count = std::min(kStrip, s.length - first);
    const int seen = first + count;
    float* p = h.p + Elements(first, s.length);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, count, seen, d, scale,
                h.q + Elements(first, stride), stride, h.k, stride, 0.0f, p, s.length);
    CausalSoftmax(p, count, seen, s.length, first);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, count, d, seen, 1.0f, p, s.length, h.v,
                stride, 0.0f, out + Elements(first, s.hidden), s.hidden);
  }
}

// `dq` points to the head's first query in the gradient of qkv, and `dout` to the head's first
// output.
void AttendHeadBackward(const BlockShape& s, const Head& h, const float* dout, float* dscores,
                        float* dq) {
  const int d = s.head_dim();
  const int stride = 3 * s.hidden;
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  float* dk = dq + s.hidden;
  float* dv = dk + s.hidden;
  const int last = (s.length - 1) / kStrip * kStrip;
  // The last strip sees every key, so it writes dk and dv. The other strips add to them.
  for (int first = last; first >= 0; first -= kStrip) {
    const int count = std::min(kStrip, s.length - first);
    const int seen = first + count;
    const float keep = first == last ? 0.0f : 1.0f;
    const float* p = h.p + Elements(first, s.length);
    const float* grad = dout + Elements(first, s.hidden);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, seen, d, count, 1.0f, p, s.length, grad,
                s.hidden, keep, dv, stride);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, count, seen, d, 1.0f, grad, s.hidden, h.v,
                stride, 0.0f, dscores, s.length);
    SoftmaxBackward(p, dscores, count, seen, s.length, s.length, scale);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, count, d, seen, 1.0f, dscores, s.length,
                h.k, stride, 0.0f, dq + Elements(first, stride), stride);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, seen, d, count, 1.0f, dscores, s.length,
                h.q + Elements(first, stride), stride, keep, dk, stride);
  }
}

void Attend(const BlockShape& s, const float* qkv, float* probabilities, float* mixed) {
  for (int row = 0; row < s.rows; ++row) {
    for (int head = 0; head < s.heads; ++head) {
      float* out = mixed + Elements(row * s.length, s.hidden) + head * s.head_dim();
      AttendHead(s, HeadAt(s, qkv, probabilities, row, head), out);
    }
  }
}

void AttendBackward(const BlockShape& s, const BlockState& state, const float* dmixed,
                    float* dscores, float* dqkv) {
  // The backward pass only reads the probabilities.
  float* probabilities = const_cast<float*>(state.probabilities.data());
  for (int row = 0; row < s.rows; ++row) {
    for (int head = 0; head < s.heads; ++head) {
      const size_t at = static_cast<size_t>(head) * static_cast<size_t>(s.head_dim());
      AttendHeadBackward(s, HeadAt(s, state.qkv.data(), probabilities, row, head),
                         dmixed + Elements(row * s.length, s.hidden) + at, dscores,
                         dqkv + Elements(row * s.length, 3 * s.hidden) + at);
    }
  }
}

}  // namespace

BlockLayout::BlockLayout(const BlockShape& shape) {
  const int64_t d = shape.hidden;
  const int64_t f = shape.feed_forward;
  norm1 = 0;
  qkv = norm1 + d;
  output = qkv + 3 * d * d;
  norm2 = output + d * d;
  gate_up = norm2 + d;
  down = gate_up + 2 * f * d;
  end = down + d * f;
}

int64_t BlockShape::parameters() const {
  return BlockLayout(*this).end;
}

BlockState::BlockState(const BlockShape& s)
    : normed1(Elements(s.tokens(), s.hidden)),
      qkv(Elements(s.tokens(), 3 * s.hidden)),
      probabilities(Elements(s.rows * s.heads, s.length) * static_cast<size_t>(s.length)),
      mixed(Elements(s.tokens(), s.hidden)),
      middle(Elements(s.tokens(), s.hidden)),
      normed2(Elements(s.tokens(), s.hidden)),
      gate_up(Elements(s.tokens(), 2 * s.feed_forward)),
      activated(Elements(s.tokens(), s.feed_forward)),
      inverse_rms1(static_cast<size_t>(s.tokens())),
      inverse_rms2(static_cast<size_t>(s.tokens())) {}

BlockScratch::BlockScratch(const BlockShape& s)
    : narrow(Elements(s.tokens(), std::max(s.hidden, s.feed_forward))),
      wide(Elements(s.tokens(), 2 * s.feed_forward)),
      dqkv(Elements(s.tokens(), 3 * s.hidden)),
      dscores(Elements(kStrip, s.length)) {}

Rotary::Rotary(const BlockShape& s)
    : cosine(Elements(s.length, s.head_dim() / 2)), sine(cosine.size()) {
  RotaryTables(s.length, s.head_dim(), cosine.data(), sine.data());
}

void BlockForward(const BlockShape& shape, const Rotary& rotary, const float* weights,
                  const float* x, float* y, BlockState* state) {
  const BlockLayout at(shape);
  const int n = shape.tokens();
  const int d = shape.hidden;
  const int f = shape.feed_forward;
  const int64_t activations = static_cast<int64_t>(n) * d;

  RmsNorm(x, weights + at.norm1, state->normed1.data(), state->inverse_rms1.data(), n, d);
  Product(state->normed1.data(), weights + at.qkv, state->qkv.data(), n, d, 3 * d);
  RotateAll(shape, rotary, state->qkv.data(), 1.0f);
  Attend(shape, state->qkv.data(), state->probabilities.data(), state->mixed.data());
  std::copy(x, x + activations, state->middle.data());
  Product(state->mixed.data(), weights + at.output, state->middle.data(), n, d, d, 1.0f);

  RmsNorm(state->middle.data(), weights + at.norm2, state->normed2.data(),
          state->inverse_rms2.data(), n, d);
  Product(state->normed2.data(), weights + at.gate_up, state->gate_up.data(), n, d, 2 * f);
  SwiGlu(state->gate_up.data(), state->activated.data(), n, f);
  std::copy(state->middle.begin(), state->middle.end(), y);
  Product(state->activated.data(), weights + at.down, y, n, f, d, 1.0f);
}

void BlockBackward(const BlockShape& shape, const Rotary& rotary, const float* weights,
                   const float* x, const BlockState& state, BlockScratch* scratch, float* dy,
                   float* gradient) {
  const BlockLayout at(shape);
  const int n = shape.tokens();
  const int d = shape.hidden;
  const int f = shape.feed_forward;
  float* narrow = scratch->narrow.data();
  float* wide = scratch->wide.data();
  float* dqkv = scratch->dqkv.data();

  // The feed-forward half. dy is also the gradient of the residual connection.
  ProductInputGradient(dy, weights + at.down, narrow, n, f, d);
  ProductWeightGradient(dy, state.activated.data(), gradient + at.down, n, f, d);
  SwiGluBackward(narrow, state.gate_up.data(), wide, n, f);
  ProductInputGradient(wide, weights + at.gate_up, narrow, n, d, 2 * f);
  ProductWeightGradient(wide, state.normed2.data(), gradient + at.gate_up, n, d, 2 * f);
  RmsNormBackward(narrow, state.middle.data(), weights + at.norm2, state.inverse_rms2.data(), dy,
                  gradient + at.norm2, n, d);

  // The attention half.
  ProductInputGradient(dy, weights + at.output, narrow, n, d, d);
  ProductWeightGradient(dy, state.mixed.data(), gradient + at.output, n, d, d);
  AttendBackward(shape, state, narrow, scratch->dscores.data(), dqkv);
  RotateAll(shape, rotary, dqkv, -1.0f);
  ProductInputGradient(dqkv, weights + at.qkv, narrow, n, d, 3 * d);
  ProductWeightGradient(dqkv, state.normed1.data(), gradient + at.qkv, n, d, 3 * d);
  RmsNormBackward(narrow, x, weights + at.norm1, state.inverse_rms1.data(), dy, gradient + at.norm1,
                  n, d);
}

}  // namespace trainer
