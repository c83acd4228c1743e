// The memory of a gradient channel's rounds. A round needs one buffer, com. At first com contains
// this rank's gradients. Later it contains the sums of a shard, and then the parameters. With
// on_loss finish, the gradients stay in a second array, kept.
//
//   caller   accumulator --Take--> com, or kept       com --Publish--> caller's parameters
//   worker                         the round's calls and its step
//
// Thread safety: one thread at a time. Any thread may call bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "lib/base/bytes.h"
#include "lib/base/call.h"
#include "lib/memory/buffer.h"
#include "lib/train/acco/gradient_channel_options.h"
#include "lib/train/shard/slab.h"

namespace entrain {

class ChannelBuffers {
 public:
  // `options` must have been checked, and must outlive the object.
  explicit ChannelBuffers(const ChannelOptions& options) : options_(options) {}

  // Allocates the arrays, with the padding for `ranks` ranks. With on_loss finish, the padding is
  // also sufficient for fewer ranks. With admit, it is sufficient for up to kMostChannelRanks
  // ranks.
  absl::Status Allocate(int ranks);
  // Copies the gradients in `accumulator` to taken(). If `spent` is true, also clears the
  // accumulator. Clears the padding after the gradients: with on_loss finish the whole rest of the
  // array, otherwise the padding of `layer`.
  void Take(const OwnedBuffer& accumulator, bool spent, const SlabLayer& layer);
  // Clears the padding after the gradients in taken(). Must be called if the partition has changed
  // since Take. `layer` describes the new partition.
  void ClearPadding(const SlabLayer& layer) const;
  // Returns the reduce-scatter that sums the gradients. Each rank receives its shard of the sums.
  Call Gradients(const SlabLayer& layer) const;
  // Returns the all-gather of the parameters. It works in place.
  Call Parameters(const SlabLayer& layer) const;
  // Copies com to the caller's parameters.
  void Publish() const;

  std::byte* com() const { return com_.data(); }
  // Returns the copy of the gradients that Take has made.
  std::byte* taken() const { return array().data(); }
  // Returns the caller's parameters.
  Bytes params() const {
    return {static_cast<std::byte*>(options_.params), static_cast<size_t>(ParamsBytes())};
  }
  int64_t bytes() const { return com_.size() + kept_.size(); }

 private:
  const OwnedBuffer& array() const { return keeps() ? kept_ : com_; }
  bool keeps() const { return options_.on_loss == OnLoss::kFinish; }
  int64_t ParamsBytes() const { return options_.count * SizeOf(options_.params_dtype); }

  const ChannelOptions& options_;
  OwnedBuffer com_;
  OwnedBuffer kept_;  // with on_loss finish: the gradients that Take has copied
};

}  // namespace entrain
