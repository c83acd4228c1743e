// The shards of a gradient channel on this rank: its own shard and, with on_loss finish, a copy of
// the left neighbour's shard. The left neighbour sends its sum of gradients to this rank. Then both
// ranks make the same step on the neighbour's shard. This costs fewer bytes than sending masters
// and moments.
//
//   ranks        0      1      2      3        right neighbour of rank 3: rank 0
//   own shard    0      1      2      3
//   copy         3      0      1      2
//   rank 2 lost: 0 3    1 0           3 2      all shards are left; they are cut into three
//
// To give newcomers shards, all shards are cut for more ranks.
//
// Thread safety: one thread at a time, except comm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "lib/base/call.h"
#include "lib/comm/communicator.h"
#include "lib/device/arrays.h"
#include "lib/train/commit_plan.h"
#include "lib/train/gradient_channel_options.h"
#include "lib/train/shard_step.h"
#include "lib/train/slab.h"

namespace entrain {

// A checksum of the masters of a rank's own shard, and one of its copy.
struct ShardSums {
  uint64_t own = 0, copy = 0;
};

class ChannelCut {
 public:
  // `options` have been checked and must outlive the object. `members` has, by rank of `comm`, the
  // rank's number in the channel: the first ranks are numbered from 0, newcomers after them.
  // Allocates the shards.
  static absl::StatusOr<std::unique_ptr<ChannelCut>> Make(std::shared_ptr<Communicator> comm,
                                                          const ChannelOptions& options,
                                                          std::vector<int> members);

  const std::shared_ptr<Communicator>& comm() const { return comm_; }
  const std::vector<int>& members() const { return members_; }
  const Slab& slab() const { return slab_; }
  const SlabLayer& layer() const { return slab_.layer(0); }
  ShardStep& own() { return own_; }
  const ShardStep& own() const { return own_; }
  // Returns true if the rank has a copy: on_loss is finish, and there are other ranks.
  bool has_copy() const { return copy_ != nullptr; }
  int64_t bytes() const;

  // Initialises both shards from the parameters, see ShardStep::Start. Must be called inside
  // ComputeAt.
  void Start(const std::byte* params);
  // Collective. Sends this rank's sum of gradients, which lies in `com`, to the right neighbour,
  // and receives the left neighbour's sum. Does nothing if this rank has no copy.
  absl::Status ExchangeSums(const std::byte* com);
  // Makes the commit of the left neighbour with the sum that ExchangeSums has received. Uses only
  // the number of micro-batches and the clip factor of `sum`, not its data.
  absl::Status CommitCopy(const GradientSum& sum, const StepTime& t);
  // Collective. Replaces the copy by the left neighbour's shard. Does nothing if this rank has no
  // copy. `limit_ns` is as in TakeFrom.
  absl::Status RenewCopy(int64_t limit_ns = 0);
  // Collective over the ranks of this cut. Receives the shards of this cut from the ranks that hold
  // the shards of the previous cut. `before` is the previous cut, or null on a newcomer. `holders`
  // has, for each shard of the previous cut, the rank of this cut that holds it. `limit_ns` limits
  // each call, not counting the time for its data. If it is 0, the option timeout_ns limits each
  // call.
  absl::Status TakeFrom(const ChannelCut* before, absl::Span<const int> holders,
                        int64_t limit_ns = 0);
  // Returns a hash of the own shard's masters and state. A change of one bit changes the hash. The
  // sum of the hashes of all shards does not depend on the cut.
  uint64_t Hash() const;
  // Returns the checksums of the masters as of their last change.
  const ShardSums& sums() const { return sums_; }

 private:
  ChannelCut(std::shared_ptr<Communicator> comm, const ChannelOptions& options,
             std::vector<int> members, Slab slab, Slab left);
  absl::Status Allocate();
  CallOptions Limited(const char* doing, int64_t tag, int64_t limit_ns, int64_t bytes) const;
  absl::Status Pass(const void* mine, void* theirs, int64_t count, DType dtype,
                    int64_t limit_ns = 0);
  absl::Status MoveArray(const ChannelCut* before, absl::Span<const ShardMove> moves, size_t array,
                         int64_t limit_ns);
  void AddUp();

  const std::shared_ptr<Communicator> comm_;
  const ChannelOptions& options_;
  const std::vector<int> members_;
  const Slab slab_, left_;  // the slabs of this rank and of its left neighbour
  ShardStep own_;
  std::unique_ptr<ShardStep> copy_;
  PlacedArray sum_;  // the sum of gradients of the left neighbour
  ShardSums sums_;
};

}  // namespace entrain
