// Tells the ranks of a replica, at each step, on which of some conditions all of them agreed at the
// step before. Agree does not wait for the other ranks' present step: it begins an all-reduce of one
// byte for each condition, which runs during the step.
//
// Thread safety: one thread at a time, except GiveUp.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "lib/comm/communicator.h"

namespace entrain {

class ReplicaAgreement {
 public:
  // Nothing else may use `replica`, which has the ranks of the replica; null: it has one rank.
  // `timeout_ns` limits each call; 0: the communicator's default.
  ReplicaAgreement(std::shared_ptr<Communicator> replica, int64_t timeout_ns)
      : replica_(std::move(replica)), timeout_ns_(timeout_ns) {}
  // Waits up to 2 s for a call that other ranks may still need.
  ~ReplicaAgreement();

  // Collective over the replica. `mine` has this rank's conditions, always the same number. Returns
  // the conditions that were true on all ranks at the last call. They are not asked about at this
  // call, because the caller acts on them now. A replica of one rank gets `mine`.
  absl::StatusOr<std::vector<bool>> Agree(const std::vector<bool>& mine);
  // Drops the answer to the last call. Must be called by all ranks at the same step.
  void Forget() { stale_ = static_cast<bool>(asked_); }
  // Makes a pending call fail on all ranks. May be called from any thread.
  void GiveUp(const absl::Status& why);

 private:
  const std::shared_ptr<Communicator> replica_;
  const int64_t timeout_ns_;
  RefPtr<Work> asked_;        // all-reduce of the last call; null: none
  std::vector<uint8_t> all_;  // its buffer
  bool stale_ = false;        // Forget was called since
};

}  // namespace entrain
