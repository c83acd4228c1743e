// Writes the error messages of a communicator, and the blame records that name the guilty rank.
// Makes no decisions.
//
// Thread safety: all functions are const. Functions that take a work are [driver].
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/comm/call_work.h"
#include "lib/comm/peers.h"
#include "lib/comm/vote.h"

namespace entrain {

// A function of the caller that is running.
struct Running {
  const CallWork* work = nullptr;  // the call of the function; null: no function is running
  int64_t since_ns = 0;
};

// The result of an inquiry: the member that is waited for, the reason, and the guilty rank.
struct Finding {
  int awaited = -1;
  std::string reason;
  Blame blame;
};

class FailureWords {
 public:
  // All arguments must outlive this object. `name`, `generation`: the communicator's.
  FailureWords(const std::string& name, const Peers& peers, const Clock& clock,
               uint64_t generation = 0)
      : name_(name), peers_(peers), clock_(clock), generation_(generation) {}

  // ---- Statuses that end a communicator
  // Returns the status for a call. A transfer of the call has failed because of `cause`.
  absl::Status Explain(const CallWork& work, const absl::Status& cause) const;
  absl::Status TimedOut(const CallWork& work, const Finding& finding, int64_t now_ns) const;
  absl::Status ReductionFailed(const CallWork& work) const;
  // Returns the status after the path to the rank was lost. `work`: the oldest open call, or null.
  // `refused`: the reason why the rank could not start its call, or empty. `cause`: the status with
  // which the rank has reported that one of its communicators ended. OK: no report.
  absl::Status Loss(int rank, const absl::Status& path, const CallWork* work,
                    const std::string& refused, const absl::Status& cause) const;
  absl::Status Disagreement(CallId call, uint64_t sequence, const Vote::Result& votes) const;
  // Returns the status for a rank of another communicator that waits for this rank. The status says
  // what this rank waits for.
  absl::Status HeldUp(const CallWork& work, const Finding& finding) const;

  // ---- Statuses with more details
  // Returns `why`. If it blames a rank, adds the identity of the rank's process to the blame. Other
  // communicators need the identity, because the process has other ranks there.
  absl::Status WithMember(const absl::Status& why) const;
  // If this rank ends a communicator after another communicator has failed (`cause`), the earlier
  // failure is the reason. Returns a status that names both failures and blames the earlier one.
  // Returns `end` if `cause` is OK, because then there is no earlier failure.
  absl::Status WithEarlierCause(const absl::Status& end, const absl::Status& cause) const;
  // Returns `why` and adds this call to the record of the guilty rank.
  absl::Status ForCall(const absl::Status& why, const CallWork& work) const;

  // ---- Records
  // Returns a record. `work` null: the record names no call. `guilty` -1: it blames no rank.
  Blame BlameFor(const CallWork* work, int guilty, Phase phase) const;
  // BlameHere and CodeHere translate an error of another communicator for this communicator.
  // BlameHere finds the rank that the blamed process has here. CodeHere finds the error code.
  Blame BlameHere(const absl::Status& why) const;
  static absl::StatusCode CodeHere(const absl::Status& why);
  Blame WithCall(Blame blame, const CallWork& work) const;

  // ---- Parts of sentences
  // "it is in the user reduction of all_reduce #2, which has not returned for 0.5 s"
  std::string Words(const Running& running, int64_t now_ns) const;
  // Returns the finding that this rank is in a function of the caller.
  Finding FindingOf(const Running& running, int64_t now_ns) const;
  std::string ReductionOf(const CallWork& work) const;
  // Returns "rank 3" or "ranks 0, 1, 2". A long list is cut.
  static std::string RankList(const std::vector<int>& ranks);

 private:
  const std::string& name_;
  const Peers& peers_;
  const Clock& clock_;
  const uint64_t generation_;
};

}  // namespace entrain
