#include "examples/trainer/gpu_passes.h"

#include <algorithm>
#include <cmath>

#include "examples/trainer/digits.h"
#include "examples/trainer/kernels.h"

namespace trainer {
namespace {

// The functions of kernels.h, on a GPU.
void Product(Gpu* gpu, const float* x, const float* w, float* y, int n, int in, int out,
             float keep = 0.0f) {
  gpu->Multiply({.rows = n,
                 .columns = out,
                 .inner = in,
                 .a = {x, in},
                 .b = {w, in, true},
                 .out = y,
                 .out_width = out,
                 .keep = keep});
}

void ProductInputGradient(Gpu* gpu, const float* dy, const float* w, float* dx, int n, int in,
                          int out) {
  gpu->Multiply({.rows = n,
                 .columns = in,
                 .inner = out,
                 .a = {dy, out},
                 .b = {w, in},
                 .out = dx,
                 .out_width = in});
}

void ProductWeightGradient(Gpu* gpu, const float* dy, const float* x, float* dw, int n, int in,
                           int out) {
  gpu->Multiply({.rows = out,
                 .columns = in,
                 .inner = n,
                 .a = {dy, out, true},
                 .b = {x, in},
                 .out = dw,
                 .out_width = in,
                 .keep = 1.0f});
}

void AddColumnSums(Gpu* gpu, const GpuColumnSumsArgs& args) {
  gpu->Launch(GpuKernel::column_sums, args, (args.width + 31) / 32);
}

BlockShape ShapeOf(const ModelConfig& config, int rows) {
  return {.rows = rows,
          .length = config.length,
          .hidden = config.hidden,
          .heads = config.heads,
          .feed_forward = config.feed_forward()};
}

Array<float> Uploaded(Gpu* gpu, const std::vector<float>& values) {
  Array<float> array(gpu, static_cast<int64_t>(values.size()));
  array.Upload(values.data());
  return array;
}

}  // namespace

// ---- The loss

GpuCriterion::GpuCriterion(Gpu* gpu, int most_rows, int vocabulary)
    : gpu_(gpu), vocabulary_(vocabulary), of_rows_(gpu, int64_t{2} * most_rows), results_(gpu, 2) {}

void GpuCriterion::Forward(float* logits, const uint8_t* targets, int rows) {
  rows_ = rows;
  gpu_->Launch(GpuKernel::cross_entropy,
               GpuTargetsArgs{logits, targets, of_rows_.data(), rows, vocabulary_, 0}, rows);
  gpu_->Launch(GpuKernel::total, GpuTotalArgs{of_rows_.data(), results_.on_gpu(), rows, 2}, 1);
  results_.Fetch();
}

void GpuCriterion::Backward(float* probabilities, const uint8_t* targets, int rows, float scale) {
  gpu_->LaunchOver(int64_t{rows} * vocabulary_, GpuKernel::cross_entropy_backward,
                   GpuTargetsArgs{probabilities, targets, nullptr, rows, vocabulary_,
                                  scale / static_cast<float>(rows)});
}

// ---- The language model

GpuLanguagePass::GpuLanguagePass(Gpu* gpu, const ModelConfig& config, int rows)
    : gpu_(gpu),
      config_(config),
      shape_(ShapeOf(config, rows)),
      batch_(gpu, shape_.tokens(), shape_.tokens()),
      criterion_(gpu, shape_.tokens(), kVocabulary) {
  const Rotary rotary(shape_);
  cosine_ = Uploaded(gpu, rotary.cosine);
  sine_ = Uploaded(gpu, rotary.sine);
  const int d = shape_.hidden, f = shape_.feed_forward;
  const int64_t scores = int64_t{rows} * config.heads * config.length * config.length;
  streams_.push_back(PerToken(d));
  for (int block = 0; block < config.layers; ++block) {
    streams_.push_back(PerToken(d));
    blocks_.push_back({.normed1 = PerToken(d),
                       .heads = PerToken(3 * d),
                       .probabilities = Array<float>(gpu, scores),
                       .mixed = PerToken(d),
                       .middle = PerToken(d),
                       .normed2 = PerToken(d),
                       .gate_up = PerToken(2 * f),
                       .activated = PerToken(f),
                       .inverse_rms1 = PerToken(1),
                       .inverse_rms2 = PerToken(1)});
  }
  normed_ = PerToken(d);
  inverse_rms_ = PerToken(1);
  logits_ = PerToken(kVocabulary);
  stream_gradient_ = PerToken(d);
  narrow_ = PerToken(std::max(d, f));
  wide_ = PerToken(std::max(3 * d, 2 * f));
  heads_gradient_ = PerToken(3 * d);
  mixed_gradient_ = PerToken(d);
  scores_gradient_ = Array<float>(gpu, scores);
}

void GpuLanguagePass::Forward(int layer, const float* params) {
  if (layer == 0) {
    gpu_->LaunchOver(
        streams_[0].size(), GpuKernel::embed,
        GpuEmbedArgs{streams_[0].data(), params, batch_.inputs(), shape_.tokens(), shape_.hidden});
  } else if (layer <= config_.layers) {
    const auto l = static_cast<size_t>(layer);
    ForwardBlock(params, streams_[l - 1].data(), streams_[l].data(), &blocks_[l - 1]);
  } else {
    ForwardHead(params);
  }
}

void GpuLanguagePass::Backward(int layer, const float* params, float scale, float* grads) {
  if (layer == 0) {
    gpu_->Launch(GpuKernel::embed_backward,
                 GpuEmbedArgs{grads, stream_gradient_.data(), batch_.inputs(), shape_.tokens(),
                              shape_.hidden},
                 kVocabulary);
  } else if (layer <= config_.layers) {
    const auto l = static_cast<size_t>(layer);
    BackwardBlock(params, streams_[l - 1].data(), &blocks_[l - 1], grads);
  } else {
    BackwardHead(params, scale, grads);
  }
}

void GpuLanguagePass::ForwardHead(const float* params) {
  const int n = shape_.tokens(), d = shape_.hidden;
  Norm(streams_.back().data(), params, normed_.data(), inverse_rms_.data());
  Product(gpu_, normed_.data(), params + d, logits_.data(), n, d, kVocabulary);
  criterion_.Forward(logits_.data(), batch_.targets(), n);
}

void GpuLanguagePass::BackwardHead(const float* params, float scale, float* grads) {
  const int n = shape_.tokens(), d = shape_.hidden;
  criterion_.Backward(logits_.data(), batch_.targets(), n, scale);
  ProductWeightGradient(gpu_, logits_.data(), normed_.data(), grads + d, n, d, kVocabulary);
  ProductInputGradient(gpu_, logits_.data(), params + d, narrow_.data(), n, d, kVocabulary);
  stream_gradient_.Clear();
  NormBackward(streams_.back().data(), params, inverse_rms_.data(), grads);
}

void GpuLanguagePass::Norm(const float* x, const float* gain, float* y, float* inverse_rms) {
  gpu_->Launch(GpuKernel::rms_norm,
               GpuRowsArgs{.out = y,
                           .a = x,
                           .gain = gain,
                           .row_factor = inverse_rms,
                           .rows = shape_.tokens(),
                           .width = shape_.hidden,
                           .factor = kNormEpsilon},
               shape_.tokens());
}

void GpuLanguagePass::NormBackward(const float* x, const float* gain, float* inverse_rms,
                                   float* dgain) {
  gpu_->Launch(GpuKernel::rms_norm_backward,
               GpuRowsArgs{.out = stream_gradient_.data(),
                           .a = narrow_.data(),
                           .b = x,
                           .gain = gain,
                           .row_factor = inverse_rms,
                           .rows = shape_.tokens(),
                           .width = shape_.hidden},
               shape_.tokens());
  AddColumnSums(gpu_, {dgain, narrow_.data(), x, inverse_rms, shape_.tokens(), shape_.hidden});
}

void GpuLanguagePass::ForwardBlock(const float* weights, const float* x, float* y, Kept* kept) {
  const BlockLayout at(shape_);
  const int n = shape_.tokens(), d = shape_.hidden, f = shape_.feed_forward;
  Norm(x, weights + at.norm1, kept->normed1.data(), kept->inverse_rms1.data());
  Product(gpu_, kept->normed1.data(), weights + at.qkv, wide_.data(), n, d, 3 * d);
  Attend(kept);
  gpu_->Copy(kept->middle.data(), x, kept->middle.bytes());
  Product(gpu_, kept->mixed.data(), weights + at.output, kept->middle.data(), n, d, d, 1.0f);

  Norm(kept->middle.data(), weights + at.norm2, kept->normed2.data(), kept->inverse_rms2.data());
  Product(gpu_, kept->normed2.data(), weights + at.gate_up, kept->gate_up.data(), n, d, 2 * f);
  gpu_->LaunchOver(
      kept->activated.size(), GpuKernel::swiglu,
      GpuRowsArgs{.out = kept->activated.data(), .a = kept->gate_up.data(), .rows = n, .width = f});
  gpu_->Copy(y, kept->middle.data(), kept->middle.bytes());
  Product(gpu_, kept->activated.data(), weights + at.down, y, n, f, d, 1.0f);
}

void GpuLanguagePass::BackwardBlock(const float* weights, const float* x, Kept* kept,
                                    float* gradient) {
  const BlockLayout at(shape_);
  const int n = shape_.tokens(), d = shape_.hidden, f = shape_.feed_forward;
  float *const dy = stream_gradient_.data(), *const narrow = narrow_.data();
  float* const wide = wide_.data();

  // The feed-forward half. dy is also the gradient of the residual connection.
  ProductInputGradient(gpu_, dy, weights + at.down, narrow, n, f, d);
  ProductWeightGradient(gpu_, dy, kept->activated.data(), gradient + at.down, n, f, d);
  gpu_->LaunchOver(
      kept->activated.size(), GpuKernel::swiglu_backward,
      GpuRowsArgs{.out = wide, .a = kept->gate_up.data(), .b = narrow, .rows = n, .width = f});
  ProductInputGradient(gpu_, wide, weights + at.gate_up, narrow, n, d, 2 * f);
  ProductWeightGradient(gpu_, wide, kept->normed2.data(), gradient + at.gate_up, n, d, 2 * f);
  NormBackward(kept->middle.data(), weights + at.norm2, kept->inverse_rms2.data(),
               gradient + at.norm2);

  // The attention half.
  ProductInputGradient(gpu_, dy, weights + at.output, narrow, n, d, d);
  ProductWeightGradient(gpu_, dy, kept->mixed.data(), gradient + at.output, n, d, d);
  AttendBackward(kept);
  ProductInputGradient(gpu_, wide, weights + at.qkv, narrow, n, d, 3 * d);
  ProductWeightGradient(gpu_, wide, kept->normed1.data(), gradient + at.qkv, n, d, 3 * d);
  NormBackward(x, weights + at.norm1, kept->inverse_rms1.data(), gradient + at.norm1);
}

GpuHeadsArgs GpuLanguagePass::Heads(float* joined, float* split, int parts, int turned) const {
  return {.joined = joined,
          .split = split,
          .cosine = cosine_.data(),
          .sine = sine_.data(),
          .rows = shape_.rows,
          .length = shape_.length,
          .heads = shape_.heads,
          .head_dim = shape_.head_dim(),
          .parts = parts,
          .turned = turned};
}

// Computes kept->mixed from query, key and value, which are contiguous in wide_.
void GpuLanguagePass::Attend(Kept* kept) {
  const int length = shape_.length, d = shape_.head_dim(), heads = shape_.rows * shape_.heads;
  const int64_t vectors = int64_t{length} * d, square = int64_t{length} * length;
  float* const p = kept->probabilities.data();
  gpu_->LaunchOver(kept->heads.size() / 2, GpuKernel::split_heads,
                   Heads(wide_.data(), kept->heads.data(), 3, 2));
  gpu_->Multiply({.rows = length,
                  .columns = length,
                  .inner = d,
                  .a = {Part(&kept->heads, 0), d, false, vectors},
                  .b = {Part(&kept->heads, 1), d, true, vectors},
                  .out = p,
                  .out_width = length,
                  .scale = 1.0f / std::sqrt(static_cast<float>(d)),
                  .batch = heads,
                  .out_stride = square});
  gpu_->Launch(GpuKernel::causal_softmax,
               GpuRowsArgs{.out = p, .rows = heads * length, .width = length}, heads * length);
  gpu_->Multiply({.rows = length,
                  .columns = d,
                  .inner = length,
                  .a = {p, length, false, square},
                  .b = {Part(&kept->heads, 2), d, false, vectors},
                  .out = narrow_.data(),
                  .out_width = d,
                  .batch = heads,
                  .out_stride = vectors});
  gpu_->LaunchOver(kept->mixed.size() / 2, GpuKernel::join_heads,
                   Heads(kept->mixed.data(), narrow_.data(), 1, 0));
}

// Reads the gradient of kept->mixed from narrow_. Writes the gradients of query, key and value to
// wide_.
void GpuLanguagePass::AttendBackward(Kept* kept) {
  const int length = shape_.length, d = shape_.head_dim(), heads = shape_.rows * shape_.heads;
  const int64_t vectors = int64_t{length} * d, square = int64_t{length} * length;
  const float *const p = kept->probabilities.data(), *const dmixed = mixed_gradient_.data();
  float* const dscores = scores_gradient_.data();
  gpu_->LaunchOver(mixed_gradient_.size() / 2, GpuKernel::split_heads,
                   Heads(narrow_.data(), mixed_gradient_.data(), 1, 0));
  // out[length, head_dim] = a[length, length] b[length, head_dim], for all heads.
  const auto over_positions = [&](const GpuMatrix& a, const float* b, int part) {
    gpu_->Multiply({.rows = length,
                    .columns = d,
                    .inner = length,
                    .a = a,
                    .b = {b, d, false, vectors},
                    .out = Part(&heads_gradient_, part),
                    .out_width = d,
                    .batch = heads,
                    .out_stride = vectors});
  };
  over_positions({p, length, true, square}, dmixed, 2);
  gpu_->Multiply({.rows = length,
                  .columns = length,
                  .inner = d,
                  .a = {dmixed, d, false, vectors},
                  .b = {Part(&kept->heads, 2), d, true, vectors},
                  .out = dscores,
                  .out_width = length,
                  .batch = heads,
                  .out_stride = square});
  gpu_->Launch(GpuKernel::softmax_backward,
               GpuRowsArgs{.out = dscores,
                           .a = p,
                           .rows = heads * length,
                           .width = length,
                           .factor = 1.0f / std::sqrt(static_cast<float>(d))},
               heads * length);
  over_positions({dscores, length, false, square}, Part(&kept->heads, 1), 0);
  over_positions({dscores, length, true, square}, Part(&kept->heads, 0), 1);
  gpu_->LaunchOver(heads_gradient_.size() / 2, GpuKernel::join_heads,
                   Heads(wide_.data(), heads_gradient_.data(), 3, 2));
}

// ---- The network for digits

GpuMlpPass::GpuMlpPass(Gpu* gpu, const MlpConfig& config, int rows)
    : gpu_(gpu),
      config_(config),
      batch_(gpu, int64_t{rows} * kPixels, rows),
      criterion_(gpu, rows, kDigits),
      gradient_(gpu, int64_t{rows} * std::max(config.hidden, kDigits)),
      next_gradient_(gpu, gradient_.size()) {
  for (int layer = 0; layer <= config.layers; ++layer) {
    activations_.emplace_back(gpu, int64_t{rows} * config.inputs(layer));
    sums_.emplace_back(gpu, int64_t{rows} * config.outputs(layer));
  }
}

void GpuMlpPass::SetBatch(const Batch& batch) {
  rows_ = static_cast<int>(batch.targets.size());
  batch_.Set(batch);
  const int64_t pixels = int64_t{rows_} * kPixels;
  gpu_->LaunchOver(
      pixels, GpuKernel::from_bytes,
      GpuConvertArgs{activations_[0].data(), batch_.inputs(), pixels, 1.0f / kDarkest});
}

void GpuMlpPass::Forward(int layer, const float* params) {
  const auto l = static_cast<size_t>(layer);
  const int in = config_.inputs(layer), out = config_.outputs(layer);
  const int64_t count = int64_t{rows_} * out;
  float* const sums = sums_[l].data();
  gpu_->LaunchOver(
      count, GpuKernel::repeat_row,
      GpuRowsArgs{.out = sums, .gain = params + int64_t{in} * out, .rows = rows_, .width = out});
  Product(gpu_, activations_[l].data(), params, sums, rows_, in, out, 1.0f);
  if (layer < config_.layers) {
    gpu_->LaunchOver(count, GpuKernel::gelu,
                     GpuVectorArgs{.out = activations_[l + 1].data(), .a = sums, .count = count});
  } else {
    criterion_.Forward(sums, batch_.targets(), rows_);
  }
}

void GpuMlpPass::Backward(int layer, const float* params, float scale, float* grads) {
  const auto l = static_cast<size_t>(layer);
  const int in = config_.inputs(layer), out = config_.outputs(layer);
  const int64_t count = int64_t{rows_} * out;
  float* dsums = gradient_.data();
  if (layer < config_.layers) {
    gpu_->LaunchOver(count, GpuKernel::gelu_backward,
                     GpuVectorArgs{.out = dsums, .a = sums_[l].data(), .count = count});
  } else {
    dsums = sums_[l].data();
    criterion_.Backward(dsums, batch_.targets(), rows_, scale);
  }
  ProductWeightGradient(gpu_, dsums, activations_[l].data(), grads, rows_, in, out);
  AddColumnSums(gpu_, {grads + int64_t{in} * out, dsums, nullptr, nullptr, rows_, out});
  if (layer > 0) {
    ProductInputGradient(gpu_, dsums, params, next_gradient_.data(), rows_, in, out);
    std::swap(gradient_, next_gradient_);
  }
}

}  // namespace trainer
