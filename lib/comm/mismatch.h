// Finds ranks that called different things, and, by a vote of all ranks (vote.h), which of them is guilty.
//
// Every message carries the descriptor of its call. What a peer has called is compared with the call of the same number
// here: with an open one at once; with one that starts later when it starts; with one that is over as long as it is
// remembered (call_notes.h).
//
// Thread safety: none; the communicator's driver.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

#include "lib/base/call.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/comm/call_notes.h"
#include "lib/comm/peers.h"
#include "lib/comm/vote.h"
#include "lib/engine/plan.h"
#include "lib/engine/work.h"

namespace entrain {

// The calls under way, as mismatches need them (OpenCalls).
class ComparedCalls {
 public:
  virtual ~ComparedCalls() = default;
  // The open collective of this number.
  virtual std::optional<OwnCall> OwnCollective(CallId call) const = 0;
  // The first deadline of the calls that are not being asked about: by when ballots must have come. Never: there is none.
  virtual Deadline FirstDeadline() const = 0;
};

// The communicator, as its mismatches need it.
class MismatchOwner {
 public:
  virtual ~MismatchOwner() = default;
  // The rank has left, or its path is lost: it says nothing any more.
  virtual bool SaysNothing(int rank) const = 0;
  // What was sent must reach the peers before the driver leaves.
  virtual void NeedFlush() = 0;
  // Soon calls Mismatches::Attend.
  virtual void NeedAttention() = 0;
  // Ends the communicator: ranks called different things. `sequence`: of the call here.
  virtual void Disagree(CallId call, uint64_t sequence, const Vote::Result& votes) = 0;
  // Ends the communicator.
  virtual void Fail(const absl::Status& why) = 0;
};

class Mismatches {
 public:
  // All outlive it.
  Mismatches(MismatchOwner& owner, const ComparedCalls& open, const Peers& peers,
             const Clock& clock);
  ~Mismatches();

  // ---- What is known of calls
  // What the peer has called. Noted where ours has not started.
  void Compare(const Endpoint& from, CallId call, const Descriptor& theirs);
  // A call of ours starts, or is over and never was open.
  void Meet(const Wiring& call, const Descriptor& mine);
  // A call of ours is over.
  void NoteOver(const Wiring& call, const Descriptor& mine);

  // ---- The vote
  bool voting() const { return vote_.on(); }
  Deadline until() const { return vote_.until(); }
  // Two ranks have found a difference that their descriptors do not show. If all have called the same, this is the error.
  void FoundBetweenTwo(CallId call, absl::Status why);
  void OnBallot(int rank, Reader& reader);
  // The rank will say nothing any more.
  void OnGone(int rank);
  // Sends this rank's ballot when its call is known; counts when all ballots have come.
  void Attend();
  // Counts what has come by until().
  void OnTick(int64_t now_ns);
  // Over when the vote is: for a caller whose own call is over. Only the driver waits for it.
  RefPtr<Work> End();
  // The communicator has ended.
  void Stop();

 private:
  class EndWork;
  // Ours, open or over.
  std::optional<OwnCall> Own(CallId call) const;
  void Found(const Endpoint& from, const Descriptor& theirs, const OwnCall& mine);
  void Begin(CallId call);
  void SendBallot();
  void Count();
  void EndVote();

  MismatchOwner& owner_;
  const ComparedCalls& open_;
  const Peers& peers_;
  const Clock& clock_;
  CallNotes notes_;
  Vote vote_;
  bool voted_ = false;  // this rank, in vote_
  int witnessed_ = -1;  // the rank whose call began the vote
  Descriptor witnessed_call_;
  absl::Status between_two_;
  RefPtr<EndWork> end_;  // a caller waits for it
};

}  // namespace entrain
