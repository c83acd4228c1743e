// Answers the queries of other ranks (inquiry.h). A query asks whether this rank has made a call.
// The answer is yes, or the reason why this rank has not made the call. For example, this rank may
// wait in a call of another communicator.
//
// Thread safety: none. Belongs to the communicator's driver.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"

#include "lib/base/call.h"
#include "lib/comm/call_funnel.h"
#include "lib/comm/failure_words.h"
#include "lib/comm/membership.h"
#include "lib/comm/open_calls.h"
#include "lib/comm/peers.h"
#include "lib/engine/engine.h"

namespace entrain {

// The content of a query, which is a control message.
struct Query {
  uint32_t nonce = 0;  // the answer contains the same value
  Asked asked = Asked::kCollective;
  CallId call;
  Descriptor theirs;  // the asking rank's call
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
  // All arguments must exist during every call of a member function. The destructor does not use
  // them.
  Respondent(Engine& engine, const Peers& peers, const CallFunnel& funnel, const OpenCalls& open,
             const FailureWords& words)
      : engine_(engine), peers_(peers), funnel_(funnel), open_(open), words_(words) {}

  // Sends the answer to `rank`. If this rank waits in a call of another communicator, the first
  // answer is kElsewhere. The second answer follows when this rank knows the reason for the wait.
  // `self`: this communicator. Keeps a reference to `self` until the second answer.
  void To(const std::shared_ptr<const ContextOwner>& self, int rank, const Query& query);

 private:
  using Answer = Membership::Answer;
  // Returns the reason why this rank holds up the call of the query although it has started the
  // call. OK: this rank does not hold up the call.
  absl::Status HoldsUp(const Query& query) const;
  // Returns the call in which this rank is instead of the call of the query. OK: it is in none.
  absl::Status Instead() const;
  // Returns the reason why this rank makes no call at the moment. OK: no reason is known.
  absl::Status Excuse();
  void Send(int rank, const Query& query, Answer answer,
            const absl::Status& excuse = absl::OkStatus(), int64_t more_ns = 0);

  Engine& engine_;
  const Peers& peers_;
  const CallFunnel& funnel_;
  const OpenCalls& open_;
  const FailureWords& words_;
};

}  // namespace entrain
