// Finds out who holds up a call whose time is up, and who is to blame for a lost path. Membership decides; this asks the
// members, keeps what they have told, and puts the verdict into words.
//
// Thread safety: none; the communicator's driver.
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

// The communicator, as its inquiries need it.
class InquiryOwner {
 public:
  virtual ~InquiryOwner() = default;
  // What the member's process has told of an end of its own since this communicator was opened; OK: nothing.
  virtual absl::Status CauseOf(int rank) const = 0;
  // What was sent must reach the peers before the driver leaves.
  virtual void NeedFlush() = 0;
  // Ends the communicator.
  virtual void Fail(const absl::Status& why) = 0;
};

class Inquiry {
 public:
  // See ContextOwner::FindOut.
  using HeldUpBy = absl::AnyInvocable<void(const absl::Status& why)>;

  // All outlive it.
  Inquiry(InquiryOwner& owner, const Peers& peers, const CallFunnel& funnel, const OpenCalls& open,
          const FailureWords& words, const Clock& clock);

  // ---- Questions
  // The call's deadline has passed. Asks all members about it, unless they are being asked about another.
  void Expire(CallWork* work, int64_t now_ns);
  // For a rank of another communicator: `then` learns what holds up the oldest call. Returns by when.
  Deadline FindOut(HeldUpBy then);
  // True: OnTick has something to do.
  bool OnAnswer(const Endpoint& from, int rank, Reader& reader);
  // The call has ended by itself.
  void OnFinished(const CallWork* work);
  // The communicator ends because of this. Before its calls end, which are not inquired about any more.
  void Stop(const absl::Status& why);

  // ---- What becomes of members
  bool left(int rank) const { return membership_.left(rank); }
  void OnLeft(int rank) { membership_.OnLeft(rank); }
  // The path to a member broke. A better reason is awaited for a moment.
  void OnLost(int rank, const absl::Status& why);
  // The member's caller could not start a call.
  void OnRefused(int rank, Reader& reader);
  // A lost path to the member, in words.
  absl::Status Loss(int rank, const absl::Status& path) const;

  // ---- Time
  // Calls that expire now are asked about afterwards.
  bool busy() const { return membership_.inquiring() && !AsksForOthers(); }
  Deadline next_tick() const { return membership_.next_tick(); }
  // Ends the communicator, or tells who has asked, if there is a verdict.
  void OnTick(int64_t now_ns);

 private:
  // An inquiry is under way for ranks of other communicators: none of our calls has expired.
  bool AsksForOthers() const;
  // False: the members are being asked about another call.
  bool Ask(CallWork* work, int64_t now_ns, int64_t answer_ns);
  void TellThoseWhoAsked(const absl::Status& why);
  void TakeVerdict(const Membership::Verdict& verdict, int64_t now_ns);
  Finding FindingOf(const CallWork& work, const Membership::Verdict& verdict) const;
  // All have started the call.
  Finding FindingOfNobody(const CallWork& work, Finding finding) const;
  // Whether a call that waits for this rank here is the one that it failed to make; or, when none is under way, the
  // next. Later ones show that it has made it after all.
  bool IsDue(int rank, const Refusal& refusal) const;

  InquiryOwner& owner_;
  const Peers& peers_;
  const CallFunnel& funnel_;
  const OpenCalls& open_;
  const FailureWords& words_;
  const Clock& clock_;
  Membership membership_;
  absl::Status lost_why_;                  // what broke the path that membership_ is losing
  CallWork* asked_ = nullptr;              // what membership_ inquires about
  std::vector<absl::Status> excuses_;      // by rank, with its answer kExcused
  std::vector<HeldUpBy> those_who_asked_;  // about asked_
  std::vector<Refusal> refusals_;          // by rank, its last one
};

}  // namespace entrain
