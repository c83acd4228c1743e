// Decides which rank is to blame when a call's deadline has passed. BlameDecision is a pure state
// machine, (state, event, time) -> actions, without I/O and clock.
//
// In a ring algorithm, a rank waits for its neighbour. The neighbour is usually innocent, because
// it waits for another rank itself. So when the deadline of a call passes, the rank asks every
// member whether that member has started the call. The rank waits for answers for kAnswerNs and two
// round trips of the slowest path. The verdict is one rank, equal on all ranks:
//   the lowest member that does not answer (stopped, hung, unreachable); else
//   the lowest member that has not started the call and has no excuse; else
//   the lowest member that has not started the call because of a failure elsewhere, for example
//   because another rank holds it up in another communicator. The other rank is then guilty; else
//   the lowest member that waits in another communicator and does not know the guilty rank; else
//   the lowest member that has destroyed its communicator; else
//   no rank: all members have started the call, and the data does not arrive in time.
//
// A lost path names one peer, but that peer may have exited because another rank failed first. A
// process that learns of a failure may exit at once. Its message about the failure may arrive after
// the path is lost. So the verdict is delayed by kGraceNs and one round trip, for a better reason.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/clock.h"

namespace entrain {

// Identifies a call by its tag and its number. All ranks give a collective the same number.
struct CallId {
  uint32_t user_tag = 0;
  uint32_t number = 0;
  friend bool operator==(const CallId&, const CallId&) = default;
};

class BlameDecision {
 public:
  static constexpr int64_t kAnswerNs = 150 * kMillisecond;
  static constexpr int64_t kGraceNs = 100 * kMillisecond;

  // Replaces kAnswerNs in an inquiry for a rank of another communicator. That rank waits for the
  // result as a part of its own inquiry, so this time must be shorter.
  static constexpr int64_t kAnswerToOthersNs = 100 * kMillisecond;

  enum class Answer : uint8_t {
    kNone,
    kStarted,  // the member has started the call
    // Not started: the member waits in a call of another communicator, and is finding out the rank
    // that holds it up.
    kElsewhere,
    kExcused,  // not started, and another rank is guilty
    kAbsent,   // not started
  };
  struct Query {
    uint32_t nonce = 0;
    CallId call;
  };
  struct Verdict {
    bool lost = false;  // true: the path to `guilty` is lost; false: `call` has timed out
    CallId call;
    int guilty = -1;  // -1: no rank
    // The answer of the guilty member. kElsewhere: the member has not found out the rank for which
    // it waits.
    Answer answer = Answer::kNone;
    std::string reason;  // "it does not answer (silent: ranks 2, 5)"
    // All members that have not started the call, or have not answered.
    std::vector<int> late;
  };

  BlameDecision(int rank, int size);

  // Must be called when a call's deadline has passed. Returns the query that the caller must send
  // to every member that has not left. Returns nullopt if an inquiry is already under way.
  // `answer_ns`: time limit of the answers.
  std::optional<Query> OnExpired(CallId call, int64_t now_ns, int64_t answer_ns = kAnswerNs);
  // Must be called when a member's answer has come. If the answer belongs to an earlier query,
  // ignores it and returns false. `more_by`: if the answer is kElsewhere, the time limit of the
  // member's second answer.
  bool OnAnswer(int rank, uint32_t nonce, Answer answer, Deadline more_by = {0});
  // Must be called when bytes of the member have come since the query, on a path on which its
  // answer may wait behind them. So the member is not silent: if it has not answered, the path is
  // slow.
  void OnBytes(int rank);
  // Must be called when a member has destroyed its communicator. Such a member starts no further
  // call.
  void OnLeft(int rank);
  // Must be called when the path to a member is lost. Only the first lost path counts. `grace_ns`:
  // time limit for a better reason.
  void OnLost(int rank, int64_t now_ns, int64_t grace_ns = kGraceNs);
  // Returns true if a path is lost and the verdict is pending.
  bool losing() const { return lost_ >= 0; }
  // Returns true while an inquiry is under way.
  bool inquiring() const { return inquiring_; }
  // Returns the time limit of the inquiry.
  Deadline until() const { return until_; }
  bool left(int rank) const { return left_[static_cast<size_t>(rank)]; }
  // Must be called when the call of the inquiry has ended before the verdict.
  void OnFinished();
  // Returns the time at which OnTick must be called next.
  Deadline next_tick() const;
  // Returns the verdict if all members have answered or the time limit has passed. Otherwise
  // returns nullopt.
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
