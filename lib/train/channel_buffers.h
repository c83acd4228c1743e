// The memory of a gradient channel's rounds, and the stream on which rounds work on this memory.
// A round needs one buffer, com. The buffer first holds this rank's gradients, then the sums of a
// shard, then the parameters. With on_loss finish the gradients stay in a second array, kept.
//
//   caller's stream   accumulator --Take--> com, or kept        com --Publish--> caller's parameters
//   own stream                              the round's calls and its step
//
// Without a device, all functions run at once, and there are no streams.
//
// Thread safety: one thread at a time, except bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"

#include "lib/base/bytes.h"
#include "lib/device/arrays.h"
#include "lib/train/gradient_channel_options.h"
#include "lib/train/own_stream.h"
#include "lib/train/slab.h"

namespace entrain {

class ChannelBuffers {
 public:
  // `options` have been checked and must outlive the object.
  explicit ChannelBuffers(const ChannelOptions& options) : options_(options) {}

  // Allocates the arrays of all parameters, and their padding for `ranks` ranks. With on_loss finish
  // there is room for the padding of fewer ranks, with admit for any number of ranks.
  absl::Status Allocate(int ranks);
  // Copies gradients to taken() on the caller's stream, and clears the accumulator if they are
  // spent. Clears the padding that follows the gradients: that of `layer`, or with on_loss finish the
  // whole rest of the array.
  absl::Status Take(const PlacedArray& accumulator, bool spent, const SlabLayer& layer);
  // Clears the padding of the gradients that were taken. Used if `layer` is of a new cut.
  void ClearPadding(const SlabLayer& layer) const;
  // Copies com to the caller's parameters, in the order of the caller's stream.
  absl::Status Publish();
  // Copies com to the caller's parameters on the object's own stream. Later work on the caller's
  // stream waits for the copy.
  absl::Status PublishOnOwn();

  OwnStream& own() const { return *own_; }
  bool on_device() const { return options_.at.device != nullptr; }
  std::byte* com() const { return com_.data(); }
  // Returns the gradients that were taken.
  std::byte* taken() const { return array().data(); }
  // Returns the caller's parameters.
  Bytes params() const {
    return {static_cast<std::byte*>(options_.params), static_cast<size_t>(ParamsBytes())};
  }
  int64_t bytes() const { return com_.size() + kept_.size(); }

 private:
  const PlacedArray& array() const { return keeps() ? kept_ : com_; }
  bool keeps() const { return options_.on_loss == OnLoss::kFinish; }
  int64_t ParamsBytes() const { return options_.count * SizeOf(options_.params_dtype); }

  const ChannelOptions& options_;
  std::unique_ptr<OwnStream> own_;
  PlacedArray com_;
  PlacedArray kept_;  // with on_loss finish: the gradients that were taken
};

}  // namespace entrain
