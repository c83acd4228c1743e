#include "lib/train/channel_calls.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/train/timed_call.h"
#include "lib/train/worker_thread.h"

namespace entrain {

absl::Status ChannelCalls::WarmUp(Communicator& comm, const SlabLayer& layer) const {
  for (Call call : {Gradients(layer), Parameters(layer)}) {
    call.options = Options(/*on_stream=*/false);
    ENTRAIN_RETURN_IF_ERROR(Annotate(comm.Run(call), "warm-up call"));
  }
  // Reserves memory for two calls, because the second call may begin before the first is over. If
  // the element sizes of the two calls differ, the larger size counts.
  Call wider = SizeOf(options_.params_dtype) >= SizeOf(options_.wire_dtype) ? Parameters(layer)
                                                                            : Gradients(layer);
  wider.options = Options();
  return comm.Reserve(wider, 2);
}

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

// On a device the calls have no tag, because only calls without a tag may use every path for device
// memory (lib/comm/device_calls.h).
CallOptions ChannelCalls::Options(bool on_stream) const {
  const bool on_device = buffers_.on_device();
  CallOptions options = TimedCall(options_.timeout_ns, on_device ? -1 : kDataTag, true);
  options.device = on_device;
  options.on_stream = on_device && on_stream;
  options.stream = options.on_stream ? buffers_.own().at().stream : nullptr;
  return options;
}

void ChannelCalls::Doing(const char* what) const {
  WorkerThread::Doing(absl::StrCat("round ", progress_.rounds() + 1, ": ", what));
}

absl::Status ChannelCalls::Run(const char* what, Communicator& comm, Call call) {
  call.options = Options();
  if (!buffers_.on_device()) {
    return Annotate(comm.Run(call), what);
  }
  auto work = comm.Start(call);
  if (work.ok()) {
    enqueued_.push_back({what, *std::move(work)});
  }
  return Annotate(work.status(), what);
}

absl::Status ChannelCalls::Settle() {
  absl::Status status;
  for (const Enqueued& one : std::exchange(enqueued_, {})) {
    WorkerThread::Doing(absl::StrCat("round ", progress_.rounds(), ": ", one.what));
    one.work->Wait(Deadline::Never(), true);  // the call has a deadline of its own
    status.Update(Annotate(one.work->status(), one.what));
  }
  return Annotate(status, absl::StrCat("acco: round ", progress_.rounds()));
}

}  // namespace entrain
