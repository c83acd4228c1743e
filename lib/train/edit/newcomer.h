// The newcomer's side of an admission: joins replicas that already train. These replicas are called
// members; admission.h has their side.
//
// Thread safety: one thread at a time; calls block.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"

#include "lib/comm/agree.h"
#include "lib/comm/communicator.h"
#include "lib/train/edit/edit_options.h"
#include "lib/train/edit/exchange.h"
#include "lib/train/elastic/admission_meeting.h"

namespace entrain {

class Newcomer {
 public:
  // All fields of Parts must outlive this object. `own` is the communicator of this replica's
  // ranks; it may contain this process alone.
  struct Parts {
    const EditOptions& options;
    const Slab& slab;
    const LayerArrays& live;
    Exchange& exchange;
    Communicator& own;
  };
  Newcomer(const Parts& parts, NamedGroups alike) : parts_(parts), alike_(std::move(alike)) {}

  struct Joined {
    EnlargedWorld enlarged;
    int64_t step = 0;  // the largest number of steps that a member has made
    // Returns the card of a member.
    const AdmissionCard& member() const { return enlarged.cards[0]; }
  };
  // Blocks until the members have admitted this replica, at most `wait_ns`. Afterwards the exchange
  // has the members' state and groups, and the parameters equal the anchor. If an attempt fails
  // because of another rank, applies again.
  absl::StatusOr<Joined> Join(int64_t wait_ns);

 private:
  absl::StatusOr<Joined> Attempt(std::shared_ptr<Communicator> world, uint64_t group,
                                 int64_t limit_ns);
  absl::Status Receive(const EnlargedWorld& enlarged);

  const Parts parts_;
  const NamedGroups alike_;
};

}  // namespace entrain
