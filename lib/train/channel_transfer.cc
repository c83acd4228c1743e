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

// Returns the bytes of a member's old shard with its state. Old shards are larger than new ones,
// because fewer ranks had them.
int64_t BytesOfLargestShard(const ChannelCut& after, size_t members) {
  const auto ranks = static_cast<int64_t>(members);
  const int64_t elements = (after.layer().full + ranks - 1) / ranks;
  return elements * static_cast<int64_t>(after.own().Arrays().size() * sizeof(float));
}

// Collective. The members' old shards and all ranks' new shards must have the same hash.
absl::Status CompareShards(const EnlargedWorld& enlarged, const ChannelCut* before,
                           const ChannelCut& after) {
  using Hashes = std::array<uint64_t, 2>;  // before, after
  const int64_t limit_ns =
      HashLimit(kAdmissionNs, 2 * BytesOfLargestShard(after, enlarged.parties.donors.size()));
  WorkerThread::Doing("newcomers: hashes of the shards", 2 * limit_ns);
  const Hashes mine = {before == nullptr ? 0 : before->Hash(), after.Hash()};
  std::vector<Hashes> all(enlarged.places.size());
  ENTRAIN_RETURN_IF_ERROR(enlarged.sync->AllGather(mine.data(), all.data(), mine.size(),
                                                   DType::kU64, TimedCall(limit_ns, -1, true)));
  Hashes sums = {};
  for (const Hashes& one : all) {
    sums = {sums[0] + one[0], sums[1] + one[1]};
  }
  // If the hashes differ, any rank may be at fault. So the newcomers may apply again.
  return sums[0] == sums[1]
             ? absl::OkStatus()
             : absl::AbortedError(absl::StrFormat(
                   "newcomers: the members' shards have hash %016x, and %016x after they were cut "
                   "for %d ranks",
                   sums[0], sums[1], all.size()));
}

// Collective. Returns the first error of any rank, so that a rank with an error does not leave the
// others waiting in the next call.
absl::Status AllAreWell(const EnlargedWorld& enlarged, const absl::Status& mine) {
  int64_t step = 0;
  const absl::Status all = CompareOutcomes(
      *enlarged.sync, static_cast<int>(enlarged.parties.donors.size()), mine, &step);
  return mine.ok() ? all : mine;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChannelCut>> ShareChannel(const EnlargedWorld& enlarged,
                                                         const ChannelOptions& options,
                                                         const ChannelCut* before, Bytes params,
                                                         ChannelTotals* totals) {
  const std::vector<TransferItem> items = {
      {.name = "numbers", .bytes = Bytes(reinterpret_cast<std::byte*>(totals), sizeof(*totals))},
      {.name = "parameters", .bytes = params}};
  std::vector<int> numbers;
  for (const ReplicaPlace& place : enlarged.places) {
    numbers.push_back(place.replica);
  }
  auto made = ChannelCut::Make(enlarged.world, options, std::move(numbers));
  absl::Status mine = made.status();
  mine.Update(TransferState(*enlarged.sync, enlarged.parties, items, kAdmissionNs));
  ENTRAIN_RETURN_IF_ERROR(AllAreWell(enlarged, mine));
  std::unique_ptr<ChannelCut> after = *std::move(made);
  std::vector<int> holders(enlarged.parties.donors.size());  // each member has its own shard
  std::iota(holders.begin(), holders.end(), 0);
  ENTRAIN_RETURN_IF_ERROR(after->TakeFrom(before, holders, kAdmissionNs));
  ENTRAIN_RETURN_IF_ERROR(CompareShards(enlarged, before, *after));
  return after;
}

}  // namespace entrain
