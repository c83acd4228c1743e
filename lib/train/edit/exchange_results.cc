#include "lib/train/edit/exchange_results.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace entrain {

void ExchangeResults::Met(const NormTable& table, uint64_t rendezvous) {
  absl::MutexLock lock(&mutex_);
  met_replicas_ = table.replicas;
  standings_ = table.standings;
  met_ = static_cast<int64_t>(rendezvous) + 1;
}

void ExchangeResults::Lost(ReplicaLoss loss) {
  absl::MutexLock lock(&mutex_);
  losses_.push_back(std::move(loss));
  --replicas_;
}

void ExchangeResults::Joined(int replicas, int most) {
  absl::MutexLock lock(&mutex_);
  replicas_ = replicas;
  most_ = most;
  ++joins_;
}

void ExchangeResults::SetMost(int most) {
  absl::MutexLock lock(&mutex_);
  most_ = most;
}

void ExchangeResults::RoundShort(int64_t round) {
  absl::MutexLock lock(&mutex_);
  short_rounds_ += std::exchange(last_short_, round) == round ? 0 : 1;
}

void ExchangeResults::SetRepairs(int64_t repairs) {
  absl::MutexLock lock(&mutex_);
  repairs_ = repairs;
}

void ExchangeResults::Missed() {
  absl::MutexLock lock(&mutex_);
  ++missed_;
}

void ExchangeResults::LayerOver(bool accepted, bool rolled_back) {
  rejections_ += accepted ? 0 : 1;
  rollbacks_ += rolled_back ? 1 : 0;
}

void ExchangeResults::ExchangeOver(int64_t begun, uint64_t anchor_checksum) {
  ++syncs_;
  absl::MutexLock lock(&mutex_);
  shown_ = {syncs_, begun, anchor_checksum, rejections_, rollbacks_};
}

void ExchangeResults::Begin(int64_t step) {
  absl::MutexLock lock(&mutex_);
  shown_ = {.last_sync_step = step};
}

void ExchangeResults::SetAnchorChecksum(uint64_t checksum) {
  absl::MutexLock lock(&mutex_);
  shown_.anchor_checksum = checksum;
}

void ExchangeResults::VisitState(StateVisitor& visitor) {
  visitor.Value("rejections", Holder::kReplica, &rejections_);
  visitor.Value("rollbacks", Holder::kReplica, &rollbacks_);
  visitor.Value("syncs", Holder::kAll, &syncs_);
}

void ExchangeResults::GoOn(int64_t last_sync_step, uint64_t anchor_checksum, int64_t rendezvous) {
  absl::MutexLock lock(&mutex_);
  shown_ = {syncs_, last_sync_step, anchor_checksum, rejections_, rollbacks_};
  met_ = rendezvous;
  standings_.clear();
}

void ExchangeResults::Fill(EditInfo* info) const {
  absl::MutexLock lock(&mutex_);
  info->syncs = shown_.syncs;
  info->last_sync_step = shown_.last_sync_step;
  info->anchor_checksum = shown_.anchor_checksum;
  info->rejections = shown_.rejections;
  info->rollbacks = shown_.rollbacks;
  info->rendezvous = met_;
  double sum = 0, weight = 0;
  for (const Standing& one : standings_) {
    info->wishes |= one.flags & kWishes;
    sum += one.metric_sum;
    weight += one.metric_weight;
  }
  info->metric = sum / weight;  // 0 / 0 is NaN, as documented
  info->losses = static_cast<int64_t>(losses_.size());
  info->replicas = replicas_;
  info->joins = joins_;
  info->most_replicas = most_;
  info->short_rounds = short_rounds_;
  info->repairs = repairs_;
  info->missed = missed_;
}

int64_t ExchangeResults::last_sync_step() const {
  absl::MutexLock lock(&mutex_);
  return shown_.last_sync_step;
}

int64_t ExchangeResults::rendezvous() const {
  absl::MutexLock lock(&mutex_);
  return met_;
}

absl::StatusOr<Standing> ExchangeResults::StandingOf(int replica) const {
  absl::MutexLock lock(&mutex_);
  if (standings_.empty()) {
    return absl::FailedPreconditionError("the replicas have not met yet");
  }
  if (replica < 0 || replica >= most_) {
    return absl::InvalidArgumentError(
        absl::StrCat("replica ", replica, " is not one of ", most_, " (0 to ", most_ - 1, ")"));
  }
  const auto found = std::find(met_replicas_.begin(), met_replicas_.end(), replica);
  if (found == met_replicas_.end()) {
    const auto lost = std::find_if(losses_.begin(), losses_.end(),
                                   [&](const auto& loss) { return loss.replica == replica; });
    return absl::FailedPreconditionError(absl::StrCat(
        "replica ", replica,
        joins_ == 0 || lost != losses_.end() ? " is lost" : " has not met the others"));
  }
  return standings_[static_cast<size_t>(found - met_replicas_.begin())];
}

std::vector<ReplicaLoss> ExchangeResults::losses() const {
  absl::MutexLock lock(&mutex_);
  return losses_;
}

std::vector<Standing> ExchangeResults::standings() const {
  absl::MutexLock lock(&mutex_);
  return standings_;
}

}  // namespace entrain
