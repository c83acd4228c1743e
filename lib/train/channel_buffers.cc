#include "lib/train/channel_buffers.h"

#include <algorithm>

#include "lib/base/status.h"
#include "lib/device/device.h"
#include "lib/kernels/kernels.h"

namespace entrain {

// The number of ranks determines the padding of the parameters, and may change later.
absl::Status ChannelBuffers::Allocate(int ranks) {
  Device* const device = options_.at.device;
  const DType params = options_.params_dtype, wire = options_.wire_dtype;
  ENTRAIN_ASSIGN_OR_RETURN(own_, OwnStream::Make(options_.at));
  const int most_ranks = options_.admit == Admit::kExchange ? kMostChannelRanks : ranks;
  const int64_t most = options_.ranks_change() ? options_.count + most_ranks - 1
                                               : (options_.count + ranks - 1) / ranks * ranks;
  if (keeps()) {
    ENTRAIN_ASSIGN_OR_RETURN(kept_, PlacedArray::Allocate(device, most * SizeOf(wire)));
  }
  ENTRAIN_ASSIGN_OR_RETURN(
      com_, PlacedArray::Allocate(device, most * std::max(SizeOf(params), SizeOf(wire))));
  return absl::OkStatus();
}

absl::Status ChannelBuffers::Take(const PlacedArray& accumulator, bool spent,
                                  const SlabLayer& layer) {
  const int64_t element = SizeOf(options_.wire_dtype), bytes = options_.count * element;
  const int64_t padded = keeps() ? kept_.size() : layer.padded * element;
  ENTRAIN_RETURN_IF_ERROR(ComputeAt(own_->callers(), [&] {
    CurrentKernels().cast(taken(), options_.wire_dtype, accumulator.data(), options_.grads_dtype,
                          options_.count);
    ZeroArray(taken() + bytes, padded - bytes);
    if (spent) {
      ZeroArray(accumulator.data(), accumulator.size());
    }
  }));
  return own_->Follow();
}

void ChannelBuffers::ClearPadding(const SlabLayer& layer) const {
  const int64_t element = SizeOf(options_.wire_dtype), bytes = options_.count * element;
  ZeroArray(taken() + bytes, layer.padded * element - bytes);
}

absl::Status ChannelBuffers::Publish() {
  ENTRAIN_RETURN_IF_ERROR(own_->Lead());
  return ComputeAt(own_->callers(), [&] { CopyArray(options_.params, com(), ParamsBytes()); });
}

absl::Status ChannelBuffers::PublishOnOwn() {
  ENTRAIN_RETURN_IF_ERROR(
      ComputeAt(own_->at(), [&] { CopyArray(options_.params, com(), ParamsBytes()); }));
  return own_->Lead();
}

}  // namespace entrain
