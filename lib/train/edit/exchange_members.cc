#include "lib/train/edit/exchange_members.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "lib/train/worker/timed_call.h"
#include "lib/train/worker/worker.h"

namespace entrain {
namespace {

uint64_t SentBy(const std::shared_ptr<Communicator>& comm) {
  return comm == nullptr ? 0 : comm->stats().bytes_sent;
}

}  // namespace

ExchangeMembers::ExchangeMembers(ExchangeGroups groups, int64_t timeout_ns)
    : timeout_ns_(timeout_ns),
      groups_(std::move(groups)),
      me_(groups_.sync == nullptr ? 0 : groups_.sync->rank()),
      most_(groups_.sync == nullptr ? 1 : groups_.sync->size()),
      replicas_(static_cast<size_t>(most_)) {
  std::iota(replicas_.begin(), replicas_.end(), 0);
}

void ExchangeMembers::Replace(std::shared_ptr<Communicator> model,
                              std::shared_ptr<Communicator> sync,
                              const std::vector<int>& replicas) {
  replicas_ = replicas;
  absl::MutexLock lock(&mutex_);
  sent_before_.model += SentBy(groups_.model);
  sent_before_.sync += SentBy(groups_.sync);
  groups_.model = std::move(model);
  groups_.sync = std::move(sync);
}

void ExchangeMembers::SetNumbers(int me, int most) {
  me_ = me;
  most_ = most;
}

ExchangeGroups ExchangeMembers::groups() const {
  absl::MutexLock lock(&mutex_);
  return groups_;
}

ExchangeBytes ExchangeMembers::bytes_sent() const {
  absl::MutexLock lock(&mutex_);
  return {sent_before_.model + SentBy(groups_.model), sent_before_.sync + SentBy(groups_.sync)};
}

CallOptions ExchangeMembers::Options(int64_t tag, int64_t extra_ns) const {
  const int64_t usual = timeout_ns_ > 0 || extra_ns == 0 ? timeout_ns_ : groups_.sync->timeout_ns();
  const int64_t room = std::numeric_limits<int64_t>::max() - extra_ns;
  return TimedCall(std::min(usual, room) + extra_ns, tag, true);
}

absl::Status ExchangeMembers::LeaveTogether(int64_t tag, const absl::Status& why) const {
  Worker::Doing("rendezvous: leaving together");
  for (Communicator* const comm : {sync(), model()}) {
    if (comm != nullptr) {
      comm->Barrier(Options(tag)).IgnoreError();
    }
  }
  return why;
}

}  // namespace entrain
