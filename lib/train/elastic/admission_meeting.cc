#include "lib/train/elastic/admission_meeting.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/log.h"
#include "lib/base/status.h"
#include "lib/base/text.h"
#include "lib/train/worker/timed_call.h"
#include "lib/train/worker/worker.h"

namespace entrain {
namespace {

// The result of the admission on a rank. Ranks send this struct as it is in memory.
struct Outcome {
  int64_t code = ENTRAIN_OK;
  int64_t step = 0;
  std::array<char, 240> text{};
};

CallOptions Limited(absl::string_view doing, int64_t limit_ns = kAdmissionNs) {
  Worker::Doing(doing, limit_ns);
  return TimedCall(limit_ns, -1, true);
}

absl::Status Say(absl::string_view what, Communicator& world, int64_t limit_ns) {
  uint8_t word = 1;
  return world.Broadcast(&word, 1, DType::kU8, /*root=*/0, Limited(what, limit_ns));
}

// Splits enlarged->world, which must have no other calls under way. Limits the time to
// kAdmissionNs, because a newcomer that hangs must not block the members for longer.
//
// During the admission, the end of the world also ends the new communicator (EnlargedWorld::ties),
// even if the lost rank is in another one. Otherwise, if the split fails on some ranks only, the
// other ranks would wait for them in the new communicator.
absl::StatusOr<std::shared_ptr<Communicator>> Part(EnlargedWorld* enlarged, int color, int key) {
  Communicator& world = *enlarged->world;
  Worker::Doing("newcomers: making the groups", 2 * kAdmissionNs);
  const int64_t usual_ns = world.timeout_ns();
  world.SetTimeout(std::min(usual_ns, kAdmissionNs));
  auto part = world.Split(color, key);
  world.SetTimeout(usual_ns);
  if (part.ok()) {
    (*part)->SetTimeout(usual_ns);
    enlarged->ties.push_back(world.EndToo(**part));
  }
  return part;
}

// Collective. If a value differs between two ranks, returns an error that names the value. The
// error is kDataLoss on a rank whose values differ from those of rank `member`. It is kAborted on
// the other ranks, because they may try again.
absl::Status CompareValues(Communicator& comm, const std::vector<NamedValue>& group, int member) {
  const absl::Status alike =
      AgreeOn(comm, "the replicas", group, Limited("newcomers: comparing the options"));
  if (!absl::IsDataLoss(alike)) {
    return alike;
  }
  std::vector<double> mine, all(group.size() * static_cast<size_t>(comm.size()));
  for (const NamedValue& value : group) {
    mine.push_back(value.value);
  }
  const absl::Status compared =
      comm.AllGather(mine.data(), all.data(), static_cast<int64_t>(mine.size()), DType::kF64,
                     Limited("newcomers: comparing the options again"));
  ENTRAIN_RETURN_IF_ERROR(compared);
  const auto theirs = all.begin() + static_cast<std::ptrdiff_t>(mine.size()) * member;
  const bool innocent = std::equal(mine.begin(), mine.end(), theirs);
  return innocent ? absl::AbortedError(alike.message()) : alike;
}

// The ranks of one newcomer's replica that have joined `world`. AdmissionCard::group identifies the
// replica.
struct Arrival {
  int first_rank = 0;
  std::set<int64_t> slots = {};
};

absl::Status CheckWhole(const std::map<uint64_t, Arrival>& arrivals, int64_t slots) {
  for (const auto& [group, arrival] : arrivals) {
    if (static_cast<int64_t>(arrival.slots.size()) != slots) {
      return absl::FailedPreconditionError(
          absl::StrCat("newcomers: ", arrival.slots.size(), " of the ", slots,
                       " ranks of the replica of rank ", arrival.first_rank, " have come"));
    }
  }
  return absl::OkStatus();
}

// Returns the number of each newcomer's replica, by AdmissionCard::group.
absl::StatusOr<std::map<uint64_t, int>> Number(const std::map<uint64_t, Arrival>& arrivals,
                                               const std::set<int64_t>& taken,
                                               const AdmissionCard& member) {
  std::vector<std::pair<int, uint64_t>> in_order;
  for (const auto& [group, arrival] : arrivals) {
    in_order.emplace_back(arrival.first_rank, group);
  }
  std::sort(in_order.begin(), in_order.end());
  std::map<uint64_t, int> numbers;
  const int64_t most = member.most_replicas;
  int64_t next = member.first_number;
  for (const auto& [rank, group] : in_order) {
    while (taken.count(next) > 0) {
      ++next;
    }
    if (next >= most) {
      return absl::ResourceExhaustedError(
          absl::StrCat("newcomers: most_replicas: there are ", most, " replicas already"));
    }
    numbers[group] = static_cast<int>(next++);
  }
  return numbers;
}

}  // namespace

absl::StatusOr<std::vector<ReplicaPlace>> PlacesOf(absl::Span<const AdmissionCard> cards) {
  std::map<uint64_t, Arrival> arrivals;
  std::set<int64_t> taken;
  const int64_t slots = cards[0].slots;
  for (size_t rank = 0; rank < cards.size(); ++rank) {
    const AdmissionCard& card = cards[rank];
    if (card.slots != slots || card.slot < 0 || card.slot >= slots) {
      return absl::FailedPreconditionError(
          absl::StrCat("newcomers: rank ", rank, " is of a replica of ", card.slots,
                       " ranks, and the members' replicas have ", slots));
    }
    if (card.replica >= 0) {
      taken.insert(card.replica);
      continue;
    }
    Arrival& arrival =
        arrivals.emplace(card.group, Arrival{.first_rank = static_cast<int>(rank)}).first->second;
    arrival.slots.insert(card.slot);
  }
  ENTRAIN_RETURN_IF_ERROR(CheckWhole(arrivals, slots));
  ENTRAIN_ASSIGN_OR_RETURN(const auto numbers, Number(arrivals, taken, cards[0]));
  std::vector<ReplicaPlace> places;
  for (const AdmissionCard& card : cards) {
    places.push_back(
        {.replica = card.replica >= 0 ? static_cast<int>(card.replica) : numbers.at(card.group),
         .slot = static_cast<int>(card.slot)});
  }
  return places;
}

absl::StatusOr<EnlargedWorld> MeetNewcomers(std::shared_ptr<Communicator> world,
                                            const AdmissionCard& mine, const NamedGroups& alike) {
  EnlargedWorld enlarged;
  enlarged.cards.resize(static_cast<size_t>(world->size()));
  constexpr int64_t kNumbers = sizeof(AdmissionCard) / sizeof(int64_t);
  ENTRAIN_RETURN_IF_ERROR(world->AllGather(&mine, enlarged.cards.data(), kNumbers, DType::kI64,
                                           Limited("newcomers: their cards")));
  ENTRAIN_ASSIGN_OR_RETURN(enlarged.places, PlacesOf(enlarged.cards));
  enlarged.world = std::move(world);
  const ReplicaPlace here = enlarged.mine();
  if (mine.slots > 1) {
    ENTRAIN_ASSIGN_OR_RETURN(enlarged.model, Part(&enlarged, here.replica, here.slot));
  }
  ENTRAIN_ASSIGN_OR_RETURN(enlarged.sync, Part(&enlarged, here.slot, here.replica));
  std::map<int, bool> by_replica;  // value: the replica is a newcomer
  for (size_t rank = 0; rank < enlarged.places.size(); ++rank) {
    by_replica[enlarged.places[rank].replica] = enlarged.cards[rank].replica < 0;
  }
  int rank = 0;  // rank of `sync`
  for (const auto& [replica, newcomer] : by_replica) {
    (newcomer ? enlarged.parties.newcomers : enlarged.parties.donors).push_back(rank++);
    enlarged.parties.replicas.push_back(replica);
  }
  if (enlarged.cards[0].closes != 0) {  // a member's card, so all ranks decide alike
    ENTRAIN_ASSIGN_OR_RETURN(enlarged.rounds, Part(&enlarged, 0, enlarged.world->rank()));
  }
  // From here on, ranks call each other in their slot alone, and the calls of one slot may fail while
  // those of another succeed. So the next call of the world is CompareOutcomes, on all ranks.
  for (const std::vector<NamedValue>& group : alike) {
    ENTRAIN_RETURN_IF_ERROR(CompareValues(*enlarged.sync, group, enlarged.parties.donors[0]));
  }
  return enlarged;
}

absl::Status CompareOutcomes(Communicator& world, int members, const absl::Status& mine,
                             int64_t* step) {
  Outcome own = {.code = ToCode(mine), .step = *step};
  const absl::string_view text = mine.message();
  std::copy_n(text.data(), std::min(text.size(), own.text.size() - 1), own.text.data());
  std::vector<Outcome> all(static_cast<size_t>(world.size()));
  ENTRAIN_RETURN_IF_ERROR(world.AllGather(&own, all.data(), sizeof(own), DType::kU8,
                                          Limited("newcomers: how it went on the others")));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const Outcome& one = all[rank];
    if (one.code != ENTRAIN_OK) {
      const absl::StatusCode code = FromCode(static_cast<entrain_status_t>(one.code));
      // This rank has no error of its own, so it may try again.
      return absl::Status(
          mine.ok() && code == absl::StatusCode::kDataLoss ? absl::StatusCode::kAborted : code,
          CleanText({one.text.data(), strnlen(one.text.data(), one.text.size())}));
    }
    *step = static_cast<int>(rank) < members ? std::max(*step, one.step) : *step;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> AgreeToTakeIn(absl::string_view object, Communicator& from,
                                   Communicator& grown, const absl::Status& taken,
                                   int64_t limit_ns) {
  Worker::Doing("newcomers: agreeing that they are there", limit_ns);
  uint32_t well = taken.ok() ? 1 : 0;
  const absl::Status agreed = from.Agree(&well, limit_ns);
  if (agreed.ok() && well != 0) {
    return true;
  }
  const std::string why(!taken.ok()    ? taken.message()
                        : !agreed.ok() ? agreed.message()
                                       : "it did not go well on another member");
  ENTRAIN_LOG(kInfo, object, ": newcomers: not taken in: ", why);
  grown.LeaveWith(absl::AbortedError(absl::StrCat("the members did not take it in: ", why)));
  if (agreed.ok()) {
    ENTRAIN_RETURN_IF_ERROR(LossOf(&from));
    return false;
  }
  if (agreed.code() != absl::StatusCode::kOutOfRange) {
    // The other members will agree on the remaining ranks, and this rank must take part.
    from.EndWith(absl::UnavailableError(agreed.message()));
  }
  return agreed;
}

absl::Status CallIn(Communicator& world, int64_t limit_ns) {
  return Say("newcomers: the members' first word", world, limit_ns);
}

absl::Status Welcome(Communicator& world, int64_t limit_ns) {
  return Say("newcomers: the members' last word", world, limit_ns);
}

}  // namespace entrain
