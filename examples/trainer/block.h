// One decoder block: h = x + Attention(RmsNorm(x)), y = h + SwiGlu(RmsNorm(h)). The code is two
// pure functions. The forward function stores in a BlockState the values that the backward function
// needs. Weights are flat, in this order (D hidden, F feed-forward):
//
//   norm1[D] | query, key, value[3D, D] | output[D, D] | norm2[D] | gate, up[2F, D] | down[D, F]
#pragma once

#include <cstdint>
#include <vector>

namespace trainer {

// The shape of a batch inside the model: `rows` sequences of `length` tokens. A token is a vector
// of `hidden` elements.
struct BlockShape {
  int rows = 0;
  int length = 0;
  int hidden = 0;
  int heads = 0;
  int feed_forward = 0;

  int tokens() const { return rows * length; }
  int head_dim() const { return hidden / heads; }
  // Returns the number of elements of the flat weights.
  int64_t parameters() const;
};

// Offsets of the parts in the flat weights.
struct BlockLayout {
  explicit BlockLayout(const BlockShape& shape);
  int64_t norm1, qkv, output, norm2, gate_up, down, end;
};

// The values of one block that the forward pass keeps: about tokens * (7 D + 3 F) + rows * heads *
// length^2 floats.
struct BlockState {
  explicit BlockState(const BlockShape& shape);
  std::vector<float> normed1, qkv, probabilities, mixed, middle, normed2, gate_up, activated;
  std::vector<float> inverse_rms1, inverse_rms2;
};

// Temporary memory of the backward pass. All blocks share one object.
struct BlockScratch {
  explicit BlockScratch(const BlockShape& shape);
  std::vector<float> narrow, wide, dqkv, dscores;
};

// Rotary tables: cosine and sine, each [length, head_dim / 2].
struct Rotary {
  explicit Rotary(const BlockShape& shape);
  std::vector<float> cosine, sine;
};

// Computes y[tokens, D] from x[tokens, D].
void BlockForward(const BlockShape& shape, const Rotary& rotary, const float* weights,
                  const float* x, float* y, BlockState* state);
// Adds the gradient of the weights to `gradient` (flat, like the weights). Replaces `dy` by the
// gradient of x.
void BlockBackward(const BlockShape& shape, const Rotary& rotary, const float* weights,
                   const float* x, const BlockState& state, BlockScratch* scratch, float* dy,
                   float* gradient);

}  // namespace trainer
