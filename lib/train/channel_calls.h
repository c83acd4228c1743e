// The collective calls on the buffers of a gradient channel's rounds.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>

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
  // part of error messages and of the names of steps (Worker::Doing).
  ChannelCalls(const ChannelOptions& options, const ChannelBuffers& buffers,
               const ChannelProgress& progress)
      : options_(options), buffers_(buffers), progress_(progress) {}

  // Returns the reduce-scatter that sums the gradients. Each rank receives its shard of the sums.
  Call Gradients(const SlabLayer& layer) const;
  // Returns the all-gather of the parameters. It works in place.
  Call Parameters(const SlabLayer& layer) const;
  // Returns the options for the calls of Gradients and Parameters.
  CallOptions Options() const;

  // Names the next step of the worker's job (Worker::Doing). The name includes the number of
  // the round under way.
  void Doing(const char* what) const;
  // Runs the call. `what` names it in errors.
  absl::Status Run(const char* what, Communicator& comm, Call call) const;

 private:
  const ChannelOptions& options_;
  const ChannelBuffers& buffers_;
  const ChannelProgress& progress_;
};

}  // namespace entrain
