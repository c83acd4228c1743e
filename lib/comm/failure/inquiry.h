// Finds the rank to blame in three cases: the deadline of a call has passed, the path to a member
// is lost, or a member is silent. In the first two cases Inquiry asks the members and keeps their
// answers, and BlameDecision decides. Inquiry then writes the verdict in an error.
//
// Inquiry reads the open calls and what is known of the members, but it is without I/O and clock,
// and calls nobody: methods take events and the time, and CommCore does what follows from them
// (Effects).
//
// Silence (SetSilence): while a call of this rank is open, this rank asks all members in each
// quarter of the allowed silence whether they answer at all. The library of a member answers, even
// if its program computes. So a member that is silent for the whole time is stopped or hangs, or
// its host is cut off. Calls that are over within the first quarter cause no question. Only time in
// which this rank itself has run counts (peer_silence.h).
//
// Two ranks that each take themselves for the root of a gather or reduce wait for each other, and
// no message shows it. So when such a call has been open for kCompareNs, this rank sends its
// descriptor to its neighbours once (Query::compares). Other collectives are compared when their
// data arrive.
//
// Ranks that are in different calls wait for each other until a deadline. So when the oldest open
// collective has been open for kWarnNs, this rank asks the members about it once, and logs a
// warning if one of them waits in another collective instead, which this rank has not made. It is
// no error: another thread may still make the calls.
//
// Thread safety: none. Belongs to the communicator's driver. Any thread may call SetSilence and
// silence_ns.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/comm/call_funnel.h"
#include "lib/comm/failure/blame.h"
#include "lib/comm/failure/failure_words.h"
#include "lib/comm/failure/peer_silence.h"
#include "lib/comm/failure/respondent.h"
#include "lib/comm/open_calls.h"
#include "lib/comm/peers.h"
#include "lib/engine/causes.h"

namespace entrain {

class Inquiry {
 public:
  static constexpr int64_t kCompareNs = kSecond, kWarnNs = 5 * kSecond;
  // What the driver must do after an event, in this order.
  struct Effects {
    struct Question {
      int to;
      std::string text;  // a Query
    };
    std::vector<Question> questions;  // send them, before data
    std::string warning;              // log it; empty: none
    absl::Status end;                 // not OK: end the communicator with it
    // Give this status to all callers of ContextOwner::FindOut that wait for it.
    std::optional<absl::Status> found;
  };

  // All arguments must exist during every call of a member function. The destructor does not use
  // them. `causes`: the failures that the members' processes have reported.
  Inquiry(const Peers& peers, const CallFunnel& funnel, const OpenCalls& open,
          const FailureWords& words, const Causes& causes, int64_t silence_ns = 0);
  // Must be called when the communicator is opened. Reports from before do not count.
  void Opened(int64_t now_ns) { opened_ns_ = now_ns; }

  // Must be called after each event if it has effects.
  bool has_effects() const { return has_effects_; }
  Effects TakeEffects() {
    has_effects_ = false;
    return std::exchange(todo_, {});
  }

  // ---- Silence
  // Sets the time for which a member may be silent, beside two round trips of the slowest path. 0:
  // for any time; only deadlines end calls.
  void SetSilence(int64_t silence_ns) { silence_ns_.store(silence_ns, std::memory_order_relaxed); }
  int64_t silence_ns() const { return silence_ns_.load(std::memory_order_relaxed); }
  // Returns true while members are watched for their silence. OnHeard must then be called when a
  // message of a member has come.
  bool watching() const { return watched_since_ns_ != 0; }
  void OnHeard(int rank, int64_t now_ns) { silence_.OnHeard(rank, now_ns); }

  // ---- Questions
  // Must be called when the call's deadline has passed. If a function of the caller on this rank
  // holds up the call, ends the communicator at once. Otherwise asks all members about the call,
  // unless an inquiry about another expired call is under way.
  void Expire(CallWork* work, int64_t now_ns);
  // Must be called when a rank waits for this rank in another communicator. Effects::found will be
  // the reason why the oldest call of this communicator cannot finish. Returns the latest time of
  // that effect.
  Deadline FindOut(int64_t now_ns);
  // Handles a member's answer. Returns true if OnTick must be called.
  bool OnAnswer(int rank, Reader& reader, int64_t now_ns);
  // Must be called when the call has ended without a verdict. Returns true if this has an effect.
  bool OnFinished(const CallWork* work);
  // Must be called when the communicator ends because of `why`, before its calls end. Stops the
  // inquiry.
  void Stop(const absl::Status& why);

  // ---- Members that go
  bool left(int rank) const { return decision_.left(rank); }
  void OnLeft(int rank) { decision_.OnLeft(rank); }
  // Must be called when the path to a member is lost. The verdict comes after a short delay,
  // because a better reason may arrive.
  void OnLost(int rank, const absl::Status& why, int64_t now_ns);
  // Handles a member's message that it could not start a call.
  void OnRefused(int rank, Reader& reader);
  // Returns the status with which the communicator ends after the path to the member was lost.
  absl::Status Loss(int rank, const absl::Status& path) const;

  // ---- Time
  // Returns true while an inquiry about an expired call of this rank is under way. If another call
  // expires during the inquiry, the inquiry about that call begins afterwards.
  bool busy() const { return decision_.inquiring() && !AsksForOthers(); }
  Deadline next_tick() const { return std::min(decision_.next_tick(), NextWatch()); }
  // If there is a verdict, its effect is the end of the communicator, or the answer to FindOut.
  void OnTick(int64_t now_ns);

 private:
  // Returns the oldest open gather or reduce that this rank has not told the others, or null.
  const CallWork* Untold() const;
  // Returns the oldest open collective if this rank has not asked about it for a warning, or null.
  CallWork* Unwarned() const;
  // Tells the ranks before and after this one the descriptor of the call.
  void Tell(const CallWork& work);
  // Returns the time at which Watch has something to do.
  Deadline NextWatch() const;
  Deadline NextQuestion() const;
  // Asks whether the members answer, and ends the communicator if one of them is silent.
  void Watch(int64_t now_ns);
  // Returns true if the silence of the member proves that it is stopped, hangs or is cut off.
  bool Watches(int rank) const;
  // Returns true if bytes have come from the member since the last call, and notes their number.
  bool TakeReceived(int rank);
  // Returns the status with which the member's process has reported the end of one of its
  // communicators. OK: no report.
  absl::Status CauseOf(int rank) const { return causes_.Of(peers_.endpoint(rank), opened_ns_); }
  Effects& Todo() {
    has_effects_ = true;
    return todo_;
  }
  void AskOne(int rank, const Query& query) { Todo().questions.push_back({rank, query.ToText()}); }
  void End(const absl::Status& why) { Todo().end.Update(why); }
  // Returns true if an inquiry is under way only for callers of FindOut or a warning. The deadline
  // of the call in question has then not passed.
  bool AsksForOthers() const;
  // Asks the members about the call. Returns false if an inquiry about another call is under way.
  bool Ask(CallWork* work, int64_t now_ns, int64_t answer_ns);
  // Answers FindOut. The first answer of an event counts.
  void Found(const absl::Status& why) { Todo().found = todo_.found.value_or(why); }
  // Logs the finding about a call whose deadline has not passed, if a warning was asked for and the
  // awaited member waits in another call.
  void Warn(const CallWork& work, const Finding& finding, int64_t now_ns);
  void TakeVerdict(const BlameDecision::Verdict& verdict, int64_t now_ns);
  Finding FindingOf(const CallWork& work, const BlameDecision::Verdict& verdict,
                    int64_t now_ns) const;
  // Returns the finding for a call that all ranks have started.
  Finding FindingOfNobody(const CallWork& work, Finding finding, int64_t now_ns) const;
  // Returns true if the refusal explains why this rank waits: `rank` has refused a call that is
  // open on this rank. If no call is open, returns true if the refused call is a collective that
  // this rank has not started either. Returns false if all open calls are later than the refused
  // call, because `rank` has then made the refused call after all.
  bool IsDue(int rank, const Refusal& refusal) const;

  const Peers& peers_;
  const CallFunnel& funnel_;
  const OpenCalls& open_;
  const FailureWords& words_;
  const Causes& causes_;
  int64_t opened_ns_ = 0;
  BlameDecision decision_;
  absl::Status lost_why_;              // the error of the lost path (BlameDecision::losing)
  CallWork* asked_ = nullptr;          // the call of the inquiry
  std::vector<absl::Status> excuses_;  // by rank, from the rank's answer
  std::vector<CallId> instead_;    // by rank, from its answer: its oldest open collective, or kPing
  std::vector<Refusal> refusals_;  // by rank, the rank's last refusal
  std::atomic<int64_t> silence_ns_;
  PeerSilence silence_;
  int64_t warned_ns_ = 0;  // start of the last call about which this rank has asked for a warning
  bool warns_ = false;     // the inquiry under way is for a warning too
  int64_t told_ns_ = 0;    // start of the last call that Tell has sent
  int64_t watched_since_ns_ = 0;    // start of the oldest call, if it is watched; 0: none is
  std::vector<uint64_t> received_;  // by rank: Endpoint::received when it was last looked at
  Effects todo_;
  bool has_effects_ = false;  // most events have none, and each batch of completions asks
};

}  // namespace entrain
