// What a communicator says of its failures: sentences, and records of who is guilty. Decides nothing.
//
// Thread safety: const; [driver] where a work is given.
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

// A function of the caller's that is running.
struct Running {
  const CallWork* work = nullptr;  // the call that it belongs to; null: none is running
  int64_t since_ns = 0;
};

// What an inquiry has found: the member that is waited for, why, and who is guilty of that.
struct Finding {
  int awaited = -1;
  std::string reason;
  Blame blame;
};

class FailureWords {
 public:
  // All outlive it. `name`: the communicator's.
  FailureWords(const std::string& name, const Peers& peers, const Clock& clock)
      : name_(name), peers_(peers), clock_(clock) {}

  // ---- Statuses that end a communicator
  // A transfer of the call has failed because of `cause`.
  absl::Status Explain(const CallWork& work, const absl::Status& cause) const;
  absl::Status TimedOut(const CallWork& work, const Finding& finding, int64_t now_ns) const;
  absl::Status ReductionFailed(const CallWork& work) const;
  // The path to the rank is lost. `work`: the oldest open call, or null. `refused`: why the rank could not start its call,
  // or empty. `cause`: what it had said of an end of its own, or OK.
  absl::Status Loss(int rank, const absl::Status& path, const CallWork* work,
                    const std::string& refused, const absl::Status& cause) const;
  absl::Status Disagreement(CallId call, uint64_t sequence, const Vote::Result& votes) const;
  // For a rank of another communicator, which waits for this one.
  absl::Status HeldUp(const CallWork& work, const Finding& finding) const;

  // ---- The same with more
  // `why` as this communicator's: a rank that it blames is named by its identity too, by which causes travel.
  absl::Status WithMember(const absl::Status& why) const;
  // A rank that ends a communicator of its own accord after another has failed does so because of that. Both are said,
  // and the earlier cause is blamed. `cause`: OK: there is none.
  absl::Status WithEarlierCause(const absl::Status& end, const absl::Status& cause) const;
  // `why`, with the record of who is guilty completed by what this call was.
  absl::Status ForCall(const absl::Status& why, const CallWork& work) const;

  // ---- Records
  // `work`: null: no call. `guilty`: -1: no rank.
  Blame BlameFor(const CallWork* work, int guilty, Phase phase) const;
  // An error of another communicator as one of this: the rank here of the process that it blames; and its code.
  Blame BlameHere(const absl::Status& why) const;
  static absl::StatusCode CodeHere(const absl::Status& why);
  Blame WithCall(Blame blame, const CallWork& work) const;

  // ---- Parts of sentences
  // "it is in the user reduction of all_reduce #2, which has not returned for 0.5 s"
  std::string Words(const Running& running, int64_t now_ns) const;
  // This rank is in a function of the caller's.
  Finding FindingOf(const Running& running, int64_t now_ns) const;
  std::string ReductionOf(const CallWork& work) const;
  // "rank 3", "ranks 0, 1, 2"; of many the first.
  static std::string RankList(const std::vector<int>& ranks);

 private:
  const std::string& name_;
  const Peers& peers_;
  const Clock& clock_;
};

}  // namespace entrain
