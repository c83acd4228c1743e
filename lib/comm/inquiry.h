// Finds the rank that holds up a call whose deadline has passed, and the rank to blame for a lost
// path. Inquiry asks the members and keeps their answers. The class Membership decides. Inquiry
// then puts the verdict into words.
//
// Thread safety: none. Belongs to the communicator's driver.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/comm/call_funnel.h"
#include "lib/comm/failure_words.h"
#include "lib/comm/membership.h"
#include "lib/comm/open_calls.h"
#include "lib/comm/peers.h"

namespace entrain {

// The interface of Inquiry to its communicator.
class InquiryOwner {
 public:
  virtual ~InquiryOwner() = default;
  // Returns the status with which the member's process has reported that one of its communicators
  // ended, since this communicator was opened. OK: no report.
  virtual absl::Status CauseOf(int rank) const = 0;
  // Makes the driver flush sent messages to the peers before it leaves its seat.
  virtual void NeedFlush() = 0;
  // Ends the communicator.
  virtual void Fail(const absl::Status& why) = 0;
};

class Inquiry {
 public:
  // See ContextOwner::FindOut.
  using HeldUpBy = absl::AnyInvocable<void(const absl::Status& why)>;

  // All arguments must exist at every call. The destructor does not use them.
  Inquiry(InquiryOwner& owner, const Peers& peers, const CallFunnel& funnel, const OpenCalls& open,
          const FailureWords& words, const Clock& clock);

  // ---- Questions
  // Must be called when the call's deadline has passed. Asks all members about the call, unless
  // they are being asked about another call.
  void Expire(CallWork* work, int64_t now_ns);
  // Called when a rank of another communicator waits for this rank. Calls `then` with the reason
  // why the oldest call of this communicator is held up. Returns the time by which `then` is
  // called.
  Deadline FindOut(HeldUpBy then);
  // Takes a member's answer. Returns true if OnTick has something to do.
  bool OnAnswer(const Endpoint& from, int rank, Reader& reader);
  // Must be called when the call has ended without a verdict.
  void OnFinished(const CallWork* work);
  // Must be called when the communicator ends because of `why`, before its calls end. Forgets the
  // call that is being asked about, and gives `why` to the callers of FindOut.
  void Stop(const absl::Status& why);

  // ---- Members that go
  bool left(int rank) const { return membership_.left(rank); }
  void OnLeft(int rank) { membership_.OnLeft(rank); }
  // Must be called when the path to a member broke. The verdict then waits a moment, because a
  // better reason may arrive.
  void OnLost(int rank, const absl::Status& why);
  // Takes a member's message that its caller could not start a call.
  void OnRefused(int rank, Reader& reader);
  // Returns the status with which the communicator ends after the path to the member was lost.
  absl::Status Loss(int rank, const absl::Status& path) const;

  // ---- Time
  // Returns true while members are being asked about a call of this rank that has expired. If more
  // calls expire meanwhile, the members are asked about these calls afterwards.
  bool busy() const { return membership_.inquiring() && !AsksForOthers(); }
  Deadline next_tick() const { return membership_.next_tick(); }
  // If there is a verdict, ends the communicator or answers the callers of FindOut.
  void OnTick(int64_t now_ns);

 private:
  // Returns true if an inquiry is under way and only callers of FindOut need it, because the
  // deadline of the call in question has not passed.
  bool AsksForOthers() const;
  // Asks the members about the call. Returns false if an inquiry about another call is under way.
  bool Ask(CallWork* work, int64_t now_ns, int64_t answer_ns);
  void TellThoseWhoAsked(const absl::Status& why);
  void TakeVerdict(const Membership::Verdict& verdict, int64_t now_ns);
  Finding FindingOf(const CallWork& work, const Membership::Verdict& verdict) const;
  // Returns the finding for a call that all ranks have started.
  Finding FindingOfNobody(const CallWork& work, Finding finding) const;
  // Returns true if the refusal explains why this rank waits: an open call waits for `rank`, and
  // `rank` has refused that call. If no call is open, returns true if this rank has not started the
  // refused call either. Returns false if all open calls are later ones, because `rank` has then
  // made the refused call successfully.
  bool IsDue(int rank, const Refusal& refusal) const;

  InquiryOwner& owner_;
  const Peers& peers_;
  const CallFunnel& funnel_;
  const OpenCalls& open_;
  const FailureWords& words_;
  const Clock& clock_;
  Membership membership_;
  absl::Status lost_why_;                  // the reason of the path loss about which membership_
                                           // decides
  CallWork* asked_ = nullptr;              // the call that membership_ inquires about
  std::vector<absl::Status> excuses_;      // by rank, from its answer
  std::vector<HeldUpBy> those_who_asked_;  // wait for the verdict about asked_
  std::vector<Refusal> refusals_;          // by rank, its last refusal
};

}  // namespace entrain
