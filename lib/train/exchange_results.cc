#include "lib/train/exchange_results.h"

namespace entrain {

void ExchangeResults::Met(const std::vector<Standing>& standings, uint64_t rendezvous) {
  absl::MutexLock lock(&mutex_);
  standings_ = standings;
  met_ = static_cast<int64_t>(rendezvous) + 1;
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
    info->wishes |= one.flags & (kWantCheckpoint | kWantStop);
    sum += one.metric_sum;
    weight += one.metric_weight;
  }
  info->metric = sum / weight;  // 0 / 0 is NaN, as documented
}

int64_t ExchangeResults::last_sync_step() const {
  absl::MutexLock lock(&mutex_);
  return shown_.last_sync_step;
}

std::vector<Standing> ExchangeResults::standings() const {
  absl::MutexLock lock(&mutex_);
  return standings_;
}

}  // namespace entrain
