#include "lib/train/acco/channel_recovery.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "lib/base/status.h"
#include "lib/train/acco/gradient_round.h"
#include "lib/train/worker/timed_call.h"
#include "lib/train/worker/worker.h"

namespace entrain {

std::vector<ChannelLoss> ChannelRecovery::losses() const {
  absl::MutexLock lock(&mutex_);
  return losses_;
}

// Returns false for an error that only this rank has met, because a smaller communicator would not
// help.
bool ChannelRecovery::Answers(const absl::Status& status, const ChannelRanks& ranks) const {
  const bool aborted_by_another = status.code() == absl::StatusCode::kAborted && HasBlame(status);
  return (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || aborted_by_another) &&
         !Needed(ranks).ok() && !stopped_.load();
}

absl::Status ChannelRecovery::Lost(const ChannelRanks& ranks) const {
  return stopped_.load() ? absl::OkStatus() : Needed(ranks);
}

// Returns the loss that has ended one of the two communicators: that of the partition, or that of
// all ranks. Returns OK if there is no loss.
absl::Status ChannelRecovery::Needed(const ChannelRanks& ranks) const {
  ENTRAIN_RETURN_IF_ERROR(LossOf(ranks.cut().comm().get()));
  return LossOf(world_.comm().get());
}

absl::Status ChannelRecovery::Run(GradientRound& round) {
  round.ranks().DropNewcomers("a member was lost");
  while (true) {
    ENTRAIN_RETURN_IF_ERROR(Shrink(round));
    const absl::Status status = GoOn(round);
    if (status.ok() || Needed(round.ranks()).ok() || status.code() == absl::StatusCode::kDataLoss) {
      return status;
    }
  }
}

// Ends both communicators. Replaces the communicator of all ranks by one of the remaining ranks.
absl::Status ChannelRecovery::Shrink(const GradientRound& round) {
  const std::shared_ptr<Communicator> world = world_.comm(), cut = round.ranks().cut().comm();
  std::vector<absl::Status> causes;
  for (const auto& one : {cut, world}) {
    if (const absl::Status loss = LossOf(one.get()); !loss.ok()) {
      causes.push_back(loss);
    }
  }
  Worker::Doing("after a loss: ending the communicators");
  for (const auto& one : {cut, world}) {
    if (!causes.empty()) {
      one->EndWith(causes[0]);
    }
  }
  const std::vector<int> before = ReplicasOf(world_.places());
  ENTRAIN_RETURN_IF_ERROR(world_.Shrink(causes));
  const std::vector<int> left = ReplicasOf(world_.places());
  if (left.size() == before.size() && !causes.empty()) {
    return causes[0];  // no rank is lost, but the network is too slow for the time limit
  }
  if (stopped_.load()) {
    // Stop may have been called before the communicator was replaced, so the new communicator must
    // end too.
    const absl::Status stopped = absl::AbortedError("this rank left after a loss");
    world_.comm()->LeaveWith(stopped);
    return stopped;
  }
  absl::MutexLock lock(&mutex_);
  for (const int rank : before) {
    if (!std::binary_search(left.begin(), left.end(), rank)) {
      losses_.push_back({.rank = rank,
                         .round = round.state().number(),
                         .why = causes.empty() ? "" : std::string(causes[0].message())});
    }
  }
  return absl::OkStatus();
}

absl::Status ChannelRecovery::GoOn(GradientRound& round) {
  ENTRAIN_ASSIGN_OR_RETURN(const std::vector<ChannelPlace> places, GatherPlaces(round.place()));
  ENTRAIN_ASSIGN_OR_RETURN(const CommitPlan plan, PlanCommit(places));
  ENTRAIN_RETURN_IF_ERROR(
      joint_calls_.Settle(*world_.comm(), round.state().progress().rounds(), timeout_ns_));
  if (plan.take_cut) {
    round.ranks().TakeCut();
  }
  if (plan.decided >= 0) {
    ENTRAIN_RETURN_IF_ERROR(Decide(plan, round));
  }
  ENTRAIN_RETURN_IF_ERROR(CutAnew(round));
  if (plan.finished >= 0) {
    Worker::Doing("after a loss: parameters of the round");
    ENTRAIN_RETURN_IF_ERROR(round.ShareParameters(plan.finished, plan.rounds));
  } else if (plan.decided >= 0) {
    Worker::Doing("after a loss: gathering the masters");
    ENTRAIN_RETURN_IF_ERROR(round.GatherMasters());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ChannelPlace>> ChannelRecovery::GatherPlaces(const ChannelPlace& mine) {
  const std::shared_ptr<Communicator> world = world_.comm();
  const CallOptions options = TimedCall(timeout_ns_, -1, true);
  Worker::Doing("after a loss: how far the others have come", options.timeout_ns);
  std::vector<ChannelPlace> places(static_cast<size_t>(world->size()));
  constexpr int64_t kNumbers = sizeof(ChannelPlace) / sizeof(int64_t);
  ENTRAIN_RETURN_IF_ERROR(world->AllGather(&mine, places.data(), kNumbers, DType::kI64, options));
  return places;
}

// Collective. Sends the outcome of the round to all ranks. If the round is a commit, each rank that
// has not made its step makes it.
absl::Status ChannelRecovery::Decide(const CommitPlan& plan, GradientRound& round) {
  const CallOptions options = TimedCall(timeout_ns_, -1, true);
  Worker::Doing("after a loss: the votes", options.timeout_ns);
  RoundOutcome outcome = round.state().outcome();
  static_assert(std::is_trivially_copyable_v<RoundOutcome>);
  ENTRAIN_RETURN_IF_ERROR(
      world_.comm()->Broadcast(&outcome, sizeof(outcome), DType::kU8, plan.decided, options));
  return round.Decide(plan.rounds, outcome);
}

// Collective. Makes a new partition for the remaining ranks.
absl::Status ChannelRecovery::CutAnew(GradientRound& round) {
  const std::vector<int> left = ReplicasOf(world_.places());
  ENTRAIN_ASSIGN_OR_RETURN(const std::vector<int> holders,
                           HoldersOf(round.ranks().cut().members(), left));
  ENTRAIN_RETURN_IF_ERROR(round.ranks().PrepareCut(world_.comm(), left, holders));
  const CallOptions options = TimedCall(timeout_ns_, -1, true);
  Worker::Doing("after a loss: the votes for the new cut", options.timeout_ns);
  ENTRAIN_RETURN_IF_ERROR(world_.comm()->Barrier(options));
  round.ranks().TakeCut();
  return absl::OkStatus();
}

}  // namespace entrain
