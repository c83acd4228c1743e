#include "lib/train/acco/channel_buffers.h"

#include <algorithm>

#include "lib/base/status.h"
#include "lib/kernels/kernel_threads.h"
#include "lib/kernels/kernels.h"

namespace entrain {

// The number of ranks determines the padding of the parameters, and may change later.
absl::Status ChannelBuffers::Allocate(int ranks) {
  const DType params = options_.params_dtype, wire = options_.wire_dtype;
  const int most_ranks = options_.admit == Admit::kExchange ? kMostChannelRanks : ranks;
  const int64_t most = options_.ranks_change() ? options_.count + most_ranks - 1
                                               : (options_.count + ranks - 1) / ranks * ranks;
  if (keeps()) {
    ENTRAIN_ASSIGN_OR_RETURN(kept_, OwnedBuffer::Allocate(most * SizeOf(wire)));
  }
  ENTRAIN_ASSIGN_OR_RETURN(com_,
                           OwnedBuffer::Allocate(most * std::max(SizeOf(params), SizeOf(wire))));
  return absl::OkStatus();
}

void ChannelBuffers::Take(const OwnedBuffer& accumulator, bool spent, const SlabLayer& layer) {
  const int64_t element = SizeOf(options_.wire_dtype), bytes = options_.count * element;
  const int64_t padded = keeps() ? kept_.size() : layer.padded * element;
  SharedKernels().cast(taken(), options_.wire_dtype, accumulator.data(), options_.grads_dtype,
                       options_.count);
  ZeroShared(taken() + bytes, padded - bytes);
  if (spent) {
    ZeroShared(accumulator.data(), accumulator.size());
  }
}

void ChannelBuffers::ClearPadding(const SlabLayer& layer) const {
  const int64_t element = SizeOf(options_.wire_dtype), bytes = options_.count * element;
  ZeroShared(taken() + bytes, layer.padded * element - bytes);
}

void ChannelBuffers::Publish() const {
  CopyShared(options_.params, com(), ParamsBytes());
}

Call ChannelBuffers::Gradients(const SlabLayer& layer) const {
  const int64_t element = SizeOf(options_.wire_dtype);
  Call scatter;
  scatter.kind = CallKind::kReduceScatter;
  scatter.dtype = options_.wire_dtype;
  scatter.count = layer.shard;
  scatter.in = {taken(), layer.padded * element};
  scatter.out = {com() + layer.first * element, layer.shard * element};
  return scatter;
}

Call ChannelBuffers::Parameters(const SlabLayer& layer) const {
  const int64_t element = SizeOf(options_.params_dtype);
  Call gather;
  gather.kind = CallKind::kAllGather;
  gather.dtype = options_.params_dtype;
  gather.count = layer.shard;
  gather.in = {com() + layer.first * element, layer.shard * element};
  gather.out = {com(), layer.padded * element};
  return gather;
}

}  // namespace entrain
