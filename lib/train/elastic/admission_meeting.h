// The steps of an admission that members and newcomers do together, on the communicator that
// Communicator::Grow has made. In this communicator the members have the first ranks.
//
//   cards       each rank sends its AdmissionCard; these determine the newcomers' numbers
//   groups      the sync groups, and the model groups if replicas have several ranks
//   options     all ranks compare their options, which must be equal
//   state       all members send state to the newcomers (state_transfer)
//   outcomes    each rank sends its status
//
// admission.h has the functions of the members, newcomer.h those of the newcomers.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "lib/comm/agree.h"
#include "lib/comm/communicator.h"
#include "lib/train/elastic/replica_world.h"
#include "lib/train/elastic/state_transfer.h"

namespace entrain {

// The time limit of a call between members and newcomers. A call that moves data gets more time
// (TransferLimit). A newcomer that hangs blocks the members' worker for at most this time.
constexpr int64_t kAdmissionNs = 10 * kSecond;

// The record of a rank. Ranks send this struct as it is in memory.
struct AdmissionCard {
  int64_t replica = -1;  // number of a member's replica; -1: a newcomer
  int64_t slot = 0, slots = 1;
  uint64_t group = 0;  // newcomers: identifies the replica (GroupOf)
  // Members only:
  int64_t most_replicas = 0;
  int64_t rendezvous = 0;  // number of finished rendezvous
  int64_t syncs = 0;
  int64_t met_step = 0;  // step of the last rendezvous
  uint64_t anchor_checksum = 0;
  int64_t repairs = 0;       // number of repaired anchors
  int64_t first_number = 0;  // the lowest number that a newcomer's replica may get
  // Members of EDiT with quorum or round_deadline only (round_closer.h):
  int64_t closes = 0;                // 1: they have a communicator of the rounds
  int64_t ticks = 0;                 // number of finished ticks
  int64_t arrivals = 0, missed = 0;  // see Attended
};
static_assert(sizeof(AdmissionCard) == 15 * sizeof(int64_t));

// Returns the places of all ranks. Each newcomer's replica gets the lowest free number that is at
// least first_number. The numbers ascend with the lowest rank of each replica. Returns
// kFailedPrecondition if ranks of a newcomer's replica are missing, or if its number of ranks
// differs from that of the members' replicas. Returns kResourceExhausted if no number below
// most_replicas is free.
absl::StatusOr<std::vector<ReplicaPlace>> PlacesOf(absl::Span<const AdmissionCard> cards);

// Values that must be equal on all ranks. The groups are compared one after the other. The length
// of a group may depend on the values of earlier groups.
using NamedGroups = std::vector<std::vector<NamedValue>>;

// The communicators of members and newcomers.
struct EnlargedWorld {
  std::shared_ptr<Communicator> world, model, sync;  // model: null for replicas of one rank
  std::shared_ptr<Communicator> rounds;              // for RoundCloser; null if not requested
  std::vector<AdmissionCard> cards;                  // by rank of world
  std::vector<ReplicaPlace> places;                  // by rank of world
  // While these exist, an end of `world` also ends model, sync and rounds.
  std::vector<std::shared_ptr<void>> ties;
  TransferParties parties;  // donors and newcomers among the ranks of sync

  const ReplicaPlace& mine() const { return places[static_cast<size_t>(world->rank())]; }
};
// Collective over `world`. Exchanges the cards, makes the groups, and compares the values in
// `alike`. Makes EnlargedWorld::rounds only if the members have such a communicator.
absl::StatusOr<EnlargedWorld> MeetNewcomers(std::shared_ptr<Communicator> world,
                                            const AdmissionCard& mine, const NamedGroups& alike);

// Collective over `world`. `mine` is the status of the admission on this rank. Returns the first
// error of any rank. If another rank has kDataLoss, returns kAborted, because this rank may try
// again. Sets `*step` to the largest of the members' steps.
absl::Status CompareOutcomes(Communicator& world, int members, const absl::Status& mine,
                             int64_t* step);

// Collective over `from`, the members' communicator. `taken` is the status of the admission on this
// rank. Returns true if the admission has succeeded on all members. Otherwise leaves `grown`. Then
// returns an error if a member is lost, or if the other members have continued without this rank.
// Otherwise returns false. All surviving members get the same result, even if a member is lost
// during the call.
absl::StatusOr<bool> AgreeToTakeIn(absl::string_view object, Communicator& from,
                                   Communicator& grown, const absl::Status& taken,
                                   int64_t limit_ns);

// Collective over `world`. Tells the waiting newcomers of a gradient channel that the members are
// ready for MeetNewcomers. Must be called before MeetNewcomers.
absl::Status CallIn(Communicator& world, int64_t limit_ns);

// Collective over `world`. Tells the newcomers that they are replicas now. Must be the last call of
// an admission.
absl::Status Welcome(Communicator& world, int64_t limit_ns);

}  // namespace entrain
