#include "lib/train/channel_transfer.h"

#include <array>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"

#include "lib/base/status.h"
#include "lib/train/state_transfer.h"
#include "lib/train/timed_call.h"
#include "lib/train/worker_thread.h"

namespace entrain {
namespace {

// Collective. The members' old shards and all ranks' new shards must have the same hash.
absl::Status CompareShards(const EnlargedWorld& enlarged, const ChannelCut* before,
                           const ChannelCut& after) {
  using Hashes = std::array<uint64_t, 2>;  // before, after
  const Hashes mine = {before == nullptr ? 0 : before->Hash(), after.Hash()};
  std::vector<Hashes> all(enlarged.places.size());
  WorkerThread::Doing("newcomers: hashes of the shards", kAdmissionNs);
  ENTRAIN_RETURN_IF_ERROR(enlarged.sync->AllGather(mine.data(), all.data(), mine.size(),
                                                   DType::kU64, TimedCall(kAdmissionNs, -1, true)));
  Hashes sums = {};
  for (const Hashes& one : all) {
    sums = {sums[0] + one[0], sums[1] + one[1]};
  }
  return sums[0] == sums[1]
             ? absl::OkStatus()
             : absl::DataLossError(absl::StrFormat(
                   "newcomers: the members' shards have hash %016x, and %016x after they were cut "
                   "for %d ranks",
                   sums[0], sums[1], all.size()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChannelCut>> ShareChannel(const EnlargedWorld& enlarged,
                                                         const ChannelOptions& options,
                                                         const ChannelCut* before, Bytes params,
                                                         ChannelTotals* totals) {
  const std::vector<TransferItem> items = {
      {.name = "numbers", .bytes = Bytes(reinterpret_cast<std::byte*>(totals), sizeof(*totals))},
      {.name = "parameters", .bytes = params}};
  ENTRAIN_RETURN_IF_ERROR(TransferState(*enlarged.sync, enlarged.parties, items, kAdmissionNs));
  std::vector<int> numbers;
  for (const ReplicaPlace& place : enlarged.places) {
    numbers.push_back(place.replica);
  }
  ENTRAIN_ASSIGN_OR_RETURN(auto after,
                           ChannelCut::Make(enlarged.world, options, std::move(numbers)));
  std::vector<int> holders(enlarged.parties.donors.size());  // each member has its own shard
  std::iota(holders.begin(), holders.end(), 0);
  ENTRAIN_RETURN_IF_ERROR(after->TakeFrom(before, holders, kAdmissionNs));
  ENTRAIN_RETURN_IF_ERROR(CompareShards(enlarged, before, *after));
  return after;
}

}  // namespace entrain
