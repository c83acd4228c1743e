#include "lib/train/edit/admission.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/log.h"
#include "lib/base/status.h"

namespace entrain {

std::vector<TransferItem> StateInCommon(Exchange& exchange, const Slab& slab,
                                        const LayerArrays& live, StateList* list) {
  exchange.VisitState(*list);
  for (int l = 0; l < slab.layers(); ++l) {
    const SlabLayer& layer = slab.layer(l);
    if (layer.full > 0 && !layer.trains()) {
      list->Layer("params", l, live.param(l), live.dtype);
    }
  }
  return ItemsOf(*list);
}

// Returns the number of replicas that may still join.
int Admission::Room() const {
  return parts_.exchange.members().most() -
         static_cast<int>(ReplicasOf(parts_.world.places()).size());
}

void Admission::Look() {
  if (parts_.world.comm()->rank() != 0 || Room() <= 0) {
    return;
  }
  parts_.exchange.rendezvous().Announce(applicants_.Count() >= parts_.world.slots() ? kApplied : 0);
}

int64_t Admission::LimitNs(const Communicator& from) const {
  return parts_.options.timeout_ns > 0 ? parts_.options.timeout_ns : from.timeout_ns();
}

// Returns true if processes have applied, there is room for them, and no replica is leaving, wants
// to stop, or has requested this exchange (kInsist). All members have the same table, so all get
// the same answer.
bool Admission::Wanted() const {
  uint64_t flags = 0;
  for (const Standing& one : parts_.exchange.rendezvous().table().standings) {
    flags |= one.flags;
  }
  return (flags & kApplied) != 0 && (flags & (kLeaving | kWantStop | kInsist)) == 0 && Room() > 0;
}

absl::Status Admission::Run() {
  if (!Wanted()) {
    return absl::OkStatus();
  }
  const std::shared_ptr<Communicator> from = parts_.world.comm();
  const int slots = parts_.world.slots();
  const auto grown = applicants_.Grow(*from, slots, Room() * slots, LimitNs(*from));
  if (!grown.ok()) {
    ENTRAIN_LOG(kInfo, "edit: newcomers: none was taken in: ", grown.status().message());
    return LossOf(from.get());
  }
  if (*grown == nullptr) {
    return absl::OkStatus();
  }
  parts_.world.Consider(*grown);
  EnlargedWorld enlarged;
  const absl::Status taken = TakeIn(*grown, from->size(), &enlarged);
  const absl::Status status = Conclude(*from, std::move(enlarged), taken, *grown);
  parts_.world.Consider(nullptr);
  return status;
}

AdmissionCard Admission::MyCard() const {
  const ReplicaPlace& mine = parts_.world.mine();
  const RoundCloser* const closer = parts_.closer;
  const Attended attended = closer == nullptr ? Attended() : closer->attended();
  uint64_t met_step = 0;  // the largest: a late replica's standing comes from an earlier rendezvous
  for (const Standing& one : parts_.exchange.rendezvous().table().standings) {
    met_step = std::max(met_step, one.steps);
  }
  return {.replica = mine.replica,
          .slot = mine.slot,
          .slots = parts_.world.slots(),
          .most_replicas = parts_.exchange.members().most(),
          .rendezvous = parts_.results.rendezvous(),
          .syncs = parts_.results.syncs(),
          .met_step = static_cast<int64_t>(met_step),
          .anchor_checksum = parts_.exchange.anchors().checksum(),
          .repairs = parts_.exchange.rendezvous().repairs(),
          .closes = closer == nullptr ? 0 : 1,
          .ticks = closer == nullptr ? 0 : closer->ticks(),
          .arrivals = attended.arrivals,
          .missed = attended.missed};
}

absl::Status Admission::TakeIn(std::shared_ptr<Communicator> grown, int members,
                               EnlargedWorld* enlarged) {
  const auto take_in = [&]() -> absl::Status {
    ENTRAIN_ASSIGN_OR_RETURN(*enlarged, MeetNewcomers(grown, MyCard(), alike_));
    StateList list(parts_.slab, CheckpointKind::kPortable);
    const std::vector<TransferItem> items =
        StateInCommon(parts_.exchange, parts_.slab, parts_.live, &list);
    return TransferState(*enlarged->sync, enlarged->parties, items, kAdmissionNs);
  };
  const absl::Status mine = take_in();
  int64_t step = step_.load(std::memory_order_relaxed);
  const absl::Status all = CompareOutcomes(*grown, members, mine, &step);
  return mine.ok() ? all : mine;
}

// Finds out whether all members have succeeded. If so, the admission takes effect.
absl::Status Admission::Conclude(Communicator& from, EnlargedWorld enlarged,
                                 const absl::Status& taken,
                                 const std::shared_ptr<Communicator>& grown) {
  const int64_t limit_ns = LimitNs(from);
  ENTRAIN_ASSIGN_OR_RETURN(const bool well, AgreeToTakeIn("edit", from, *grown, taken, limit_ns));
  if (!well) {
    return absl::OkStatus();
  }
  Adopt(enlarged);
  const absl::Status told = Welcome(*grown, limit_ns);
  if (!told.ok()) {  // a rank is lost, and the next call reports the loss
    ENTRAIN_LOG(kInfo, "edit: newcomers: ", told.message());
  }
  return absl::OkStatus();
}

void Admission::Adopt(const EnlargedWorld& enlarged) {
  const std::vector<int> replicas = ReplicasOf(enlarged.places);
  parts_.world.Adopt(enlarged.world, enlarged.places);
  parts_.exchange.Regroup(enlarged.model, enlarged.sync, replicas);
  if (parts_.closer != nullptr) {
    parts_.closer->Adopt(enlarged.rounds, enlarged.places);
  }
  parts_.results.Joined(static_cast<int>(replicas.size()), parts_.exchange.members().most());
}

}  // namespace entrain
