// The collective calls on the buffers of a gradient channel's rounds. On the host, Run blocks until
// the call is over. On a device, Run only enqueues the call on the channel's own stream, and Settle
// waits for it:
//
//   host     Run(gradients) | step | Run(parameters)
//   device   Run(gradients) | step | Run(parameters)            only enqueued
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
  // Tags of the collectives of a round. Calls with different tags may be under way at the same
  // time.
  static constexpr int64_t kCountsTag = 0, kDataTag = 1;

  // All arguments must outlive the object. `progress` has the number of the round, which becomes
  // part of error messages and of the names of steps (WorkerThread::Doing).
  ChannelCalls(const ChannelOptions& options, const ChannelBuffers& buffers,
               const ChannelProgress& progress)
      : options_(options), buffers_(buffers), progress_(progress) {}

  // Collective. Must be called on a device only, while no stream waits for a call. Runs the calls
  // of Gradients and Parameters once, on arbitrary data, because a call allocates its memory when
  // it runs for the first time. Later, no thread should allocate device memory while a stream waits
  // for a call.
  absl::Status WarmUp(Communicator& comm, const SlabLayer& layer) const;

  // Returns the reduce-scatter that sums the gradients. Each rank receives its shard of the sums.
  Call Gradients(const SlabLayer& layer) const;
  // Returns the all-gather of the parameters. It works in place.
  Call Parameters(const SlabLayer& layer) const;
  // Returns the options for the calls of Gradients and Parameters.
  CallOptions Options(bool on_stream = true) const;

  // Names the next step of the worker's job (WorkerThread::Doing). The name includes the number of
  // the round under way.
  void Doing(const char* what) const;
  // On the host, runs the call. On a device, enqueues the call. `what` names the call in errors.
  absl::Status Run(const char* what, Communicator& comm, Call call);
  // Waits for the calls that Run has enqueued. Returns the first error.
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
