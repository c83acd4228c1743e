// Who is to blame when a call's time is up: a pure machine, (state, event, time) -> actions; no
// I/O, no clock.
//
// In a ring the neighbour one waits for is usually innocent: it waits for somebody else. So on
// expiry every member is asked how far it has come; answers are awaited for kAnswerNs and two round trips of the
// slowest path; the verdict is one rank for all to name:
//   a member that does not answer (stopped, hung, cut off), the lowest; else
//   a member that has not started the call and has no excuse, the lowest; else
//   a member that has not started the call because it is held up in another communicator, or has lost somebody there,
//   the lowest: whoever holds it up is guilty; else
//   nobody: all have started it, and the data does not move fast enough.
//
// A path that breaks names its peer, but the peer may have gone only because somebody else failed
// first: whoever learns of a failure may exit at once, and its farewell can be overtaken. So the
// verdict waits kGraceNs and one round trip for a better reason.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/clock.h"

namespace entrain {

// A collective call as all ranks number it.
struct CallId {
  uint32_t user_tag = 0;
  uint32_t number = 0;
  friend bool operator==(const CallId&, const CallId&) = default;
};

class Membership {
 public:
  static constexpr int64_t kAnswerNs = 150 * kMillisecond;
  static constexpr int64_t kGraceNs = 100 * kMillisecond;

  // For a rank of another communicator, which waits for the answer as long as it waits for others.
  static constexpr int64_t kAnswerToOthersNs = 100 * kMillisecond;

  enum class Answer : uint8_t {
    kNone,
    kStarted,    // the call
    kElsewhere,  // not started: it waits in a call of another communicator, and finds out for whom
    kExcused,    // not started, and somebody else is guilty of that
    kAbsent,     // not started
  };
  struct Query {
    uint32_t nonce = 0;
    CallId call;
  };
  struct Verdict {
    bool lost = false;  // the path to `guilty` broke; else `call` has timed out
    CallId call;
    int guilty = -1;  // -1: nobody in particular
    Answer answer =
        Answer::kNone;   // of the guilty one; kElsewhere: whom it waits for it has not found out
    std::string reason;  // "does not answer", "has not started the call", ...; names further ranks
    std::vector<int> late;  // all that have not come to the call, for whatever reason
  };

  Membership(int rank, int size);

  // A call's deadline has passed. The query to send to every member that has not left, or nothing
  // when an inquiry is under way already. `answer_ns`: how long answers are awaited.
  std::optional<Query> OnExpired(CallId call, int64_t now_ns, int64_t answer_ns = kAnswerNs);
  // A member's answer. False: it answers an earlier query, and is ignored. kElsewhere: it will say more by `more_by`.
  bool OnAnswer(int rank, uint32_t nonce, Answer answer, Deadline more_by = {0});
  // A member has destroyed its communicator; it has started everything it ever will.
  void OnLeft(int rank);
  // The path to a member broke. The first one counts. `grace_ns`: how long a better reason is awaited.
  void OnLost(int rank, int64_t now_ns, int64_t grace_ns = kGraceNs);
  // A path broke, and the verdict is being waited for.
  bool losing() const { return lost_ >= 0; }
  // Members are being asked.
  bool inquiring() const { return inquiring_; }
  // By then there is a verdict of the inquiry.
  Deadline until() const { return until_; }
  bool left(int rank) const { return left_[static_cast<size_t>(rank)]; }
  // The call that is inquired about has ended by itself: no verdict is needed.
  void OnFinished();
  // When to call OnTick next.
  Deadline next_tick() const;
  // The verdict, once all have answered or time is up.
  std::optional<Verdict> OnTick(int64_t now_ns);

 private:
  bool AllAnswered() const;
  // The ranks whose answer it is.
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
