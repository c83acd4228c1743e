// Finds ranks whose calls do not match. A vote of all ranks (vote.h) decides which rank is guilty.
//
// Every message carries the descriptor of its call. The receiving rank compares the descriptor with
// its own call of the same number. If its own call is open, the rank compares at once. If its own
// call has not started, the rank compares when the call starts. If its own call is over, the rank
// compares only while it remembers the call (call_notes.h).
//
// Thread safety: none. Belongs to the communicator's driver.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

#include "lib/base/call.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/comm/call_notes.h"
#include "lib/comm/comm_shell.h"
#include "lib/comm/peers.h"
#include "lib/comm/vote.h"
#include "lib/engine/plan.h"
#include "lib/engine/work.h"

namespace entrain {

// The interface of Mismatches to the open calls (OpenCalls).
class ComparedCalls {
 public:
  virtual ~ComparedCalls() = default;
  // Returns the open collective of this number, or nullopt.
  virtual std::optional<OwnCall> OwnCollective(CallId call) const = 0;
  // Returns the earliest deadline of the calls about which no inquiry has begun. Returns
  // Deadline::Never() if there is no such call.
  virtual Deadline FirstDeadline() const = 0;
};

class Mismatches {
 public:
  // All arguments must outlive this object.
  Mismatches(CommShell& shell, const ComparedCalls& open, const Peers& peers, const Clock& clock);
  ~Mismatches();

  // ---- Calls of peers and of this rank
  // Compares a peer's call with this rank's call of the same number. If this rank's call has not
  // started, stores the peer's descriptor.
  void Compare(const Endpoint& from, CallId call, const Descriptor& theirs);
  // Must be called when a call of this rank starts. For a call of the inline path, which is never
  // open, must be called when the call is over. Compares the call with the calls that peers have
  // started under the same number.
  void Meet(const Wiring& call, const Descriptor& mine);
  // Must be called when a call of this rank is over.
  void NoteOver(const Wiring& call, const Descriptor& mine);

  // ---- The vote
  bool voting() const { return vote_.on(); }
  Deadline until() const { return vote_.until(); }
  // Must be called when two ranks have found a difference that their descriptors do not show.
  // Begins a vote. If all ballots are equal, the communicator ends with `why`.
  void FoundBetweenTwo(CallId call, absl::Status why);
  void OnBallot(int rank, Reader& reader);
  // Must be called when the rank cannot send anything any more.
  void OnGone(int rank);
  // If this rank's call is known and its ballot was not sent, sends the ballot. If all ballots have
  // come, counts them.
  void Attend();
  // If until() has passed, counts the ballots that have come.
  void OnTick(int64_t now_ns);
  // Returns a work that is over when the vote is over. For a caller whose own call is already over.
  // Only the driver may wait for this work.
  RefPtr<Work> End();
  // Must be called when the communicator has ended.
  void Stop();

 private:
  class EndWork;
  // Returns this rank's call, open or over.
  std::optional<OwnCall> Own(CallId call) const;
  void Found(const Endpoint& from, const Descriptor& theirs, const OwnCall& mine);
  void Begin(CallId call);
  void SendBallot();
  void Count();
  void EndVote();

  CommShell& shell_;
  const ComparedCalls& open_;
  const Peers& peers_;
  const Clock& clock_;
  CallNotes notes_;
  Vote vote_;
  bool voted_ = false;  // this rank has voted
  int witnessed_ = -1;  // the rank whose call began the vote
  Descriptor witnessed_call_;
  absl::Status between_two_;
  RefPtr<EndWork> end_;  // the work that End returned; null if the vote is over
};

}  // namespace entrain
