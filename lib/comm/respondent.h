// What a rank answers when another asks whether it has made a call (inquiry.h asks): it has; or what keeps it from making
// it, which may be another communicator's call.
//
// Thread safety: none; the communicator's driver.
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

// The question, as a control message has it.
struct Query {
  uint32_t nonce = 0;  // goes back with the answer
  Asked asked = Asked::kCollective;
  CallId call;
  Descriptor theirs;  // what the asker has called
  // Nothing: the message is malformed.
  static std::optional<Query> From(Reader& reader);
  // A question about a collective that has a descriptor to be compared.
  bool compares() const { return asked == Asked::kCollective && call != CallFunnel::kPing; }
};

class Respondent {
 public:
  // All outlive it.
  Respondent(Engine& engine, const Peers& peers, const CallFunnel& funnel, const OpenCalls& open,
             const FailureWords& words)
      : engine_(engine), peers_(peers), funnel_(funnel), open_(open), words_(words) {}

  // Respondent the rank, and once more when it is known what holds up this rank's call of another communicator. `self`: the
  // communicator, which lives until then.
  void To(const std::shared_ptr<const ContextOwner>& self, int rank, const Query& query);

 private:
  using Answer = Membership::Answer;
  // What holds up the call that this rank has started; OK: nothing here.
  absl::Status HoldsUp(const Query& query) const;
  // Why this rank makes no call now; OK: nothing is known.
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
