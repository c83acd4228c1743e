#include "lib/train/elastic/replica_world.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/train/worker/timed_call.h"
#include "lib/train/worker/worker.h"

namespace entrain {
namespace {

bool HasLost(const std::vector<MemberReport>& members) {
  return std::any_of(members.begin(), members.end(), [](const MemberReport& member) {
    return member.state == MemberReport::State::kLost;
  });
}

// If the error is that a rank did not come in time, adds this rank. After other errors Shrink finds
// the ranks by itself: they are lost, or have left. If a member is lost, the error may be one that
// the lost member has reported, and may blame a rank that lives.
void AddLate(const Communicator& comm, const absl::Status& why, std::vector<int>* ranks) {
  const std::vector<MemberReport> members = comm.Members();
  if (why.code() != absl::StatusCode::kDeadlineExceeded || HasLost(members)) {
    return;
  }
  const Blame blame = BlameOf(why);
  for (size_t rank = 0; rank < members.size(); ++rank) {
    if (std::equal(blame.peer_id.begin(), blame.peer_id.end(), members[rank].id.begin()) &&
        static_cast<int>(rank) != comm.rank()) {
      ranks->push_back(static_cast<int>(rank));
    }
  }
}

}  // namespace

std::vector<int> OfBrokenReplicas(absl::Span<const ReplicaPlace> places, int slots) {
  std::map<int, int> present;
  for (const ReplicaPlace& place : places) {
    ++present[place.replica];
  }
  std::vector<int> ranks;
  for (size_t rank = 0; rank < places.size(); ++rank) {
    if (present[places[rank].replica] < slots) {
      ranks.push_back(static_cast<int>(rank));
    }
  }
  return ranks;
}

std::vector<int> ReplicasOf(absl::Span<const ReplicaPlace> places) {
  std::vector<int> replicas;
  for (const ReplicaPlace& place : places) {
    replicas.push_back(place.replica);
  }
  std::sort(replicas.begin(), replicas.end());
  replicas.erase(std::unique(replicas.begin(), replicas.end()), replicas.end());
  return replicas;
}

absl::Status LossOf(const Communicator* comm) {
  if (comm == nullptr) {
    return absl::OkStatus();
  }
  const absl::Status why = comm->status();
  switch (why.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return why;
    case absl::StatusCode::kAborted:
      // The blame does not tell: a rank that was lost may have blamed any process before, also this
      // one.
      return comm->ended_here() ? absl::OkStatus() : why;
    default:
      return absl::OkStatus();
  }
}

absl::StatusOr<std::unique_ptr<ReplicaWorld>> ReplicaWorld::Make(std::shared_ptr<Communicator> comm,
                                                                 ReplicaPlace mine, int slots,
                                                                 int64_t timeout_ns) {
  const int32_t own[] = {mine.replica, mine.slot};
  std::vector<int32_t> all(2 * static_cast<size_t>(comm->size()));
  ENTRAIN_RETURN_IF_ERROR(
      comm->AllGather(own, all.data(), 2, DType::kI32, TimedCall(timeout_ns, -1, false)));
  std::vector<ReplicaPlace> places;
  for (size_t at = 0; at < all.size(); at += 2) {
    places.push_back({all[at], all[at + 1]});
  }
  return std::unique_ptr<ReplicaWorld>(
      new ReplicaWorld(std::move(comm), mine, slots, timeout_ns, std::move(places)));
}

std::unique_ptr<ReplicaWorld> ReplicaWorld::Of(std::shared_ptr<Communicator> comm, int slots,
                                               int64_t timeout_ns,
                                               std::vector<ReplicaPlace> places) {
  const ReplicaPlace mine = places[static_cast<size_t>(comm->rank())];
  return std::unique_ptr<ReplicaWorld>(
      new ReplicaWorld(std::move(comm), mine, slots, timeout_ns, std::move(places)));
}

bool ReplicaWorld::IsSyncGroup() const {
  return slots_ == 1 && std::is_sorted(places_.begin(), places_.end(),
                                       [](const ReplicaPlace& a, const ReplicaPlace& b) {
                                         return a.replica < b.replica;
                                       });
}

void ReplicaWorld::Adopt(std::shared_ptr<Communicator> other, std::vector<ReplicaPlace> places) {
  places_ = std::move(places);
  bytes_before_.fetch_add(comm()->stats().bytes_sent, std::memory_order_relaxed);
  absl::Status ended;
  {
    absl::MutexLock lock(&mutex_);
    former_ = std::exchange(comm_, other);
    considered_ = nullptr;
    ended = ended_;
  }
  if (!ended.ok()) {
    other->LeaveWith(ended);  // End knew only the previous communicator
  }
}

void ReplicaWorld::Consider(std::shared_ptr<Communicator> larger) {
  absl::Status ended;
  {
    absl::MutexLock lock(&mutex_);
    considered_ = larger;
    ended = ended_;
  }
  if (larger != nullptr && !ended.ok()) {
    larger->LeaveWith(ended);
  }
}

void ReplicaWorld::End(const absl::Status& why) {
  std::shared_ptr<Communicator> comm, considered;
  {
    absl::MutexLock lock(&mutex_);
    ended_.Update(why);
    comm = comm_;
    considered = considered_;
  }
  if (considered != nullptr) {
    considered->LeaveWith(why);
  }
  comm->LeaveWith(why);
}

std::shared_ptr<Communicator> ReplicaWorld::comm() const {
  absl::MutexLock lock(&mutex_);
  return comm_;
}

std::vector<absl::Status> EndAfterLoss(absl::Span<const std::shared_ptr<Communicator>> comms) {
  std::vector<absl::Status> losses;
  for (const std::shared_ptr<Communicator>& comm : comms) {
    if (const absl::Status loss = LossOf(comm.get()); !loss.ok()) {
      losses.push_back(loss);
    }
  }
  Worker::Doing("after a loss: ending the communicators");
  for (const std::shared_ptr<Communicator>& comm : comms) {
    if (comm != nullptr && !losses.empty()) {
      comm->EndWith(losses[0]);
    }
  }
  return losses;
}

absl::Status ReplicaWorld::RemoveLost(absl::Span<const std::shared_ptr<Communicator>> comms,
                                      absl::FunctionRef<void(const LostReplicas&)> lost) {
  const std::vector<absl::Status> causes = EndAfterLoss(comms);
  const std::vector<int> before = ReplicasOf(places_);
  ENTRAIN_RETURN_IF_ERROR(Shrink(causes));
  const std::vector<int> left = ReplicasOf(places_);
  LostReplicas gone;
  gone.why = causes.empty() ? "" : std::string(causes[0].message());
  std::set_difference(before.begin(), before.end(), left.begin(), left.end(),
                      std::back_inserter(gone.replicas));
  if (gone.replicas.empty() && !causes.empty()) {
    return causes[0];
  }
  lost(gone);
  return absl::OkStatus();
}

absl::Status ReplicaWorld::Gather(Communicator& all, const void* mine, void* places,
                                  int64_t numbers) const {
  const CallOptions options = TimedCall(timeout_ns_, -1, true);
  Worker::Doing("after a loss: how far the others have come", options.timeout_ns);
  return all.AllGather(mine, places, numbers, DType::kI64, options);
}

absl::Status ReplicaWorld::Shrink(absl::Span<const absl::Status> causes) {
  const std::vector<ReplicaPlace> before = places_;
  std::vector<int> exclude;
  for (const absl::Status& cause : causes) {
    AddLate(*comm(), cause, &exclude);
  }
  while (true) {
    ENTRAIN_RETURN_IF_ERROR(ShrinkWithout(exclude));
    const std::vector<int> broken = OfBrokenReplicas(places_, slots_);
    if (broken.empty()) {
      return absl::OkStatus();
    }
    if (std::binary_search(broken.begin(), broken.end(), comm()->rank())) {
      return Left(before, causes.empty() ? absl::OkStatus() : causes[0]);
    }
    exclude = broken;
  }
}

// Shrinks the communicator. Ranks that do not come in time are left out too.
absl::Status ReplicaWorld::ShrinkWithout(std::vector<int> exclude) {
  const std::shared_ptr<Communicator> parent = comm();
  ShrinkOptions options;
  options.timeout_ns = timeout_ns_ > 0 ? timeout_ns_ : parent->timeout_ns();
  options.exclude = std::move(exclude);
  Worker::Doing("after a loss: agreeing on the ranks that are left", options.timeout_ns);
  absl::StatusOr<std::shared_ptr<Communicator>> smaller = parent->Shrink(options);
  if (smaller.status().code() == absl::StatusCode::kDataLoss) {
    // Other ranks were in another agreement: the one about an admission (AgreeToTakeIn). This error
    // has ended that agreement, so Shrink is called again.
    smaller = parent->Shrink(options);
  }
  if (!smaller.ok() && smaller.status().code() == absl::StatusCode::kDeadlineExceeded) {
    const std::vector<int32_t> late = BlameOf(smaller.status()).late;
    options.exclude.insert(options.exclude.end(), late.begin(), late.end());
    if (!late.empty()) {
      Worker::Doing("after a loss: going on without ranks that are late", options.timeout_ns);
      smaller = parent->Shrink(options);
    }
  }
  ENTRAIN_RETURN_IF_ERROR(smaller.status());
  std::vector<ReplicaPlace> places;
  for (const MemberReport& member : (*smaller)->Members()) {
    places.push_back(places_[static_cast<size_t>(member.parent_rank)]);
  }
  places_ = std::move(places);
  bytes_before_.fetch_add(parent->stats().bytes_sent, std::memory_order_relaxed);
  absl::Status ended;
  {
    absl::MutexLock lock(&mutex_);
    comm_ = *smaller;
    ended = ended_;
  }
  if (!ended.ok()) {
    (*smaller)->LeaveWith(ended);  // End knew only the previous communicator
  }
  return ended;
}

// Returns the error of a rank that leaves because its replica is not complete.
absl::Status ReplicaWorld::Left(const std::vector<ReplicaPlace>& before,
                                const absl::Status& why) const {
  std::string lost;
  for (size_t rank = 0; rank < before.size(); ++rank) {
    const bool here = std::find(places_.begin(), places_.end(), before[rank]) != places_.end();
    if (before[rank].replica == mine_.replica && !here) {
      absl::StrAppend(&lost, lost.empty() ? "" : " and ", "rank ", before[rank].slot, " of it");
    }
  }
  return WithBlame(absl::UnavailableError(absl::StrCat(
                       "replica ", mine_.replica, " has left: ", lost,
                       " was lost, and the other replicas go on without it: ", why.message())),
                   BlameOf(why));
}

}  // namespace entrain
