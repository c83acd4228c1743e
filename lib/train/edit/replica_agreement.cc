#include "lib/train/edit/replica_agreement.h"

#include <utility>

#include "lib/base/status.h"
#include "lib/train/worker/timed_call.h"

namespace entrain {
namespace {

constexpr int64_t kGraceNs = 2 * kSecond;

}  // namespace

ReplicaAgreement::~ReplicaAgreement() {
  // The other ranks may still need this rank's part of the call. They are at most one step behind.
  if (asked_ && !asked_->Wait(Deadline::After(kGraceNs))) {
    replica_->Abort("destroyed during a step");
    asked_->Wait(Deadline::Never());  // the call writes to all_
  }
}

void ReplicaAgreement::GiveUp(const absl::Status& why) {
  if (replica_ != nullptr) {
    replica_->EndWith(why);
  }
}

absl::StatusOr<std::vector<bool>> ReplicaAgreement::Agree(const std::vector<bool>& mine) {
  if (replica_ == nullptr) {
    return mine;
  }
  std::vector<bool> agreed(mine.size());
  if (asked_) {
    asked_->Wait(Deadline::Never());  // the call has a deadline of its own
    ENTRAIN_RETURN_IF_ERROR(asked_->status());
    asked_ = {};
    if (!stale_) {
      agreed.assign(all_.begin(), all_.end());
    }
  }
  stale_ = false;
  all_.resize(mine.size());
  for (size_t i = 0; i < mine.size(); ++i) {
    all_[i] = mine[i] && !agreed[i] ? 1 : 0;
  }
  Call call;
  call.kind = CallKind::kAllReduce;
  call.dtype = DType::kU8;
  call.reduction.op = ReduceOp::kMin;
  call.count = std::ssize(all_);
  call.in = call.out = {all_.data(), call.count};
  call.options = TimedCall(timeout_ns_, 0, false);
  ENTRAIN_ASSIGN_OR_RETURN(asked_, replica_->Start(call));
  return agreed;
}

}  // namespace entrain
