#include "lib/train/edit/newcomer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

#include "lib/base/status.h"
#include "lib/train/edit/admission.h"
#include "lib/train/elastic/applicants.h"

namespace entrain {
namespace {

// Collective over the replica. `mine` tells how it went on this rank. Returns an error on all ranks
// if it did not go well on one of them, because a replica joins whole or not at all. Works also if
// a member is lost meanwhile, which ends the other communicators. `replica` null: one rank.
absl::Status AgreeInReplica(Communicator* replica, const absl::Status& mine, int64_t limit_ns) {
  if (replica == nullptr) {
    return mine;
  }
  uint32_t well = mine.ok() ? 1 : 0;
  const absl::Status agreed = replica->Agree(&well, limit_ns);
  ENTRAIN_RETURN_IF_ERROR(mine);
  ENTRAIN_RETURN_IF_ERROR(agreed);
  return well != 0 ? absl::OkStatus()
                   : absl::AbortedError(
                         "newcomers: another rank of this replica was not told that "
                         "it is a member");
}

}  // namespace

absl::StatusOr<Newcomer::Joined> Newcomer::Join(int64_t wait_ns) {
  ENTRAIN_ASSIGN_OR_RETURN(const uint64_t group, GroupOf(parts_.own));
  const int64_t limit_ns =
      parts_.options.timeout_ns > 0 ? parts_.options.timeout_ns : parts_.own.timeout_ns();
  if (!parts_.exchange.anchors().exist()) {
    ENTRAIN_RETURN_IF_ERROR(parts_.exchange.CreateAnchors());
  }
  Joined joined;
  ENTRAIN_RETURN_IF_ERROR(ApplyUntilTakenIn(
      "edit", parts_.own.size(), parts_.own, parts_.options.admit_store, parts_.options.admit_name,
      wait_ns > 0 ? wait_ns : limit_ns, [&](const std::shared_ptr<Communicator>& world) {
        auto attempt = Attempt(world, group, limit_ns);
        if (attempt.ok()) {
          joined = *std::move(attempt);
        }
        return attempt.status();
      }));
  return joined;
}

absl::Status Newcomer::Receive(const EnlargedWorld& enlarged) {
  StateList list(parts_.slab, CheckpointKind::kPortable);
  const std::vector<TransferItem> items =
      StateInCommon(parts_.exchange, parts_.slab, parts_.live, &list);
  ENTRAIN_RETURN_IF_ERROR(TransferState(*enlarged.sync, enlarged.parties, items, kAdmissionNs));
  parts_.exchange.Adopt(/*live=*/true);
  // TransferState detects that donors differ. It does not detect an anchor that has changed in the
  // memory of all members since Anchors::Seal. The comparison of checksums detects such a change.
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
  status.Update(all);
  if (status.ok()) {
    status = Welcome(*world, limit_ns);
  }
  ENTRAIN_RETURN_IF_ERROR(AgreeInReplica(joined.enlarged.model.get(), status, 2 * limit_ns));
  const EnlargedWorld& enlarged = joined.enlarged;
  parts_.exchange.members().SetNumbers(enlarged.mine().replica,
                                       static_cast<int>(joined.member().most_replicas));
  parts_.exchange.Regroup(enlarged.model, enlarged.sync, ReplicasOf(enlarged.places));
  return joined;
}

}  // namespace entrain
