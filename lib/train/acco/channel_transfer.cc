#include "lib/train/acco/channel_transfer.h"

#include <array>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/train/elastic/state_transfer.h"
#include "lib/train/worker/timed_call.h"
#include "lib/train/worker/worker.h"

namespace entrain {
namespace {

// Returns the size in bytes of a member's old shard with its optimizer state. A new shard is
// smaller, because more ranks share the parameters.
int64_t BytesOfLargestShard(const ChannelCut& after, size_t members) {
  const auto ranks = static_cast<int64_t>(members);
  const int64_t elements = (after.layer().full + ranks - 1) / ranks;
  return elements * static_cast<int64_t>(after.own().Arrays().size() * sizeof(float));
}

// Collective. Checks that the old shards of the members have the same hash as the new shards of all
// ranks.
absl::Status CompareShards(const EnlargedWorld& enlarged, const ChannelCut* before,
                           const ChannelCut& after) {
  using Hashes = std::array<uint64_t, 2>;  // before, after
  const int64_t limit_ns =
      HashLimit(kAdmissionNs, 2 * BytesOfLargestShard(after, enlarged.parties.donors.size()));
  Worker::Doing("newcomers: hashes of the shards", 2 * limit_ns);
  const Hashes mine = {before == nullptr ? 0 : before->Hash(), after.Hash()};
  std::vector<Hashes> all(enlarged.places.size());
  ENTRAIN_RETURN_IF_ERROR(enlarged.sync->AllGather(mine.data(), all.data(), mine.size(),
                                                   DType::kU64, TimedCall(limit_ns, -1, true)));
  Hashes sums = {};
  for (const Hashes& one : all) {
    sums = {sums[0] + one[0], sums[1] + one[1]};
  }
  // If the hashes differ, any rank may be at fault. Therefore the error is kAborted, after which
  // newcomers apply again.
  return sums[0] == sums[1]
             ? absl::OkStatus()
             : absl::AbortedError(absl::StrFormat(
                   "newcomers: the members' shards have hash %016x, and %016x after they were cut "
                   "for %d ranks",
                   sums[0], sums[1], all.size()));
}

// Collective. Returns this rank's error, or else the first error of another rank. So if one rank
// has an error, no rank waits for it in the next call.
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
  const int64_t begun_ns = Clock::Real().Now();
  mine.Update(TransferState(*enlarged.sync, enlarged.parties, items, kAdmissionNs));
  // The shards of masters and moments are a few times as large as the parameters.
  const int64_t shards_ns = kAdmissionNs + 8 * (Clock::Real().Now() - begun_ns);
  ENTRAIN_RETURN_IF_ERROR(AllAreWell(enlarged, mine));
  std::unique_ptr<ChannelCut> after = *std::move(made);
  std::vector<int> holders(enlarged.parties.donors.size());  // each member sends its own shard
  std::iota(holders.begin(), holders.end(), 0);
  ENTRAIN_RETURN_IF_ERROR(after->TakeFrom(before, holders, shards_ns));
  ENTRAIN_RETURN_IF_ERROR(CompareShards(enlarged, before, *after));
  return after;
}

}  // namespace entrain
