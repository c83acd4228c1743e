#include "lib/device/cuda/cuda_kernels.h"

#include <cmath>

#include "lib/device/cuda/launch.h"

namespace entrain {
namespace {

double Sum(KernelId kernel, const float* x, const float* y, int64_t count) {
  device_loops::SumArgs args = {};
  args.range = RangeOf(count, {x, y});
  args.range.head = args.range.head == 0 ? 0 : count;  // as device_loops::SumOfTerms needs it
  args.x = x;
  args.y = y;
  return SumOfKernel(kernel, args);
}

double SumOfSquares(const float* x, int64_t count) {
  return Sum(KernelId::sum_of_squares, x, nullptr, count);
}

double SumOfSquaredProducts(const float* x, const float* y, int64_t count) {
  return Sum(KernelId::sum_of_squared_products, x, y, count);
}

void ScaleAny(DType dtype, void* dst, const void* src, int64_t count, double factor) {
  if (dtype != DType::kF32) {
    __builtin_trap();  // a violation of cuda_kernels.h
  }
  device_loops::FloatsArgs args = {};
  args.range = RangeOf(count, {dst, src});
  args.out = static_cast<float*>(dst);
  args.a = static_cast<const float*>(src);
  args.u = static_cast<float>(factor);
  LaunchKernel(KernelId::scale, args);
}

void Ascend(bool adaptive, float scale, float* p, float* saved, const float* g, int64_t count) {
  device_loops::FloatsArgs args = {};
  args.range = RangeOf(count, {p, saved, g});
  args.out = p;
  args.second = saved;
  args.a = p;
  args.b = g;
  args.u = scale;
  args.flag = adaptive;
  LaunchKernel(KernelId::ascend, args);
}

void AddSharpness(const SharpnessArgs& sharpness, float* out, const float* base, const float* g,
                  const float* g2, int64_t count) {
  device_loops::FloatsArgs args = {};
  args.range = RangeOf(count, {out, base, g, g2});
  args.out = out;
  args.a = base;
  args.b = g;
  args.c = g2;
  args.u = static_cast<float>(sharpness.keep);
  args.v = static_cast<float>(sharpness.rate);
  args.w = static_cast<float>(sharpness.first);
  args.x = static_cast<float>(sharpness.second);
  LaunchKernel(KernelId::add_sharpness, args);
}

// ---- Optimizers. Hyper-parameters are computed in double, as in lib/kernels/kernels_updates.inc.

void Sgd(const SgdArgs& sgd, float* out, float* p, const float* g, float* b, int64_t count) {
  device_loops::SgdStepArgs args = {};
  args.momentum = sgd.momentum != 0;
  b = args.momentum ? b : nullptr;
  args.range = RangeOf(count, {out, p, g, b});
  args.out = out;
  args.p = p;
  args.g = g;
  args.b = b;
  args.lr = static_cast<float>(sgd.lr);
  args.mu = static_cast<float>(sgd.momentum);
  args.decay = static_cast<float>(sgd.weight_decay);
  args.nesterov = sgd.nesterov;
  args.first_step = sgd.first_step;
  args.store = out == p;
  LaunchKernel(KernelId::sgd_step, args);
}

void Adamw(const AdamwArgs& adamw, float* out, float* p, const float* g, float* m, float* v,
           int64_t count) {
  device_loops::AdamwStepArgs args = {};
  args.range = RangeOf(count, {out, p, g, m, v});
  args.out = out;
  args.p = p;
  args.g = g;
  args.m = m;
  args.v = v;
  args.keep = static_cast<float>(1 - adamw.lr * adamw.weight_decay);
  args.beta1 = static_cast<float>(adamw.beta1);
  args.rest1 = static_cast<float>(1 - adamw.beta1);
  args.beta2 = static_cast<float>(adamw.beta2);
  args.rest2 = static_cast<float>(1 - adamw.beta2);
  args.rate = static_cast<float>(adamw.lr / adamw.correction1);
  args.root2 = static_cast<float>(std::sqrt(adamw.correction2));
  args.eps = static_cast<float>(adamw.eps);
  args.store = out == p;
  LaunchKernel(KernelId::adamw_step, args);
}

int64_t Agd(const AgdArgs& agd, const AgdArrays& arrays, int64_t count) {
  device_loops::AgdStepArgs args = {};
  args.range = RangeOf(
      count, {arrays.out, arrays.p, arrays.g, arrays.m, arrays.b, arrays.largest, arrays.z});
  args.out = arrays.out;
  args.p = arrays.p;
  args.g = arrays.g;
  args.m = arrays.m;
  args.b = arrays.b;
  args.largest = arrays.largest;
  args.z = arrays.z;
  args.p_factor = static_cast<float>(agd.p_factor);
  args.coupled_lambda = static_cast<float>(agd.coupled_lambda);
  args.beta1 = static_cast<float>(agd.beta1);
  args.rest1 = static_cast<float>(1 - agd.beta1);
  args.beta2 = static_cast<float>(agd.beta2);
  args.rest2 = static_cast<float>(1 - agd.beta2);
  args.rest1_over_c1 = static_cast<float>(agd.rest1_over_c1);
  args.inverse_c1_before = static_cast<float>(agd.inverse_c1_before);
  args.delta_root_c2 = static_cast<float>(agd.delta_root_c2);
  args.clip = static_cast<float>(agd.clip);
  args.a = static_cast<float>(agd.a);
  const double exact_a_lambda = agd.a * agd.lambda;
  args.a_lambda = static_cast<float>(exact_a_lambda);
  args.inverse_1_a_lambda = static_cast<float>(1 / (1 + exact_a_lambda));
  args.twice_tau = static_cast<float>(2 / (3 + 2 * exact_a_lambda));
  args.first_step = agd.first_step;
  args.store = arrays.out == arrays.p;
  if (!args.store) {
    LaunchKernel(KernelId::agd_step, args);
    return 0;
  }
  const double adaptive = SumOfKernel(KernelId::agd_step, args);
  return adaptive > 0 ? static_cast<int64_t>(adaptive) : 0;
}

constexpr Kernels kCudaKernels = {
    .name = "cuda",
    .combine = nullptr,
    .cast = nullptr,
    .square_of_delta = nullptr,
    .weighted_delta = nullptr,
    .sum_of_squares = SumOfSquares,
    .hash = nullptr,
    .sum_of_squared_products = SumOfSquaredProducts,
    .axpy = nullptr,
    .scale_any = ScaleAny,
    .combine_weighted = nullptr,
    .combine_agreeing = nullptr,
    .accumulate = nullptr,
    .all_finite = nullptr,
    .sgd = Sgd,
    .adamw = Adamw,
    .lion = nullptr,
    .agd = Agd,
    .ascend = Ascend,
    .add_sharpness = AddSharpness,
    .outer_step = nullptr,
};

}  // namespace

const Kernels& CudaKernels() {
  return kCudaKernels;
}

}  // namespace entrain
