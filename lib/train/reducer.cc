#include "lib/train/reducer.h"

#include <memory>
#include <utility>

#include "lib/kernels/kernels.h"

namespace entrain {
namespace {

absl::StatusOr<RefPtr<Work>> AllReduce(Communicator* across, absl::Span<float> delta,
                                       Reduction reduction, const CallOptions& options) {
  Call call;
  call.kind = CallKind::kAllReduce;
  call.dtype = DType::kF32;
  call.reduction = std::move(reduction);
  call.count = static_cast<int64_t>(delta.size());
  call.in = call.out = {delta.data(), call.count * static_cast<int64_t>(sizeof(float))};
  call.options = options;
  return across->Start(call);
}

void Scale(absl::Span<float> delta, float weight) {
  if (weight != 1) {
    BestKernels().scale_any(DType::kF32, delta.data(), delta.data(),
                            static_cast<int64_t>(delta.size()), weight);
  }
}

}  // namespace

absl::Status DeltaReducer::Finish(const RefPtr<Work>& begun) const {
  if (!begun) {
    return absl::OkStatus();
  }
  begun->Wait(Deadline::Never(), true);  // the call has a deadline of its own
  return begun->status();
}

absl::StatusOr<RefPtr<Work>> LinearReducer::Begin(Communicator* across,
                                                  absl::Span<const double> weights,
                                                  absl::Span<float> delta,
                                                  const CallOptions& options) const {
  const int me = across == nullptr ? 0 : across->rank();
  Scale(delta, static_cast<float>(weights[static_cast<size_t>(me)]));
  return across == nullptr ? RefPtr<Work>() : AllReduce(across, delta, {}, options);
}

GtaReducer::GtaReducer(const Merging& settings) : reduction_(*MakeGta(settings)) {}

absl::StatusOr<RefPtr<Work>> GtaReducer::Begin(Communicator* across,
                                               absl::Span<const double> weights,
                                               absl::Span<float> delta,
                                               const CallOptions& options) const {
  const Merging& settings = *reduction_.merging;
  if (across == nullptr) {
    Scale(delta, settings.normalize ? 1 : static_cast<float>(weights[0]));
    return RefPtr<Work>();
  }
  auto merging = std::make_shared<Merging>(settings);
  merging->weights.assign(weights.begin(), weights.end());
  Reduction reduction = reduction_;
  reduction.merging = std::move(merging);
  return AllReduce(across, delta, std::move(reduction), options);
}

}  // namespace entrain
