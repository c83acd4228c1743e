#include "lib/device/cuda/cuda_kernels.h"

#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"

#include "lib/base/dtype.h"
#include "lib/device/cuda/launch.h"

namespace entrain {
namespace {

using device_loops::kMostSources;
using device_loops::Range;

// Returns the kernel for `dtype`. `first` is the kernel for f32. KernelId lists the kernels of an
// operation in the order of DType.
constexpr KernelId After(KernelId first, DType dtype) {
  return static_cast<KernelId>(static_cast<int32_t>(first) + static_cast<int32_t>(dtype) -
                               static_cast<int32_t>(DType::kF32));
}
static_assert(After(KernelId::cast_f32, DType::kF8E5M2) == KernelId::cast_f8_e5m2);
static_assert(After(KernelId::accumulate_f32, DType::kF8E5M2) == KernelId::accumulate_f8_e5m2);
static_assert(After(KernelId::scale_f32, DType::kF8E5M2) == KernelId::scale_f8_e5m2);
static_assert(After(KernelId::weigh_f32, DType::kF8E5M2) == KernelId::weigh_f8_e5m2);

void Copy(void* dst, const void* src, int64_t bytes) {
  BoundStream().Note(BoundDevice().Copy(dst, src, bytes, BoundStream().stream()));
}

// ---- Conversion and scaling

void Cast(void* dst, DType to, const void* src, DType from, int64_t count) {
  if (to == from) {
    return Copy(dst, src, count * SizeOf(to));
  }
  device_loops::CastArgs args = {};
  args.range = RangeOf(count, 4, {{dst, SizeOf(to)}, {src, SizeOf(from)}});
  args.out = dst;
  args.in = src;
  static_assert(static_cast<int32_t>(device_loops::FloatType::kF8E5M2) ==
                static_cast<int32_t>(DType::kF8E5M2));
  args.to = static_cast<device_loops::FloatType>(to);
  LaunchKernel(After(KernelId::cast_f32, from), args, 4);
}

void Accumulate(float* acc, const void* src, DType from, int64_t count) {
  device_loops::AccumulateArgs args = {};
  args.range = RangeOf(count, 4, {{acc, 4}, {src, SizeOf(from)}});
  args.acc = acc;
  args.in = src;
  LaunchKernel(After(KernelId::accumulate_f32, from), args, 4);
}

void ScaleAny(DType dtype, void* dst, const void* src, int64_t count, double factor) {
  device_loops::ScaleArgs args = {};
  const int64_t element = SizeOf(dtype), width = 16 / element;
  args.range = RangeOf(count, width, {{dst, element}, {src, element}});
  args.out = dst;
  args.in = src;
  args.factor = factor;
  KernelId kernel = After(KernelId::scale_f32, dtype);
  if (!IsFloat(dtype)) {
    // Signed and unsigned integers have the same products modulo 2^64.
    args.whole = factor < 0 ? static_cast<uint64_t>(static_cast<int64_t>(factor))
                            : static_cast<uint64_t>(factor);
    kernel = OfWidth(KernelId::scale_8, element);
  }
  LaunchKernel(kernel, args, width);
}

// ---- Weighted combinations

void CombineWeighted(DType dtype, void* dst, const void* const* srcs, const double* weights, int n,
                     int64_t count) {
  if (n > kMostSources) {
    return BoundStream().Note(absl::UnimplementedError(
        absl::StrCat("a device combines at most ", kMostSources, " arrays, not ", n)));
  }
  const int64_t element = SizeOf(dtype), width = 16 / element;
  std::array<Operand, kMostSources + 1> operands;
  for (int j = 0; j < n; ++j) {
    operands[static_cast<size_t>(j)] = {srcs[j], element};
  }
  operands[static_cast<size_t>(n)] = {dst, element};
  device_loops::WeighArgs args;
  args.range = RangeOf(count, width, absl::MakeSpan(operands).first(static_cast<size_t>(n) + 1));
  args.out = dst;
  args.n = n;
  std::copy_n(srcs, n, args.srcs);
  std::copy_n(weights, n, args.weights);
  LaunchKernel(After(KernelId::weigh_f32, dtype), args, width);
}

// ---- Sums and searches

double Sum(KernelId kernel, const float* x, const float* y, int64_t count) {
  device_loops::SumArgs args = {};
  args.range = RangeOf(count, 4, {{x, 4}, {y, 4}});
  args.range.head = args.range.head == 0 ? 0 : count;  // as device_loops::SquaresOf needs it
  args.x = x;
  args.y = y;
  return SumOfKernel(kernel, args, 4);
}

double SquareOfDelta(const float* anchor, const float* params, int64_t count) {
  return Sum(KernelId::square_of_delta, anchor, params, count);
}

double SumOfSquares(const float* x, int64_t count) {
  return Sum(KernelId::sum_of_squares, x, nullptr, count);
}

double SumOfSquaredProducts(const float* x, const float* y, int64_t count) {
  return Sum(KernelId::sum_of_squared_products, x, y, count);
}

// Returns a mask. A number is not finite if all bits of the mask are set. Returns 0 for types that
// have only finite numbers.
uint64_t ExponentOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF32I32:
      return 0x7f800000;
    case DType::kF64:
    case DType::kF64I64:
      return uint64_t{0x7ff} << 52;
    case DType::kBF16:
      return 0x7f80;
    case DType::kF16:
      return 0x7c00;
    case DType::kF8E4M3:
      return 0x7f;  // has no infinity, and one NaN
    case DType::kF8E5M2:
      return 0x7c;
    default:
      return 0;
  }
}

bool AllFinite(const void* x, DType dtype, int64_t count) {
  device_loops::FiniteArgs args = {};
  args.exponent = ExponentOf(dtype);
  if (args.exponent == 0 || count == 0) {
    return true;
  }
  const auto room = BoundDevice().TakeRoom();
  if (!room.ok()) {
    BoundStream().Note(room.status());
    return false;
  }
  args.stride = IsPair(dtype) ? 2 : 1;
  const int64_t value = SizeOf(dtype) / args.stride, width = 16 / value;
  args.range = RangeOf(count * args.stride, width, {{x, value}});
  args.in = x;
  args.results = room->words;
  room->words[0] = 0;
  const bool done =
      LaunchKernel(OfWidth(KernelId::find_bad_1, value), args, width) && AwaitKernel(*room);
  const bool finite = done && room->words[0] == 0;
  BoundDevice().PutBack(*room, !done);
  return finite;
}

// ---- Arithmetic on f32 arrays

Range RangeOfFloats(int64_t count, std::initializer_list<const void*> arrays) {
  std::array<Operand, 8> operands = {};
  size_t n = 0;
  for (const void* const array : arrays) {
    operands[n++] = {array, 4};
  }
  return RangeOf(count, 4, absl::MakeSpan(operands).first(n));
}

void WeightedDelta(float* delta, const float* anchor, const float* params, float weight,
                   int64_t count) {
  device_loops::FloatsArgs args = {};
  args.range = RangeOfFloats(count, {delta, anchor, params});
  args.out = delta;
  args.a = anchor;
  args.b = params;
  args.u = weight;
  LaunchKernel(KernelId::weighted_delta, args, 4);
}

void Axpy(float* y, float a, const float* x, int64_t count) {
  device_loops::FloatsArgs args = {};
  args.range = RangeOfFloats(count, {y, x});
  args.out = y;
  args.a = y;
  args.b = x;
  args.u = a;
  LaunchKernel(KernelId::axpy, args, 4);
}

void Ascend(bool adaptive, float scale, float* p, float* saved, const float* g, int64_t count) {
  device_loops::FloatsArgs args = {};
  args.range = RangeOfFloats(count, {p, saved, g});
  args.out = p;
  args.second = saved;
  args.a = p;
  args.b = g;
  args.u = scale;
  args.flag = adaptive;
  LaunchKernel(KernelId::ascend, args, 4);
}

void AddSharpness(const SharpnessArgs& sharpness, float* out, const float* base, const float* g,
                  const float* g2, int64_t count) {
  device_loops::FloatsArgs args = {};
  args.range = RangeOfFloats(count, {out, base, g, g2});
  args.out = out;
  args.a = base;
  args.b = g;
  args.c = g2;
  args.u = static_cast<float>(sharpness.keep);
  args.v = static_cast<float>(sharpness.rate);
  args.w = static_cast<float>(sharpness.first);
  args.x = static_cast<float>(sharpness.second);
  LaunchKernel(KernelId::add_sharpness, args, 4);
}

// ---- Optimizers. Hyper-parameters are computed in double, as in lib/kernels/kernels_updates.inc.

void Sgd(const SgdArgs& sgd, float* out, float* p, const float* g, float* b, int64_t count) {
  device_loops::SgdStepArgs args = {};
  args.momentum = sgd.momentum != 0;
  b = args.momentum ? b : nullptr;
  args.range = RangeOfFloats(count, {out, p, g, b});
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
  LaunchKernel(KernelId::sgd_step, args, 4);
}

void Adamw(const AdamwArgs& adamw, float* out, float* p, const float* g, float* m, float* v,
           int64_t count) {
  device_loops::AdamwStepArgs args = {};
  args.range = RangeOfFloats(count, {out, p, g, m, v});
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
  LaunchKernel(KernelId::adamw_step, args, 4);
}

void Lion(const LionArgs& lion, float* out, float* p, const float* g, float* m, int64_t count) {
  device_loops::LionStepArgs args = {};
  args.range = RangeOfFloats(count, {out, p, g, m});
  args.out = out;
  args.p = p;
  args.g = g;
  args.m = m;
  args.keep = static_cast<float>(1 - lion.lr * lion.weight_decay);
  args.beta1 = static_cast<float>(lion.beta1);
  args.rest1 = static_cast<float>(1 - lion.beta1);
  args.beta2 = static_cast<float>(lion.beta2);
  args.rest2 = static_cast<float>(1 - lion.beta2);
  args.rate = static_cast<float>(lion.lr);
  args.store = out == p;
  LaunchKernel(KernelId::lion_step, args, 4);
}

int64_t Agd(const AgdArgs& agd, const AgdArrays& arrays, int64_t count) {
  device_loops::AgdStepArgs args = {};
  args.range = RangeOfFloats(
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
    LaunchKernel(KernelId::agd_step, args, 4);
    return 0;
  }
  const double adaptive = SumOfKernel(KernelId::agd_step, args, 4);
  return adaptive > 0 ? static_cast<int64_t>(adaptive) : 0;
}

void OuterStep(const SgdArgs& sgd, float scale, float* anchor, float* momentum, float* params,
               const float* mean, int64_t count) {
  device_loops::OuterStepArgs args = {};
  momentum = sgd.momentum != 0 ? momentum : nullptr;
  args.range = RangeOfFloats(count, {anchor, momentum, params, mean});
  args.anchor = anchor;
  args.momentum = momentum;
  args.params = params;
  args.mean = mean;
  args.scale = scale;
  args.eta = static_cast<float>(sgd.lr);
  args.mu = static_cast<float>(sgd.momentum);
  args.nesterov = sgd.nesterov;
  args.first_step = sgd.first_step;
  LaunchKernel(KernelId::outer_step, args, 4);
}

constexpr Kernels kCudaKernels = {
    .name = "cuda",
    .combine = nullptr,  // no rank combines contributions on a device
    .cast = Cast,
    .square_of_delta = SquareOfDelta,
    .weighted_delta = WeightedDelta,
    .sum_of_squares = SumOfSquares,
    .hash = nullptr,
    .sum_of_squared_products = SumOfSquaredProducts,
    .axpy = Axpy,
    .scale_any = ScaleAny,
    .combine_weighted = CombineWeighted,
    .combine_agreeing = nullptr,
    .accumulate = Accumulate,
    .all_finite = AllFinite,
    .sgd = Sgd,
    .adamw = Adamw,
    .lion = Lion,
    .agd = Agd,
    .ascend = Ascend,
    .add_sharpness = AddSharpness,
    .outer_step = OuterStep,
};

}  // namespace

const Kernels& CudaKernels() {
  return kCudaKernels;
}

}  // namespace entrain
