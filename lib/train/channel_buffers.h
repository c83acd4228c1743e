// The memory of a gradient channel's rounds, and the stream on which rounds work on this memory. A
// round needs one buffer, com. At first com contains this rank's gradients. Later it contains the
// sums of a shard, and then the parameters. With on_loss finish, the gradients stay in a second
// array, kept.
//
//   caller's stream   accumulator --Take--> com, or kept       com --Publish--> caller's parameters
//   own stream                              the round's calls and its step
//
// On the host there are no streams, and a function returns when its work is done.
//
// Thread safety: one thread at a time. Any thread may call bytes.
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
  // `options` must have been checked, and must outlive the object.
  explicit ChannelBuffers(const ChannelOptions& options) : options_(options) {}

  // Allocates the arrays, with the padding for `ranks` ranks. With on_loss finish, the padding is
  // also sufficient for fewer ranks. With admit, it is sufficient for up to kMostChannelRanks
  // ranks.
  absl::Status Allocate(int ranks);
  // Copies the gradients in `accumulator` to taken(), on the caller's stream. Later work on the
  // object's own stream waits for the copy. If `spent` is true, also clears the accumulator. Clears
  // the padding after the gradients: with on_loss finish the whole rest of the array, otherwise the
  // padding of `layer`.
  absl::Status Take(const PlacedArray& accumulator, bool spent, const SlabLayer& layer);
  // Clears the padding after the gradients in taken(). Must be called if the partition has changed
  // since Take. `layer` describes the new partition.
  void ClearPadding(const SlabLayer& layer) const;
  // Copies com to the caller's parameters, on the caller's stream. The copy waits for the earlier
  // work on the object's own stream.
  absl::Status Publish();
  // Copies com to the caller's parameters on the object's own stream. Later work on the caller's
  // stream waits for the copy.
  absl::Status PublishOnOwn();

  OwnStream& own() const { return *own_; }
  bool on_device() const { return options_.at.device != nullptr; }
  std::byte* com() const { return com_.data(); }
  // Returns the copy of the gradients that Take has made.
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
  PlacedArray kept_;  // with on_loss finish: the gradients that Take has copied
};

}  // namespace entrain
