// Which rank has called something else: a pure machine without I/O or clock.
//
// A rank that finds that another one made a different call knows two calls and not which is wrong. So each member tells
// all others what it called, and every rank counts the same ballots: the call of the most members is right, and who made
// another one is guilty. Where no call has the most, nobody can know who is guilty.
//
// Ballots are awaited until all have come; those of members that have not come to the call yet, at most for kVoteNs.
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
  // How much later a call may expire because of a vote: with the inquiry that follows not more than 250 ms.
  static constexpr int64_t kLateNs = 100 * kMillisecond;

  explicit Vote(int size) : ballots_(static_cast<size_t>(size)) {}

  // False, and nothing was done: this vote is under way already, or one about an earlier call.
  bool Begin(CallId call, Deadline until);
  void Stop() { on_ = false; }
  bool on() const { return on_; }
  bool IsAbout(CallId call) const { return on_ && call_ == call; }
  CallId call() const { return call_; }
  Deadline until() const { return until_; }

  // What the rank says that it called; nullopt: it cannot tell any more.
  void Cast(int rank, std::optional<Descriptor> called);
  // What another one says that this rank called. Its own word counts more.
  void Witness(int rank, const Descriptor& called);
  // It will not say anything any more.
  void OnGone(int rank);
  // All ballots have come.
  bool Complete() const;

  struct Party {
    Descriptor called;
    std::vector<int> ranks;
  };
  struct Result {
    int guilty = -1;             // -1: cannot be known
    std::vector<Party> parties;  // the largest first; of equal ones that of the lowest rank
    std::vector<int> silent;     // ranks of which no call is known
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
