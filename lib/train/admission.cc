#include "lib/train/admission.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/comm/applications.h"
#include "lib/train/worker_thread.h"

namespace entrain {

absl::StatusOr<std::shared_ptr<Store>> Admission::Open(const Stop& stop) {
  if (store_ == nullptr) {
    ENTRAIN_ASSIGN_OR_RETURN(store_, parts_.options.admit_store(stop));
  }
  return store_;
}

// Returns the number of replicas that may still come.
int Admission::Room() const {
  return parts_.exchange.most_replicas() -
         static_cast<int>(ReplicasOf(parts_.world.places()).size());
}

void Admission::Look() {
  if (parts_.world.comm()->rank() != 0 || Room() <= 0) {
    return;
  }
  WorkerThread::Doing("newcomers: looking into the store", kLookNs + kSecond);
  const Stop stop{Deadline::After(kLookNs)};
  const auto count = [&]() -> absl::StatusOr<int64_t> {
    ENTRAIN_ASSIGN_OR_RETURN(const std::shared_ptr<Store> store, Open(stop));
    return CountApplications(*store, parts_.options.admit_name, stop);
  };
  const absl::StatusOr<int64_t> waiting = count();
  if (!waiting.ok() && !std::exchange(silent_, true)) {
    ENTRAIN_LOG(kWarning,
                "edit: newcomers: the store does not answer: ", waiting.status().message());
  }
  if (waiting.ok()) {
    silent_ = false;
    parts_.exchange.Announce(*waiting >= parts_.world.slots() ? kApplied : 0);
  }
}

// All members have the same table. Nobody is taken in when replicas are about to end.
bool Admission::Wanted() const {
  uint64_t flags = 0;
  for (const Standing& one : parts_.exchange.table().standings) {
    flags |= one.flags;
  }
  return (flags & kApplied) != 0 && (flags & (kLeaving | kWantStop | kInsist)) == 0 && Room() > 0;
}

absl::Status Admission::Run() {
  if (!Wanted()) {
    return absl::OkStatus();
  }
  const std::shared_ptr<Communicator> from = parts_.world.comm();
  const auto grown = Grow(*from);
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

absl::StatusOr<std::shared_ptr<Communicator>> Admission::Grow(Communicator& from) {
  GrowOptions options;
  options.store = [this](const Stop& stop) { return Open(stop); };
  options.min_newcomers = parts_.world.slots();
  options.max_newcomers = Room() * parts_.world.slots();
  options.timeout_ns =
      parts_.options.timeout_ns > 0 ? parts_.options.timeout_ns : from.timeout_ns();
  options.attempt_ns = kAdmissionNs;
  options.name = parts_.options.admit_name;
  WorkerThread::Doing("newcomers: connecting them", 2 * options.timeout_ns);
  return from.Grow(options);
}

AdmissionCard Admission::MyCard() const {
  const ReplicaPlace& mine = parts_.world.mine();
  return {.replica = mine.replica,
          .slot = mine.slot,
          .slots = parts_.world.slots(),
          .most_replicas = parts_.exchange.most_replicas(),
          .rendezvous = parts_.results.rendezvous(),
          .syncs = parts_.results.syncs(),
          .met_step = static_cast<int64_t>(parts_.exchange.table().standings[0].steps),
          .anchor_checksum = parts_.exchange.anchors().checksum(),
          .repairs = parts_.exchange.repairs()};
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

// Finds out whether the admission has gone well on all members, and makes it count if so.
absl::Status Admission::Conclude(Communicator& from, EnlargedWorld enlarged,
                                 const absl::Status& taken,
                                 const std::shared_ptr<Communicator>& grown) {
  const int64_t limit_ns =
      parts_.options.timeout_ns > 0 ? parts_.options.timeout_ns : from.timeout_ns();
  WorkerThread::Doing("newcomers: agreeing that they are there", limit_ns);
  uint32_t well = taken.ok() ? 1 : 0;
  const absl::Status agreed = from.Agree(&well, limit_ns);
  if (!agreed.ok() || well == 0) {
    const std::string why(!taken.ok()    ? taken.message()
                          : !agreed.ok() ? agreed.message()
                                         : "it did not go well on another member");
    ENTRAIN_LOG(kInfo, "edit: newcomers: not taken in: ", why);
    grown->EndWith(absl::AbortedError(absl::StrCat("the members did not take it in: ", why)));
    if (agreed.ok() || agreed.code() == absl::StatusCode::kOutOfRange) {
      return agreed.ok() ? LossOf(&from) : agreed;
    }
    // Other members ask who is left. This one does so too.
    from.EndWith(absl::UnavailableError(agreed.message()));
    return agreed;
  }
  Adopt(enlarged);
  const absl::Status told = Welcome(*grown, limit_ns);
  if (!told.ok()) {  // a rank is lost; the next call reports it
    ENTRAIN_LOG(kInfo, "edit: newcomers: ", told.message());
  }
  return absl::OkStatus();
}

void Admission::Adopt(const EnlargedWorld& enlarged) {
  const std::vector<int> replicas = ReplicasOf(enlarged.places);
  parts_.world.Adopt(enlarged.world, enlarged.places);
  parts_.exchange.Regroup(enlarged.model, enlarged.sync, replicas);
  parts_.results.Joined(static_cast<int>(replicas.size()), parts_.exchange.most_replicas());
}

}  // namespace entrain
