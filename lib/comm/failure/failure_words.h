// Writes the error messages of a communicator and the blame records. Makes no decisions.
//
// Thread safety: all functions are const. Functions that take a work may be called only by the
// driver.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/comm/call_work.h"
#include "lib/comm/failure/mismatch.h"
#include "lib/comm/peers.h"

namespace entrain {

// A running function of the caller (a reduction).
struct Running {
  const CallWork* work = nullptr;  // the call of the function; null: no function is running
  int64_t since_ns = 0;
};

// The result of an inquiry. `awaited`: the member for which this rank waits. `blame`: the guilty
// rank.
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
  // Returns the status for a call of which a transfer has failed with `cause`.
  absl::Status Explain(const CallWork& work, const absl::Status& cause) const;
  // Returns the error of a call that waits for members whose libraries have answered nothing for
  // `allowed_ns`. `silent` is not empty.
  absl::Status Silent(const CallWork& work, const std::vector<int32_t>& silent, int64_t allowed_ns,
                      int64_t now_ns) const;
  absl::Status TimedOut(const CallWork& work, const Finding& finding, int64_t now_ns) const;
  absl::Status ReductionFailed(const CallWork& work) const;
  // Returns the status after the path to the rank was lost. `work`: the oldest open call, or null.
  // `refused`: the reason why that rank could not start its call, or empty. `cause`: the status
  // with which that rank has reported the end of one of its communicators. OK: no report.
  absl::Status Loss(int rank, const absl::Status& path, const CallWork* work,
                    const std::string& refused, const absl::Status& cause) const;
  absl::Status Disagreement(CallId call, uint64_t sequence, const Vote::Result& votes) const;
  // Returns the status for a rank that waits for this rank in another communicator. The status
  // names the call and the rank for which this rank itself waits.
  absl::Status HeldUp(const CallWork& work, const Finding& finding) const;

  // ---- Statuses with more details
  // Returns `why`. If it blames a rank, adds the identity of the rank's process to the blame. In
  // other communicators the process may have another rank, so they need the identity.
  absl::Status WithMember(const absl::Status& why) const;
  // If this rank itself aborts a communicator after another communicator has failed, the earlier
  // failure is the reason. Returns a status that names both failures and blames the earlier
  // failure. `cause`: the earlier failure. Returns `end` unchanged if `cause` is OK, if `end` is
  // not kAborted, or if `end` blames another rank.
  absl::Status WithEarlierCause(const absl::Status& end, const absl::Status& cause) const;
  // Returns `why`, with this call added to the blame record.
  absl::Status ForCall(const absl::Status& why, const CallWork& work) const;

  // ---- Records
  // Returns a blame record. `work` null: the record names no call. `guilty` -1: the record blames
  // no rank.
  Blame BlameFor(const CallWork* work, int guilty, Phase phase) const;
  // BlameHere and CodeHere translate an error of another communicator for this communicator.
  // BlameHere returns the blame, with the rank that the blamed process has in this communicator.
  // CodeHere returns the error code.
  Blame BlameHere(const absl::Status& why) const;
  static absl::StatusCode CodeHere(const absl::Status& why);
  Blame WithCall(Blame blame, const CallWork& work) const;

  // ---- Parts of sentences
  // Returns "it is in the user reduction of all_reduce #2, which has not returned for 0.5 s"
  std::string Words(const Running& running, int64_t now_ns) const;
  // Returns the finding that this rank is running a function of the caller.
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
