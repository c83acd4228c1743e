// Decides which rank is to blame when a call's deadline has passed. Membership is a pure state
// machine, (state, event, time) -> actions, without I/O and clock.
//
// In a ring, the neighbour that a rank waits for is usually innocent: it waits for another rank. So
// when a call expires, every member is asked how far it has come. The asking rank awaits answers
// for kAnswerNs and two round trips of the slowest path. The verdict is one rank, the same on all
// ranks:
//   the lowest member that does not answer (stopped, hung, cut off); else
//   the lowest member that has not started the call and has no excuse; else
//   the lowest member that has not started the call because it is held up in another communicator,
//   or has lost a rank there. The guilty rank is then the one that holds up this member; else
//   no rank: all have started the call, and the data does not move fast enough.
//
// A broken path leads to one peer, but that peer may have exited only because another rank failed
// first. A process that learns of a failure may exit at once, and the message in which it reports
// the failure may arrive after the break. So the verdict waits kGraceNs and one round trip for a
// better reason.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/clock.h"

namespace entrain {

// A collective call, by the number that all ranks give it.
struct CallId {
  uint32_t user_tag = 0;
  uint32_t number = 0;
  friend bool operator==(const CallId&, const CallId&) = default;
};

class Membership {
 public:
  static constexpr int64_t kAnswerNs = 150 * kMillisecond;
  static constexpr int64_t kGraceNs = 100 * kMillisecond;

  // Used instead of kAnswerNs in an inquiry for a rank of another communicator. That rank waits for
  // the result while it waits for the answers of its own members.
  static constexpr int64_t kAnswerToOthersNs = 100 * kMillisecond;

  enum class Answer : uint8_t {
    kNone,
    kStarted,  // the member has started the call
    // Not started: the member waits in a call of another communicator, and is finding out which
    // rank it waits for there.
    kElsewhere,
    kExcused,  // not started, and another rank is guilty
    kAbsent,   // not started
  };
  struct Query {
    uint32_t nonce = 0;
    CallId call;
  };
  struct Verdict {
    bool lost = false;  // true: the path to `guilty` broke; false: `call` has timed out
    CallId call;
    int guilty = -1;  // -1: no rank
    // The answer of the guilty member. kElsewhere: it has not found out which rank it waits for.
    Answer answer = Answer::kNone;
    std::string reason;  // "does not answer", "has not started the call", ...; names further ranks
    // All members that have not started the call, for any reason.
    std::vector<int> late;
  };

  Membership(int rank, int size);

  // Must be called when a call's deadline has passed. Returns the query to send to every member
  // that has not left, or nullopt if an inquiry is under way already. `answer_ns`: how long to
  // await answers.
  std::optional<Query> OnExpired(CallId call, int64_t now_ns, int64_t answer_ns = kAnswerNs);
  // Takes a member's answer. If the answer belongs to an earlier query, ignores it and returns
  // false. If the answer is kElsewhere, the member sends a second answer by `more_by`.
  bool OnAnswer(int rank, uint32_t nonce, Answer answer, Deadline more_by = {0});
  // Must be called when a member has destroyed its communicator. It will start no further call.
  void OnLeft(int rank);
  // Must be called when the path to a member broke. Only the first break counts. `grace_ns`: how
  // long to await a better reason.
  void OnLost(int rank, int64_t now_ns, int64_t grace_ns = kGraceNs);
  // Returns true if a path broke and the verdict is pending.
  bool losing() const { return lost_ >= 0; }
  // Returns true while members are being asked.
  bool inquiring() const { return inquiring_; }
  // Returns the time by which the inquiry has a verdict.
  Deadline until() const { return until_; }
  bool left(int rank) const { return left_[static_cast<size_t>(rank)]; }
  // Must be called when the call that is inquired about has ended without a verdict.
  void OnFinished();
  // Returns the time at which OnTick must be called next.
  Deadline next_tick() const;
  // Returns the verdict, once all members have answered or the time is up.
  std::optional<Verdict> OnTick(int64_t now_ns);

 private:
  bool AllAnswered() const;
  // Returns the ranks that gave this answer.
  std::vector<int> With(Answer answer) const;

  const int rank_;
  uint32_t nonce_ = 0;
  bool inquiring_ = false;
  CallId call_;
  Deadline until_;
  int lost_ = -1;
  Deadline lost_until_;
  std::vector<Answer> answers_;
  std::vector<bool> left_;
};

}  // namespace entrain
