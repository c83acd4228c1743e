// The members' side of an admission (option admit). Members are the replicas that already train.
// Newcomers are replicas that join them. The admission runs on the worker after an exchange, while
// the caller makes its next steps.
//
//   rendezvous k   the standing of rank 0 says that processes have applied (Look)
//   exchange k
//   after it       Run:   Grow             the newcomers are connected
//                         MeetNewcomers    numbers, groups, options          admission_meeting
//                         TransferState    from all members                  state_transfer
//                         Agree            on the old communicator: have all members succeeded?
//                  yes    the larger communicator and its groups replace the old ones
//                  no     the larger communicator is dropped; the members' state is unchanged
//   rendezvous k + 1      the newcomers take part
//
// Until Agree, the members keep their old state and groups. If a newcomer fails, only this attempt
// is lost. Agree returns the same result on all surviving members, even if a member is lost during
// the admission.
//
// Thread safety: the worker calls Look and Run. NoteStep may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "lib/comm/agree.h"
#include "lib/comm/communicator.h"
#include "lib/train/edit/edit_options.h"
#include "lib/train/edit/exchange.h"
#include "lib/train/edit/exchange_results.h"
#include "lib/train/edit/round_closer.h"
#include "lib/train/elastic/admission_meeting.h"
#include "lib/train/elastic/applicants.h"
#include "lib/train/elastic/replica_world.h"

namespace entrain {

// Returns the items of the state that is equal on all replicas: the state of the exchange, and the
// layers that do not train. `list` receives the entries from which the items are made.
std::vector<TransferItem> StateInCommon(Exchange& exchange, const Slab& slab,
                                        const LayerArrays& live, StateList* list);

class Admission {
 public:
  // All members of Parts must outlive this object.
  struct Parts {
    const EditOptions& options;
    const Slab& slab;
    const LayerArrays& live;
    Exchange& exchange;
    ExchangeResults& results;
    ReplicaWorld& world;
    RoundCloser* closer;  // null: rounds need all replicas
  };
  // `alike` holds the values that must be equal on members and newcomers.
  Admission(const Parts& parts, NamedGroups alike)
      : parts_(parts),
        alike_(std::move(alike)),
        applicants_("edit", parts.world.slots(), parts.options.admit_store,
                    parts.options.admit_name) {}

  // Called before a rendezvous. On rank 0 of the world: if enough processes for a replica have
  // applied, sets the flag kApplied in the next standing.
  void Look();
  // Called on all ranks after the exchange of the last rendezvous. If rank 0 has announced
  // applications, admits the newcomers. Returns an error only if a member is lost or this rank
  // cannot continue.
  absl::Status Run();
  // Records the number of steps that the caller has made.
  void NoteStep(int64_t step) { step_.store(step, std::memory_order_relaxed); }

 private:
  bool Wanted() const;
  int Room() const;
  int64_t LimitNs(const Communicator& from) const;
  absl::Status TakeIn(std::shared_ptr<Communicator> grown, int members, EnlargedWorld* enlarged);
  absl::Status Conclude(Communicator& from, EnlargedWorld enlarged, const absl::Status& taken,
                        const std::shared_ptr<Communicator>& grown);
  void Adopt(const EnlargedWorld& enlarged);
  AdmissionCard MyCard() const;

  const Parts parts_;
  const NamedGroups alike_;
  Applicants applicants_;
  std::atomic<int64_t> step_{0};
};

}  // namespace entrain
