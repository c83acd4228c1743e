// The members of a rank's exchanges: the communicators of its model group and its sync group, and
// the numbers of the replicas. The communicators and the numbers are replaced after a loss and when
// newcomers have joined.
//
// Thread safety: any thread may call groups and bytes_sent. Replace runs on the worker, or on the
// caller's thread before the worker exists. SetNumbers runs only before the worker exists. So any
// thread may call me and most afterwards. All other functions belong to the thread that runs the
// exchange.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

#include "lib/base/call.h"
#include "lib/comm/communicator.h"
#include "lib/train/edit/replica_sums.h"

namespace entrain {

// Bytes that this rank has sent in exchanges.
struct ExchangeBytes {
  uint64_t model = 0, sync = 0;
};

class ExchangeMembers {
 public:
  // `timeout_ns` is the time limit of each call. If it is 0, the group's default applies. At first,
  // the number of a replica is its rank in the sync group.
  ExchangeMembers(ExchangeGroups groups, int64_t timeout_ns);

  // Replaces the communicators. `replicas` has the numbers of the replicas, by rank of `sync`.
  void Replace(std::shared_ptr<Communicator> model, std::shared_ptr<Communicator> sync,
               const std::vector<int>& replicas) ABSL_LOCKS_EXCLUDED(mutex_);
  // Sets the number of this replica to `me`. The numbers of all replicas must be below `most`.
  void SetNumbers(int me, int most);

  ExchangeGroups groups() const ABSL_LOCKS_EXCLUDED(mutex_);
  ExchangeBytes bytes_sent() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the groups without a copy, for the thread that runs the exchange.
  const ExchangeGroups& now() const { return groups_; }
  // Return null if the group has one rank.
  Communicator* model() const { return groups_.model.get(); }
  Communicator* sync() const { return groups_.sync.get(); }
  // Returns the numbers of the replicas, by rank of the sync group.
  const std::vector<int>& replicas() const { return replicas_; }
  // Returns the number of this replica.
  int me() const { return me_; }
  // Returns a number that is above the numbers of all replicas.
  int most() const { return most_; }

  // Returns the options of a call on the host. `extra_ns` is added to the time limit.
  CallOptions Options(int64_t tag, int64_t extra_ns = 0) const;
  // Ends this rank's part in a rendezvous with the error `why`. All ranks of all replicas must have
  // an error and must call this function. They leave together, so that each rank reports its own
  // error and not the abort of another rank. The function waits in a barrier of the sync group,
  // then in a barrier of the model group. After both barriers, all ranks of all replicas have
  // called the function. Returns `why`.
  absl::Status LeaveTogether(int64_t tag, const absl::Status& why) const;

 private:
  const int64_t timeout_ns_;
  mutable absl::Mutex mutex_;
  ExchangeGroups groups_;  // changed with mutex_ held; other threads read it with mutex_ held
  // Bytes sent in communicators that Replace has replaced.
  ExchangeBytes sent_before_ ABSL_GUARDED_BY(mutex_);
  int me_, most_;
  std::vector<int> replicas_;
};

}  // namespace entrain
