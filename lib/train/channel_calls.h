// The collective calls on the buffers of a gradient channel's rounds. On the host a call blocks. On
// a device a call is only enqueued on the channel's own stream, and Settle waits for it:
//
//   host     Run(gradients) | step | Run(parameters)
//   device   Run(gradients) | step | Run(parameters)            these only enqueue
//                                                    Settle     waits for both calls
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "lib/base/call.h"
#include "lib/comm/communicator.h"
#include "lib/train/channel_buffers.h"
#include "lib/train/channel_progress.h"
#include "lib/train/gradient_channel_options.h"
#include "lib/train/slab.h"

namespace entrain {

class ChannelCalls {
 public:
  // Tags of those collectives of a round that may be under way at the same time.
  static constexpr int64_t kCountsTag = 0, kDataTag = 1;

  // All arguments must outlive the object. `progress` tells the number of the round, which is part
  // of the steps' names and of errors.
  ChannelCalls(const ChannelOptions& options, const ChannelBuffers& buffers,
               const ChannelProgress& progress)
      : options_(options), buffers_(buffers), progress_(progress) {}

  // Collective, on a device only. Runs the calls that carry a round's data once, on arbitrary data.
  // Calls allocate their memory when they run for the first time, and no thread should have to
  // allocate while a stream waits for a call. Must be called while no stream waits.
  absl::Status WarmUp(Communicator& comm, const SlabLayer& layer) const;

  // Returns the call that sums the gradients and leaves each rank its shard of the sum.
  Call Gradients(const SlabLayer& layer) const;
  // Returns the call that gathers the parameters in place.
  Call Parameters(const SlabLayer& layer) const;
  // Returns the options of the calls that carry a round's data.
  CallOptions Options(bool on_stream = true) const;

  // Names the next step of the worker's job, with the number of the round under way.
  void Doing(const char* what) const;
  // Runs the call with Options, or enqueues it on a device. `what` names the call in errors.
  absl::Status Run(const char* what, Communicator& comm, Call call);
  // Waits for the calls that Run has enqueued.
  absl::Status Settle();

 private:
  struct Enqueued {
    const char* what;
    RefPtr<Work> work;
  };

  const ChannelOptions& options_;
  const ChannelBuffers& buffers_;
  const ChannelProgress& progress_;
  std::vector<Enqueued> enqueued_;
};

}  // namespace entrain
