// Who is to blame when a call's time is up: a pure machine, (state, event, time) -> actions; no
// I/O, no clock.
//
// In a ring the neighbour one waits for is usually innocent: it waits for somebody else. So on
// expiry every member is asked how far it has come; answers are awaited for kAnswerNs; the verdict
// is one rank for all to name:
//   a member that does not answer (stopped, hung, cut off), the lowest; else
//   a member that has not started the call, the lowest; else
//   nobody: all have started it, and the data does not move fast enough.
//
// A path that breaks names its peer, but the peer may have gone only because somebody else failed
// first: whoever learns of a failure may exit at once, and its farewell can be overtaken. So the
// verdict waits kGraceNs for a better reason.
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

  struct Query {
    uint32_t nonce = 0;
    CallId call;
  };
  struct Verdict {
    bool lost = false;  // the path to `guilty` broke; else `call` has timed out
    CallId call;
    int guilty = -1;     // -1: nobody in particular
    std::string reason;  // "does not answer", "has not started the call", ...; names further ranks
  };

  Membership(int rank, int size);

  // A call's deadline has passed. The query to send to every member that has not left, or nothing
  // when an inquiry is under way already.
  std::optional<Query> OnExpired(CallId call, int64_t now_ns);
  // A member's answer. Answers to earlier queries are ignored.
  void OnAnswer(int rank, uint32_t nonce, bool started);
  // A member has destroyed its communicator; it has started everything it ever will.
  void OnLeft(int rank);
  // The path to a member broke. The first one counts.
  void OnLost(int rank, int64_t now_ns);
  // A path broke, and the verdict is being waited for.
  bool losing() const { return lost_ >= 0; }
  // Members are being asked.
  bool inquiring() const { return inquiring_; }
  bool left(int rank) const { return left_[static_cast<size_t>(rank)]; }
  // The call that is inquired about has ended by itself: no verdict is needed.
  void OnFinished();
  // When to call OnTick next.
  Deadline next_tick() const;
  // The verdict, once all have answered or time is up.
  std::optional<Verdict> OnTick(int64_t now_ns);

 private:
  enum class Answer : uint8_t { kNone, kStarted, kAbsent };
  bool AllAnswered() const;

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
