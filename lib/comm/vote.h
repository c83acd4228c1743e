// Finds the rank whose call differs from the calls of the other ranks. Vote is a pure state machine
// without I/O and clock.
//
// If a rank finds that another rank made a different call, the rank does not know which of the two
// calls is wrong. So each member sends a ballot with its call to all other members. Every rank
// counts the same ballots. The call that most members made is right. The ranks that made another
// call are guilty. If two calls tie for the largest number of members, the guilty rank cannot be
// known.
//
// The vote ends when all ballots have come, or at its time limit. The time limit is kVoteNs and two
// round trips, or less (Mismatches::Begin). A member that has not made the call has no ballot yet.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lib/base/call.h"
#include "lib/base/clock.h"
#include "lib/comm/membership.h"

namespace entrain {

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

}  // namespace entrain
