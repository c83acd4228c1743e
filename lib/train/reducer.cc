#include "lib/train/reducer.h"

#include "lib/kernels/kernels.h"

namespace entrain {

absl::StatusOr<RefPtr<Work>> LinearReducer::Begin(Communicator* across,
                                                  absl::Span<const double> weights,
                                                  absl::Span<float> delta,
                                                  const CallOptions& options) const {
  const auto count = static_cast<int64_t>(delta.size());
  const int me = across == nullptr ? 0 : across->rank();
  const auto weight = static_cast<float>(weights[static_cast<size_t>(me)]);
  if (weight != 1) {
    BestKernels().scale_any(DType::kF32, delta.data(), delta.data(), count, weight);
  }
  if (across == nullptr) {
    return RefPtr<Work>();
  }
  Call call;
  call.kind = CallKind::kAllReduce;
  call.dtype = DType::kF32;
  call.count = count;
  call.in = call.out = {delta.data(), count * static_cast<int64_t>(sizeof(float))};
  call.options = options;
  return across->Start(call);
}

absl::Status LinearReducer::Finish(const RefPtr<Work>& begun) const {
  if (!begun) {
    return absl::OkStatus();
  }
  begun->Wait(Deadline::Never(), true);  // the call has a deadline of its own
  return begun->status();
}

}  // namespace entrain
