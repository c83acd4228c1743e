#include "lib/train/channel_calls.h"

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/train/timed_call.h"
#include "lib/train/worker.h"

namespace entrain {

Call ChannelCalls::Gradients(const SlabLayer& layer) const {
  const int64_t element = SizeOf(options_.wire_dtype);
  Call scatter;
  scatter.kind = CallKind::kReduceScatter;
  scatter.dtype = options_.wire_dtype;
  scatter.count = layer.shard;
  scatter.in = {buffers_.taken(), layer.padded * element};
  scatter.out = {buffers_.com() + layer.first * element, layer.shard * element};
  return scatter;
}

Call ChannelCalls::Parameters(const SlabLayer& layer) const {
  const int64_t element = SizeOf(options_.params_dtype);
  Call gather;
  gather.kind = CallKind::kAllGather;
  gather.dtype = options_.params_dtype;
  gather.count = layer.shard;
  gather.in = {buffers_.com() + layer.first * element, layer.shard * element};
  gather.out = {buffers_.com(), layer.padded * element};
  return gather;
}

CallOptions ChannelCalls::Options() const {
  return TimedCall(options_.timeout_ns, kDataTag, true);
}

void ChannelCalls::Doing(const char* what) const {
  Worker::Doing(absl::StrCat("round ", progress_.rounds() + 1, ": ", what));
}

absl::Status ChannelCalls::Run(const char* what, Communicator& comm, Call call) const {
  call.options = Options();
  return Annotate(comm.Run(call), what);
}

}  // namespace entrain
