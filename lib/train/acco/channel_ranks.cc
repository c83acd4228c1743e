#include "lib/train/acco/channel_ranks.h"

#include <numeric>
#include <utility>

#include "lib/base/status.h"

namespace entrain {

absl::Status ChannelRanks::Start() {
  const std::shared_ptr<Communicator> comm = first_comm_;
  if (options_.ranks_change()) {
    ENTRAIN_ASSIGN_OR_RETURN(world_, ReplicaWorld::Make(comm, {.replica = comm->rank(), .slot = 0},
                                                        1, options_.timeout_ns));
    first_comm_ = nullptr;  // world_ owns the communicator, and may replace it
    StartMembership();
  }
  next_number_ = comm->size();
  std::vector<int> members(static_cast<size_t>(comm->size()));
  std::iota(members.begin(), members.end(), 0);
  ENTRAIN_ASSIGN_OR_RETURN(auto cut, ChannelCut::Make(comm, options_, std::move(members)));
  SetCut(std::move(cut));
  return absl::OkStatus();
}

void ChannelRanks::StartMembership() {
  if (recovers()) {
    world_->comm()->SetSilence(
        SilenceOf(options_.silence, options_.admit, world_->comm()->silence_ns()));
  }
  if (options_.admit == Admit::kExchange) {
    admission_ = std::make_unique<ChannelAdmission>(options_, *world_,
                                                    [this](const absl::Status& why) { End(why); });
  }
}

void ChannelRanks::SetCut(std::unique_ptr<ChannelCut> cut) {
  cut_ = std::move(cut);
  cut_bytes_.store(cut_->bytes(), std::memory_order_relaxed);
}

std::shared_ptr<Communicator> ChannelRanks::comm() const {
  return world_ == nullptr ? first_comm_ : world_->comm();
}

uint64_t ChannelRanks::bytes_sent() const {
  return comm()->stats().bytes_sent + (world_ == nullptr ? 0 : world_->bytes_before());
}

void ChannelRanks::End(const absl::Status& why) {
  stopped_.store(true);  // before the communicator ends
  if (world_ != nullptr) {
    world_->End(why);
  } else {
    first_comm_->EndWith(why);
  }
}

void ChannelRanks::Abort(absl::string_view reason) {
  stopped_.store(true);  // before the communicator ends
  comm()->Abort(reason);
  if (world_ != nullptr) {
    world_->End(absl::AbortedError(reason));  // also ends the communicator with newcomers
  }
}

// ---- After a loss ------------------------------------------------------------------------------

absl::Status ChannelRanks::Lost() const {
  if (!recovers() || stopped_.load()) {
    return absl::OkStatus();
  }
  ENTRAIN_RETURN_IF_ERROR(LossOf(cut_->comm().get()));
  return LossOf(world_->comm().get());
}

// Returns false for an error that only this rank has met, because a smaller communicator would not
// help.
bool ChannelRanks::Answers(const absl::Status& status) const {
  const bool aborted_by_another = status.code() == absl::StatusCode::kAborted && HasBlame(status);
  return (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || aborted_by_another) &&
         !Lost().ok();
}

absl::Status ChannelRanks::Shrink(int64_t round) {
  const auto note = [&](const LostReplicas& lost) {
    absl::MutexLock lock(&mutex_);
    for (const int rank : lost.replicas) {
      losses_.push_back({.rank = rank, .round = round, .why = lost.why});
    }
  };
  ENTRAIN_RETURN_IF_ERROR(world_->RemoveLost({cut_->comm(), world_->comm()}, note));
  if (stopped_.load()) {
    // End may have been called before the communicator was replaced, so the new communicator must
    // end too.
    const absl::Status stopped = absl::AbortedError("this rank left after a loss");
    world_->comm()->LeaveWith(stopped);
    return stopped;
  }
  return absl::OkStatus();
}

std::vector<ChannelLoss> ChannelRanks::losses() const {
  absl::MutexLock lock(&mutex_);
  return losses_;
}

absl::Status ChannelRanks::PrepareCut(std::shared_ptr<Communicator> comm, std::vector<int> members,
                                      absl::Span<const int> holders) {
  prepared_ = nullptr;
  ENTRAIN_ASSIGN_OR_RETURN(auto cut,
                           ChannelCut::Make(std::move(comm), options_, std::move(members)));
  ENTRAIN_RETURN_IF_ERROR(cut->TakeFrom(cut_.get(), holders));
  prepared_ = std::move(cut);
  return absl::OkStatus();
}

int64_t ChannelRanks::prepared() const {
  return prepared_ == nullptr ? 0 : static_cast<int64_t>(prepared_->comm()->generation());
}

void ChannelRanks::TakeCut() {
  if (prepared_ != nullptr) {
    SetCut(std::exchange(prepared_, nullptr));
    ++cuts_;
  }
}

// ---- Newcomers ---------------------------------------------------------------------------------

void ChannelRanks::AwaitNewcomers() {
  if (admission_ != nullptr) {
    admission_->Await();
  }
}

void ChannelRanks::DropNewcomers(absl::string_view why) {
  if (admission_ != nullptr) {
    admission_->Drop(why);
  }
}

// Replaces the partition by `cut`, the partition for members and newcomers.
void ChannelRanks::Adopt(const EnlargedWorld& enlarged, std::unique_ptr<ChannelCut> cut,
                         int64_t cuts, int64_t joins) {
  SetCut(std::move(cut));
  prepared_ = nullptr;
  cuts_ = cuts + 1;
  joins_ = joins + static_cast<int64_t>(enlarged.parties.newcomers.size());
  next_number_ = enlarged.places.back().replica + 1;  // the last rank is a newcomer
}

void ChannelRanks::Enlarge(const EnlargedWorld& enlarged, std::unique_ptr<ChannelCut> cut) {
  world_->Adopt(enlarged.world, enlarged.places);
  Adopt(enlarged, std::move(cut), cuts_, joins_);
}

void ChannelRanks::Become(const EnlargedWorld& enlarged, std::unique_ptr<ChannelCut> cut,
                          const ChannelTotals& totals) {
  admission_ = nullptr;
  {  // an earlier attempt to join may have failed
    stopped_.store(false);
    joint_calls_ = std::make_unique<JointCalls>();
    absl::MutexLock lock(&mutex_);
    losses_.clear();
  }
  world_ = ReplicaWorld::Of(enlarged.world, 1, options_.timeout_ns, enlarged.places);
  first_comm_ = nullptr;
  StartMembership();
  Adopt(enlarged, std::move(cut), totals.cuts, totals.joins);
}

}  // namespace entrain
