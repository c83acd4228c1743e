#include "lib/train/edit/reducer.h"

#include <memory>
#include <utility>

namespace entrain {
namespace {

Call AllReduceOf(absl::Span<float> delta, Reduction reduction, const CallOptions& options) {
  Call call;
  call.kind = CallKind::kAllReduce;
  call.dtype = DType::kF32;
  call.reduction = std::move(reduction);
  call.count = static_cast<int64_t>(delta.size());
  call.in = call.out = {delta.data(), call.count * static_cast<int64_t>(sizeof(float))};
  call.options = options;
  return call;
}

}  // namespace

absl::StatusOr<RefPtr<Work>> DeltaReducer::Begin(Communicator* across,
                                                 absl::Span<const double> weights,
                                                 absl::Span<float> delta,
                                                 const CallOptions& options) const {
  return across == nullptr ? RefPtr<Work>() : across->Start(AllReduce(weights, delta, options));
}

absl::Status DeltaReducer::Finish(const RefPtr<Work>& begun) const {
  if (!begun) {
    return absl::OkStatus();
  }
  begun->Wait(Deadline::Never(), true);  // the call has a deadline of its own
  return begun->status();
}

float LinearReducer::Factor(const Communicator* across, absl::Span<const double> weights) const {
  const int me = across == nullptr ? 0 : across->rank();
  return static_cast<float>(weights[static_cast<size_t>(me)]);
}

Call LinearReducer::AllReduce(absl::Span<const double> /*weights*/, absl::Span<float> delta,
                              const CallOptions& options) const {
  return AllReduceOf(delta, {}, options);
}

GtaReducer::GtaReducer(const Merging& settings) : reduction_(*MakeGta(settings)) {}

// With a communicator the call applies the weights, so the factor is 1. Without a communicator
// there is no call. Then the factor is the weight or, with normalisation, 1.
float GtaReducer::Factor(const Communicator* across, absl::Span<const double> weights) const {
  return across != nullptr || reduction_.merging->normalize ? 1 : static_cast<float>(weights[0]);
}

Call GtaReducer::AllReduce(absl::Span<const double> weights, absl::Span<float> delta,
                           const CallOptions& options) const {
  auto merging = std::make_shared<Merging>(*reduction_.merging);
  merging->weights.assign(weights.begin(), weights.end());
  Reduction reduction = reduction_;
  reduction.merging = std::move(merging);
  return AllReduceOf(delta, std::move(reduction), options);
}

}  // namespace entrain
