// One emulated link and the messages on it. Every message that a process sends goes over it, by
// whatever transport and to whomever, in the order posted:
//
//   posted ......... start ======== end ................... due
//     waits for what   its bytes at    latency and jitter: others
//     is before it     the rate        may be on the link meanwhile
//
// When it is due it is handed to the transport beneath, which has known nothing of it before. Its
// buffer stays lent until that has sent it.
//
// Thread safety: none; the thread that drives the engine.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <string>

#include "absl/status/status.h"

#include "lib/base/bytes.h"
#include "lib/base/clock.h"
#include "transports/fault_plan.h"
#include "transports/matching.h"
#include "transports/transport.h"

namespace entrain {

// An endpoint's share of the link.
struct FaultLane {
  Endpoint* to;             // of the transport beneath
  int64_t last_due_ns = 0;  // of its messages: they keep their order whatever the jitter
};

class FaultLink {
 public:
  // `rank` makes the jitter of one rank differ from another's.
  FaultLink(const FaultPlan& plan, int rank, const Clock& clock)
      : plan_(plan), clock_(clock), random_(plan.seed * 1'000'003 + static_cast<uint64_t>(rank)) {
    cut_at_ = plan.cut_ns > 0 ? Deadline::After(plan.cut_ns, clock) : Deadline::Never();
  }

  const FaultPlan& plan() const { return plan_; }
  const Clock& clock() const { return clock_; }
  Deadline cut_at() const { return cut_at_; }

  // A lane stays where it is until Drop has been called for it.
  void Post(FaultLane* lane, const Envelope& envelope, ConstBytes bytes, Completion* done);
  // Hands over what is due; how many.
  int HandOver();
  // When HandOver has something to do next.
  Deadline next() const;
  // Takes back what this lane still has on the link, of one communicator or all of it: it is
  // complete with `why`, and what waits behind it moves up.
  void Drop(FaultLane* lane, std::optional<Context> of, const absl::Status& why,
            CompletionList* completions);

 private:
  struct Frame {
    FaultLane* lane;
    Envelope envelope;
    ConstBytes bytes;
    Completion* done;
    int64_t wire_ns, jitter_ns;
    int64_t start_ns = 0, due_ns = 0;
    int64_t end_ns() const { return start_ns + wire_ns; }
  };
  void Place(Frame& frame, int64_t start_ns);

  const FaultPlan plan_;
  const Clock& clock_;
  Deadline cut_at_;
  std::mt19937_64 random_;
  std::deque<Frame> frames_;  // as posted, so by start and by end too
  int64_t free_ns_ = 0;       // when the last of them has left
};

}  // namespace entrain
