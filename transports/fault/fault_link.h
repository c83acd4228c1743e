// One emulated link and the messages on it. All messages that a process sends, over all transports
// and to all peers, use this link in the order posted:
//
//   posted ......... start ======== end ................... due
//     waits for the    its bytes at    latency and jitter; other
//     earlier ones     the rate        messages may use the link
//
// When a message is due, the link posts it to the transport beneath. That transport does not know
// the message earlier. The caller must keep the message's buffer until the message's completion
// runs.
//
// Thread safety: none; only the driver calls.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <string>

#include "absl/status/status.h"

#include "lib/base/bytes.h"
#include "lib/base/clock.h"
#include "transports/matching.h"
#include "transports/settings.h"
#include "transports/transport.h"

namespace entrain {

// The link's record of one endpoint.
struct FaultLane {
  Endpoint* to;  // the endpoint of the transport beneath
  // due time of the last message. No later message is due before this time, so jitter does not
  // change the order
  int64_t last_due_ns = 0;
};

class FaultLink {
 public:
  // `rank` is part of the seed, so that different ranks have different jitter.
  FaultLink(const FaultPlan& plan, int rank, const Clock& clock)
      : plan_(plan), clock_(clock), random_(plan.seed * 1'000'003 + static_cast<uint64_t>(rank)) {
    cut_at_ = plan.cut_ns > 0 ? Deadline::After(plan.cut_ns, clock) : Deadline::Never();
  }

  const FaultPlan& plan() const { return plan_; }
  const Clock& clock() const { return clock_; }
  Deadline cut_at() const { return cut_at_; }

  // `lane` must not move until Drop has been called for it.
  void Post(FaultLane* lane, const Envelope& envelope, ConstBytes bytes, Completion* done);
  // Posts to the transport beneath all messages that are due. Returns their number.
  int HandOver();
  // Returns the time at which HandOver must be called next.
  Deadline next() const;
  // Removes this lane's messages of context `of` from the link. If `of` is empty, removes all
  // messages of the lane. Each removed message completes with `why`. Later messages may start
  // earlier.
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
  std::deque<Frame> frames_;  // in the order posted; start_ns and end_ns() ascend in this order
  int64_t free_ns_ = 0;       // time at which the last message has left
};

}  // namespace entrain
