// Decides which ranks' calls do not match, by a vote of all ranks. Mismatches is a pure state
// machine without I/O and clock. CommCore sends its ballots and ends the communicator with its
// verdict.
//
// If a rank finds that another rank made a different call, the rank does not know which of the two
// calls is wrong. So each member sends a ballot with its call to all other members. Every rank
// counts the same ballots. The call that most members made is right. The ranks that made another
// call are guilty. If two calls tie for the largest number of members, the guilty rank cannot be
// known.
//
// The vote ends when all ballots have come, or at its time limit. The time limit is kVoteNs and two
// round trips, or less (Mismatches::Until). A member that has not made the call has no ballot yet.
//
// CallRunner compares the calls. Only a difference comes here.
//
// Thread safety: none. Belongs to the communicator's driver.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "lib/base/call.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/comm/failure/blame.h"
#include "lib/comm/failure/call_notes.h"

namespace entrain {

// The ballots of one vote.
class Vote {
 public:
  static constexpr int64_t kVoteNs = 200 * kMillisecond;
  // A vote may delay the expiry of a call by at most this time. With the inquiry that follows, the
  // delay is at most 250 ms and two round trips.
  static constexpr int64_t kLateNs = 100 * kMillisecond;

  explicit Vote(int size) : ballots_(static_cast<size_t>(size)) {}

  // Begins a vote about the call. If a vote about this call or an earlier call is under way, does
  // nothing and returns false.
  bool Begin(CallId call, Deadline until);
  void Stop() { on_ = false; }
  bool on() const { return on_; }
  bool IsAbout(CallId call) const { return on_ && call_ == call; }
  CallId call() const { return call_; }
  Deadline until() const { return until_; }

  // Adds the ballot of `rank`. nullopt: the rank does not remember its call any more.
  void Cast(int rank, std::optional<Descriptor> called);
  // Adds another rank's report of the call that `rank` made. If the ballot of `rank` contains a
  // call, that call takes precedence.
  void Witness(int rank, const Descriptor& called);
  // Must be called when the rank cannot send anything any more.
  void OnGone(int rank);
  // Returns true if all ballots have come.
  bool Complete() const;

  // The ranks that made the same call.
  struct Party {
    Descriptor called;
    std::vector<int> ranks;
  };
  struct Result {
    int guilty = -1;  // -1: cannot be known
    // Sorted by size, largest first. Parties of equal size are sorted by their lowest rank.
    std::vector<Party> parties;
    std::vector<int> silent;  // ranks whose call is not known
  };
  Result Count() const;

 private:
  struct Ballot {
    bool final = false;
    std::optional<Descriptor> called;
  };
  bool on_ = false;
  CallId call_;
  Deadline until_;
  std::vector<Ballot> ballots_;  // by rank
};

class Mismatches {
 public:
  // The end of a vote. If all ballots are equal, `votes` has one party, and `between_two` is the
  // difference that the descriptors do not show. OK: there is none.
  struct Verdict {
    Vote::Result votes;
    absl::Status between_two;
  };

  Mismatches(int rank, int size)
      : rank_(rank), gone_(static_cast<size_t>(size), false), vote_(size) {}

  // Returns the time limit of a vote that begins now. If the deadline of a call passes during the
  // vote, the inquiry about the call begins after the vote. So the vote must end at most
  // Vote::kLateNs after `first_deadline`, the earliest deadline of the calls about which no inquiry
  // has begun. `round_trip_ns`: of the slowest path.
  static Deadline Until(int64_t now_ns, int64_t round_trip_ns, Deadline first_deadline);

  // ---- Events. `until`: the time limit if the event begins a vote. TakeBallot and TakeVerdict must
  // be called soon after each of them.
  // `from` has made another call than this rank under the number of `call`.
  void Found(CallId call, int from, const Descriptor& theirs, Deadline until);
  // This rank and another rank have found a difference that their descriptors do not show. If all
  // ballots are equal, the verdict is `why`.
  void FoundBetweenTwo(CallId call, absl::Status why, Deadline until);
  // Handles another rank's ballot.
  void OnBallot(int rank, Reader& reader, Deadline until);
  // The rank cannot send anything any more.
  void OnGone(int rank);
  // The communicator has ended.
  void Stop() { vote_.Stop(); }

  // ---- The vote
  bool voting() const { return vote_.on(); }
  // The next two need voting().
  CallId call() const { return vote_.call(); }
  Deadline until() const { return vote_.until(); }
  bool gone(int rank) const { return gone_[static_cast<size_t>(rank)]; }
  // Returns the ballot that the driver must send to all ranks that are not gone. Returns nullopt if
  // it has been sent, or if this rank has not made the call yet. `mine`: this rank's call of the
  // number call(), open or over. `forgotten`: the call is over, and no record of it is left.
  std::optional<std::string> TakeBallot(const std::optional<OwnCall>& mine, bool forgotten);
  // If all ballots have come or until() has passed, ends the vote and returns the verdict.
  std::optional<Verdict> TakeVerdict(int64_t now_ns);

 private:
  void Begin(CallId call, Deadline until);

  const int rank_;
  std::vector<bool> gone_;  // by rank
  Vote vote_;
  bool voted_ = false;  // this rank has voted
  int witnessed_ = -1;  // the rank whose call began the vote
  Descriptor witnessed_call_;
  absl::Status between_two_;
};

}  // namespace entrain
