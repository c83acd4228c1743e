// A partition ("cut") of a gradient channel's parameters into shards. The object has the shards of
// this rank: its own shard and, with on_loss finish, a copy of the left neighbour's shard. To keep
// the copy equal, the left neighbour sends its sum of gradients to this rank. Then both ranks make
// the same step on the neighbour's shard. A sum of gradients has fewer bytes than master parameters
// and moments.
//
//   ranks        0      1      2      3        right neighbour of rank 3: rank 0
//   own shard    0      1      2      3
//   copy         3      0      1      2
//   rank 2 lost: 0 3    1 0           3 2      no shard is lost; a new partition has 3 shards
//
// If newcomers join, a new partition has more shards.
//
// Thread safety: one thread at a time. Any thread may call comm.
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
#include "lib/memory/buffer.h"
#include "lib/train/acco/commit_plan.h"
#include "lib/train/acco/gradient_channel_options.h"
#include "lib/train/acco/shard_step.h"
#include "lib/train/shard/slab.h"

namespace entrain {

// Checksums of the master parameters: of the own shard, and of the copy of the left neighbour's
// shard.
struct ShardSums {
  uint64_t own = 0, copy = 0;
};

class ChannelCut {
 public:
  // Allocates the shards. `options` must have been checked, and must outlive the object. `members`
  // has, by rank of `comm`, the rank's number in the channel. The initial ranks are numbered from
  // 0. Newcomers get higher numbers.
  static absl::StatusOr<std::unique_ptr<ChannelCut>> Make(std::shared_ptr<Communicator> comm,
                                                          const ChannelOptions& options,
                                                          std::vector<int> members);

  const std::shared_ptr<Communicator>& comm() const { return comm_; }
  const std::vector<int>& members() const { return members_; }
  const Slab& slab() const { return slab_; }
  const SlabLayer& layer() const { return slab_.layer(0); }
  ShardStep& own() { return own_; }
  const ShardStep& own() const { return own_; }
  // Returns true if this rank has a copy, that is, if on_loss is finish and there are other ranks.
  bool has_copy() const { return copy_ != nullptr; }
  int64_t bytes() const;

  // Initialises the own shard and the copy from the parameters (ShardStep::Start).
  void Start(const std::byte* params);
  // Collective. Sends this rank's sum of gradients, which is in `com`, to the right neighbour.
  // Receives the sum of the left neighbour. Does nothing if this rank has no copy.
  absl::Status ExchangeSums(const std::byte* com);
  // Makes the left neighbour's commit on the copy, with the sum that ExchangeSums has received.
  // Uses only the number of micro-batches and the clip factor of `sum`, not its data.
  absl::Status CommitCopy(const GradientSum& sum, const StepTime& t);
  // Collective. Receives the copy again from the left neighbour. Does nothing if this rank has no
  // copy. `limit_ns` has the same meaning as in TakeFrom.
  absl::Status RenewCopy(int64_t limit_ns = 0);
  // Collective over the ranks of this partition. Receives this rank's shards from the ranks that
  // hold the shards of the previous partition. `before` is the previous partition, or null on a
  // newcomer. `holders` has, for each shard of the previous partition, the rank of this partition
  // that sends the shard. `limit_ns` is the time limit of each call, plus time for its data. If
  // `limit_ns` is 0, the limit is the option timeout_ns.
  absl::Status TakeFrom(const ChannelCut* before, absl::Span<const int> holders,
                        int64_t limit_ns = 0);
  // Returns a hash of the own shard: its master parameters and optimizer state. A change of one bit
  // changes the hash. The sum of the hashes of all shards is the same for every partition.
  uint64_t Hash() const;
  // Returns the checksums of the master parameters as of their last change.
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
  OwnedBuffer sum_;  // the left neighbour's sum of gradients
  ShardSums sums_;
};

}  // namespace entrain
