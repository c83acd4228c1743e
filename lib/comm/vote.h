// Finds the rank that has called something else than the others. Vote is a pure state machine
// without I/O or clock.
//
// If a rank finds that another rank made a different call, it knows two calls, but not which of the
// two is wrong. So each member tells all others what it called, and every rank counts the same
// ballots. The call that most members made is right, and the ranks that made another call are
// guilty. If two calls have the same largest number of members, the guilty rank cannot be known.
//
// The vote waits until all ballots have come. For members that have not made the call yet, it waits
// at most kVoteNs.
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
  // A vote may delay the expiry of a call by this time. Together with the inquiry that follows, the
  // delay is at most 250 ms.
  static constexpr int64_t kLateNs = 100 * kMillisecond;

  explicit Vote(int size) : ballots_(static_cast<size_t>(size)) {}

  // Begins a vote. If this vote or a vote about an earlier call is under way, does nothing and
  // returns false.
  bool Begin(CallId call, Deadline until);
  void Stop() { on_ = false; }
  bool on() const { return on_; }
  bool IsAbout(CallId call) const { return on_ && call_ == call; }
  CallId call() const { return call_; }
  Deadline until() const { return until_; }

  // Casts the rank's own ballot. nullopt: the rank does not remember its call any more.
  void Cast(int rank, std::optional<Descriptor> called);
  // Takes another rank's report of the call that `rank` made. The ballot of `rank` itself takes
  // precedence.
  void Witness(int rank, const Descriptor& called);
  // Must be called when the rank will send nothing any more.
  void OnGone(int rank);
  // Returns true if all ballots have come.
  bool Complete() const;

  struct Party {
    Descriptor called;
    std::vector<int> ranks;
  };
  struct Result {
    int guilty = -1;  // -1: cannot be known
    // The largest party first. Among equal parties, that of the lowest rank first.
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
