#include "lib/optim/wsam.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/kernels/kernels.h"

namespace entrain {
namespace {

// Elements of the temporary gradient in host memory. This size stays in the first-level cache.
constexpr int64_t kPart = 4096;
// Elements of the temporary gradient in device memory. Each part takes a few kernel launches.
constexpr int64_t kDevicePart = 1 << 20;
constexpr int64_t kFloat = sizeof(float);
constexpr double kClipEps = 1e-6;

absl::Status CheckFrom(absl::string_view name, double value, double least) {
  // This form of the comparison is false for a NaN.
  if (value >= least && std::isfinite(value)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(name, " ", value, " is not a finite number >= ", least));
}

// The arguments of a step, restricted to elements begin to begin + count - 1.
class PartOfStep {
 public:
  PartOfStep(const StepArgs& whole, int64_t begin, int64_t count) : args_(whole) {
    for (size_t i = 0; i < whole.state.size(); ++i) {
      state_[i] = whole.state[i] + begin;
    }
    args_.count = count;
    args_.master += begin;
    args_.grads += begin;
    args_.state = absl::MakeConstSpan(state_).first(whole.state.size());
    args_.out = whole.out == nullptr ? nullptr : whole.out + begin;
  }
  PartOfStep(const PartOfStep&) = delete;  // args_ refers to state_
  PartOfStep& operator=(const PartOfStep&) = delete;
  StepArgs& args() { return args_; }

 private:
  std::array<float*, kMaxStateArrays> state_{};
  StepArgs args_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Wsam>> Wsam::Make(const WsamConfig& config,
                                                 std::shared_ptr<const Optimizer> base) {
  ENTRAIN_RETURN_IF_ERROR(CheckFrom("rho", config.rho, 0));
  if (!(config.gamma >= 0 && config.gamma < 1)) {
    return absl::InvalidArgumentError(absl::StrCat("gamma ", config.gamma, " is not in [0, 1)"));
  }
  // The kernels compute rho / eps in f32, where a smaller eps could give infinity.
  ENTRAIN_RETURN_IF_ERROR(CheckFrom("sam_eps", config.eps, 1e-30));
  ENTRAIN_RETURN_IF_ERROR(CheckFrom("max_norm", config.max_norm, 0));
  return std::unique_ptr<Wsam>(new Wsam(config, std::move(base)));
}

double Wsam::AscentSum(const float* params, const float* grads, int64_t count) const {
  return config_.adaptive ? CurrentKernels().sum_of_squared_products(params, grads, count)
                          : CurrentKernels().sum_of_squares(grads, count);
}

void Wsam::Ascend(float* params, float* saved, const float* grads, int64_t count,
                  double sum) const {
  const auto scale = static_cast<float>(config_.rho / (std::sqrt(sum) + config_.eps));
  CurrentKernels().ascend(config_.adaptive, scale, params, saved, grads, count);
}

void Wsam::Combine(float* out, const float* grads, const float* second, int64_t count) const {
  const SharpnessArgs rule = {.keep = 1, .rate = alpha_, .first = 1, .second = 1};
  CurrentKernels().add_sharpness(rule, out, grads, grads, second, count);
}

double Wsam::ClipFactor(double sum) const {
  return config_.max_norm == 0 ? 1 : std::min(1.0, config_.max_norm / (std::sqrt(sum) + kClipEps));
}

absl::Status Wsam::Step(const WsamStep& step, Apply apply) const {
  KernelStream* const bound = KernelStream::Current();
  if (bound == nullptr) {
    alignas(64) float made[kPart];
    StepParts(step, apply, made, kPart);
    return absl::OkStatus();
  }
  // All calls of this object use one stream, so on the device too they run one after the other.
  absl::MutexLock lock(&made_mutex_);
  if (made_ == nullptr) {
    Device& device = bound->device();
    ENTRAIN_ASSIGN_OR_RETURN(void* const memory, device.Allocate(kDevicePart * kFloat));
    made_ = {static_cast<float*>(memory), FreeOnDevice{&device}};
  }
  StepParts(step, apply, made_.get(), kDevicePart);
  return absl::OkStatus();
}

// `made` has room for a gradient of `most` elements.
void Wsam::StepParts(const WsamStep& step, Apply apply, float* made, int64_t most) const {
  const Kernels& kernels = CurrentKernels();
  const double first = ClipFactor(step.sum), second = ClipFactor(step.second_sum);
  const SharpnessArgs coupled = {.keep = first, .rate = alpha_, .first = first, .second = second};
  const SharpnessArgs decoupled = {
      .keep = 1, .rate = -step.args.lr * alpha_, .first = first, .second = second};
  for (int64_t begin = 0; begin < step.args.count; begin += most) {
    const int64_t count = std::min(most, step.args.count - begin);
    PartOfStep part(step.args, begin, count);
    const float* const g = part.args().grads;
    const float* const g2 = step.second + begin;
    if (!config_.decouple) {
      kernels.add_sharpness(coupled, made, g, g, g2, count);
      part.args().grads = made;
    } else if (first != 1) {
      kernels.scale_any(DType::kF32, made, g, count, first);
      part.args().grads = made;
    }
    base_->Step(part.args(), apply);
    if (config_.decouple) {
      float* const w = apply == Apply::kCommit ? part.args().master : part.args().out;
      kernels.add_sharpness(decoupled, w, w, g, g2, count);
    }
  }
}

}  // namespace entrain
