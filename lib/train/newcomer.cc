#include "lib/train/newcomer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/comm/runtime.h"
#include "lib/train/timed_call.h"

namespace entrain {
namespace {

// Returns true if a newcomer that got this error must not apply again: its options differ, or its
// replica does not fit.
bool IsFinal(const absl::Status& status) {
  return status.code() == absl::StatusCode::kDataLoss ||
         status.code() == absl::StatusCode::kInvalidArgument;
}

}  // namespace

// Returns a number that the ranks of this replica have, and no others.
absl::StatusOr<uint64_t> Newcomer::Group() {
  const PeerId& id = parts_.own.runtime().id();
  uint64_t group = 0;
  std::memcpy(&group, id.data(), std::min(sizeof(group), id.size()));
  ENTRAIN_RETURN_IF_ERROR(parts_.own.Broadcast(&group, 1, DType::kU64, /*root=*/0));
  return group;
}

absl::StatusOr<Newcomer::Joined> Newcomer::Join(int64_t wait_ns) {
  ENTRAIN_ASSIGN_OR_RETURN(const uint64_t group, Group());
  const int64_t limit_ns =
      parts_.options.timeout_ns > 0 ? parts_.options.timeout_ns : parts_.own.timeout_ns();
  const Deadline until = Deadline::After(wait_ns > 0 ? wait_ns : limit_ns);
  ENTRAIN_ASSIGN_OR_RETURN(const auto store, parts_.options.admit_store({until}));
  if (!parts_.exchange.anchors().exist()) {
    ENTRAIN_RETURN_IF_ERROR(parts_.exchange.CreateAnchors());
  }
  absl::Status last;
  while (true) {
    const int64_t left_ns = std::max<int64_t>(until.at_ns - Clock::Real().Now(), 1);
    auto world = parts_.own.JoinOther(store, parts_.options.admit_name, left_ns);
    if (!world.ok()) {
      return last.ok() ? world.status()
                       : Annotate(world.status(),
                                  absl::StrCat("after an attempt (", last.message(), ")"));
    }
    auto joined = Attempt(*world, group, limit_ns);
    if (joined.ok()) {
      return joined;
    }
    last = joined.status();
    (*world)->EndWith(absl::AbortedError(last.message()));
    if (IsFinal(last)) {
      return last;
    }
    ENTRAIN_LOG(kInfo, "edit: joining: applying again: ", last.message());
  }
}

absl::Status Newcomer::Receive(const EnlargedWorld& enlarged) {
  StateList list(parts_.slab, CheckpointKind::kPortable);
  const std::vector<TransferItem> items =
      StateInCommon(parts_.exchange, parts_.slab, parts_.live, &list);
  ENTRAIN_RETURN_IF_ERROR(TransferState(*enlarged.sync, enlarged.parties, items, kAdmissionNs));
  parts_.exchange.Adopt(/*live=*/true);
  // Hashes of items do not find an anchor that has changed in the memory of all members since it was
  // sealed.
  const auto slot = static_cast<size_t>(enlarged.mine().slot);
  for (size_t rank = 0; rank < enlarged.cards.size(); ++rank) {
    const AdmissionCard& card = enlarged.cards[rank];
    const uint64_t own = parts_.exchange.anchors().checksum();
    if (card.replica >= 0 && static_cast<size_t>(card.slot) == slot &&
        card.anchor_checksum != own) {
      return absl::DataLossError(
          absl::StrFormat("newcomers: anchors differ: checksum %016x on replica %d, %016x received",
                          card.anchor_checksum, card.replica, own));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Newcomer::Joined> Newcomer::Attempt(std::shared_ptr<Communicator> world,
                                                   uint64_t group, int64_t limit_ns) {
  const AdmissionCard mine = {
      .slot = parts_.own.rank(), .slots = parts_.own.size(), .group = group};
  Joined joined;
  auto met = MeetNewcomers(world, mine, alike_);
  absl::Status status = met.status();
  int members = 0;
  if (met.ok()) {
    joined.enlarged = *std::move(met);
    const auto& cards = joined.enlarged.cards;
    members = static_cast<int>(
        std::count_if(cards.begin(), cards.end(), [](const auto& c) { return c.replica >= 0; }));
    status = Receive(joined.enlarged);
  }
  const absl::Status all = CompareOutcomes(*world, members, status, &joined.step);
  ENTRAIN_RETURN_IF_ERROR(status);
  ENTRAIN_RETURN_IF_ERROR(all);
  ENTRAIN_RETURN_IF_ERROR(Welcome(*world, limit_ns));
  const EnlargedWorld& enlarged = joined.enlarged;
  parts_.exchange.SetNumbers(enlarged.mine().replica,
                             static_cast<int>(joined.member().most_replicas));
  parts_.exchange.Regroup(enlarged.model, enlarged.sync, ReplicasOf(enlarged.places));
  return joined;
}

}  // namespace entrain
