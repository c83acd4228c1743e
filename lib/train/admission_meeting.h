// What members and newcomers do together when newcomers are taken in, over the communicator of all
// of them (Communicator::Grow), which has the members first:
//
//   cards       each rank says what it is; so all know the newcomers' replicas and their numbers
//   groups      the sync groups, and the model groups of replicas of several ranks
//   options     must be alike
//   state       goes from all members to the newcomers (state_transfer)
//   outcomes    each rank says how that went
//
// admission.h has the members' side, newcomer.h the newcomers'.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "lib/comm/agree.h"
#include "lib/comm/communicator.h"
#include "lib/train/exchange.h"
#include "lib/train/replica_world.h"
#include "lib/train/state_transfer.h"

namespace entrain {

// The time limit of a call between members and newcomers, without the data that it moves. A
// newcomer that stands still holds the members' worker up for this time.
constexpr int64_t kAdmissionNs = 10 * kSecond;

// What a rank says about itself, in the format in which it is sent.
struct AdmissionCard {
  int64_t replica = -1;  // a member's replica; -1: a newcomer
  int64_t slot = 0, slots = 1;
  uint64_t group = 0;  // of a newcomer: the same number on the ranks of its replica only
  // Members only:
  int64_t most_replicas = 0;
  int64_t rendezvous = 0;  // that are over
  int64_t syncs = 0;
  int64_t met_step = 0;  // step of the last rendezvous
  uint64_t anchor_checksum = 0;
  int64_t repairs = 0;       // of anchors
  int64_t first_number = 0;  // the lowest number that a newcomer's replica may get
};
static_assert(sizeof(AdmissionCard) == 11 * sizeof(int64_t));

// Returns the places of all ranks. Newcomers' replicas get the lowest numbers from first_number on
// that no member has, in the order of their lowest ranks. Returns kFailedPrecondition if the ranks of
// a newcomer's replica are not all there, or are more or fewer than those of the members', and
// kResourceExhausted if there are no numbers left.
absl::StatusOr<std::vector<ReplicaPlace>> PlacesOf(absl::Span<const AdmissionCard> cards);

// Values that must be alike. The length of a group is known if the groups before it are alike.
using NamedGroups = std::vector<std::vector<NamedValue>>;

// Members and newcomers, and their groups.
struct EnlargedWorld {
  std::shared_ptr<Communicator> world, model, sync;  // model: null for replicas of one rank
  std::vector<AdmissionCard> cards;                  // by rank of world
  std::vector<ReplicaPlace> places;                  // likewise
  TransferParties parties;                           // of sync

  const ReplicaPlace& mine() const { return places[static_cast<size_t>(world->rank())]; }
};
// Collective over `world`: cards, groups and options.
absl::StatusOr<EnlargedWorld> MeetNewcomers(std::shared_ptr<Communicator> world,
                                            const AdmissionCard& mine, const NamedGroups& alike);

// Returns the state that replicas have in common: that of the exchange, and layers that do not
// train. `list` holds the values that the items show.
std::vector<TransferItem> StateInCommon(Exchange& exchange, const Slab& slab,
                                        const LayerArrays& live, StateList* list);

// Collective over `world`. `mine` is how the admission went here. Returns the first error of any
// rank; a kDataLoss of another rank as kAborted, because this one may try again. `*step` becomes the
// largest of the members' steps.
absl::Status CompareOutcomes(Communicator& world, int members, const absl::Status& mine,
                             int64_t* step);

// The members' decision, on their communicator `from`. `taken` is how the admission went here.
// Returns true if it has gone well on all members. Otherwise leaves `grown`, and returns false, or an
// error if a member is lost or the others have gone on without this rank. All members that live have
// the same result, also if one of them dies meanwhile.
absl::StatusOr<bool> AgreeToTakeIn(absl::string_view object, Communicator& from,
                                   Communicator& grown, const absl::Status& taken,
                                   int64_t limit_ns);

// The first word of the members: they are ready to meet the newcomers, who wait for it. Collective
// over `world`.
absl::Status CallIn(Communicator& world, int64_t limit_ns);

// The last word of the members: the newcomers are replicas. Collective over `world`.
absl::Status Welcome(Communicator& world, int64_t limit_ns);

}  // namespace entrain
