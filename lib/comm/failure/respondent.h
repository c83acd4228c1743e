// Decides the answers to the queries of other ranks (inquiry.h). A query asks whether this rank has
// made a call. The answer is yes, or the reason why this rank has not made the call. For example,
// this rank may wait in a call of another communicator.
//
// Respondent reads the open calls and the causes of earlier failures, but it is without I/O and
// clock. CommCore sends the answers, and asks the other communicator (CommCore::AnswerTo).
//
// Thread safety: none. Belongs to the communicator's driver.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

#include "lib/base/call.h"
#include "lib/comm/call_funnel.h"
#include "lib/comm/failure/blame.h"
#include "lib/comm/failure/failure_words.h"
#include "lib/comm/open_calls.h"
#include "lib/comm/peers.h"
#include "lib/engine/causes.h"

namespace entrain {

// The content of a query, which is a control message.
struct Query {
  uint32_t nonce = 0;  // the answer contains the same value
  Asked asked = Asked::kCollective;
  CallId call;
  Descriptor theirs;  // the asking rank's call
  std::string ToText() const;
  // Returns nullopt if the message is malformed.
  static std::optional<Query> From(Reader& reader);
  // Returns true if the query is about a collective. `theirs` must then be compared with this
  // rank's call.
  bool compares() const { return asked == Asked::kCollective && call != CallFunnel::kPing; }
  // Without a nonce, the query only compares a call, or asks for a sign of life.
  bool wants_answer() const { return nonce != 0 || !compares(); }
};

class Respondent {
 public:
  using Answer = BlameDecision::Answer;
  struct Reply {
    Answer answer = Answer::kAbsent;
    absl::Status excuse;
    int64_t more_ns = 0;  // kElsewhere: the time until the second answer
  };

  // What Respondent does not know of this process.
  struct Facts {
    absl::Status inside;     // see CallerFunctions::Inside
    bool elsewhere = false;  // this rank waits in a call of another communicator
    int64_t now_ns = 0;
  };

  // All arguments must exist during every call of a member function. The destructor does not use
  // them. `causes`: the failures of this process.
  Respondent(const Causes& causes, const Peers& peers, const CallFunnel& funnel,
             const OpenCalls& open, const FailureWords& words)
      : causes_(causes), peers_(peers), funnel_(funnel), open_(open), words_(words) {}

  // Returns the answer to `rank`. If it is kElsewhere, a second answer (After) must follow when
  // this rank knows the reason for the wait.
  Reply To(int rank, const Query& query, const Facts& facts) const;
  // Returns the second answer. `why`: the reason for the wait. OK: the call is over or waits for no
  // rank.
  Reply After(int rank, const Query& query, const absl::Status& why) const;
  // Returns the control message of an answer.
  std::string TextOf(const Query& query, const Reply& reply) const;

 private:
  // Returns the reason why this rank holds up the call of the query although it has started the
  // call. OK: this rank does not hold up the call.
  absl::Status HoldsUp(const Query& query, int64_t now_ns) const;
  // Returns the call in which this rank is instead of the call of the query. OK: it is in none.
  absl::Status Instead() const;
  // Returns the reason why this rank makes no call at the moment. OK: no reason is known.
  absl::Status Excuse(const Facts& facts) const;

  const Causes& causes_;
  const Peers& peers_;
  const CallFunnel& funnel_;
  const OpenCalls& open_;
  const FailureWords& words_;
};

}  // namespace entrain
