// Runs one schedule for one call: lanes, rounds, local operations. Knows nothing of communicators.
//
// Everything here is [driver] (lib/engine/engine.h). A lane's transfers run concurrently; when the
// last of a round has completed the lane is ready, and Advance does its local operations and posts
// the next round. At most `window` lanes are active; scratch belongs to window slots, so it stays
// in cache however long the call is.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"

#include "collectives/schedule.h"
#include "lib/base/call.h"
#include "lib/kernels/kernels.h"
#include "lib/memory/buffer.h"
#include "transports/transport.h"

namespace entrain {

// A schedule with sizes: what is the same for every call of one shape. Immutable once made.
struct Plan {
  std::shared_ptr<const Schedule> schedule;
  const char* algorithm = "";
  Layout in, out;  // scratch is cut as `in`
  int64_t element_bytes = 1;
  int window = 1;
  std::vector<int64_t>
      scratch_offset;      // bytes from the lane's scratch, per entry of schedule->scratch_like
  int64_t slot_bytes = 0;  // scratch of the largest lane

  static Plan Make(std::shared_ptr<const Schedule> schedule, const char* algorithm, Layout in,
                   Layout out, int64_t element_bytes, int window);
};

// Where a call runs: how its ranks are reached.
struct Wiring {
  absl::Span<Endpoint* const> endpoints;  // by rank; null for oneself
  absl::Span<const Context> contexts;     // by rank: the number each uses for this communicator
  Context mine = 0;
  uint32_t user_tag = Tag::kUntagged;
  uint64_t sequence = 0;  // of the call among those of its tag, from 0; the same on all its ranks
  uint32_t call_number = 0;     // the same, as far as a tag carries it
  bool point_to_point = false;  // all messages in the lane of send and recv
  uint8_t LaneOf(int lane) const {
    return point_to_point ? Tag::kPointToPoint : static_cast<uint8_t>(lane);
  }
  Envelope EnvelopeTo(int peer, uint8_t lane, const Descriptor& descriptor) const {
    return {Tag(contexts[static_cast<size_t>(peer)], user_tag, call_number, lane), descriptor};
  }
  Envelope EnvelopeFrom(uint8_t lane, const Descriptor& descriptor) const {
    return {Tag(mine, user_tag, call_number, lane), descriptor};
  }
};

class Executor {
 public:
  // `ready` is called (from completions) when Advance has something to do. The plan, the wiring's
  // arrays and the buffers of the call outlive the executor's last completion. `scratch`:
  // plan->slot_bytes * plan->window bytes, empty when that is 0; TakeScratch gives it back.
  Executor(std::shared_ptr<const Plan> plan, const Call& call, const Wiring& wiring,
           const Kernels& kernels, OwnedBuffer scratch, std::function<void()> ready);

  // Posts the first rounds. The call may be over at once.
  void Start();
  // Does what is ready; true when the call is over: all lanes done, or failed() and nothing more
  // will be posted.
  bool Advance();
  // No further rounds are posted; transfers under way still complete.
  void Stop(absl::Status why);

  const absl::Status& status() const { return status_; }
  // Posted transfers whose completions have not run. The executor must live until this is 0.
  int pending() const { return pending_; }
  int64_t bytes_sent() const { return bytes_sent_; }
  int64_t bytes_received() const { return bytes_received_; }
  // The rank of the first transfer that failed or has not completed; -1: none.
  int WaitingFor() const;
  // Once, when pending() is 0.
  OwnedBuffer TakeScratch() { return std::move(scratch_); }

 private:
  struct LaneRun {
    int lane = -1;        // index in the schedule; -1: the slot is free
    uint32_t round = 0;   // of the lane
    int outstanding = 0;  // transfers of this round that have not completed
    std::byte* scratch = nullptr;
    bool ready = false;
  };
  struct Pending : Completion {
    Executor* executor = nullptr;
    uint16_t run = 0;  // index in runs_
    uint32_t transfer = 0;
    bool posted = false;
  };

  static void OnDone(Completion* self, const absl::Status& status, int64_t bytes);
  void PostRound(LaneRun& run);
  void PostTransfer(LaneRun& run, uint32_t transfer);
  void RunOps(const LaneRun& run, const Round& round);
  void Combine(const LaneRun& run, const LocalOp& op);
  void CombineWeighted(std::byte* dst, absl::Span<const void* const> sources, int64_t count);
  void CombineByCallback(std::byte* dst, absl::Span<const void* const> sources, int64_t count);
  bool NextLane(LaneRun& run);
  void StepLane(LaneRun& run);
  std::byte* Address(const LaneRun& run, const Region& region) const;
  int64_t Elements(const LaneRun& run, const Region& region) const;

  const std::shared_ptr<const Plan> plan_;
  const Schedule& schedule_;
  const Call call_;
  const Descriptor descriptor_;
  const Wiring wiring_;
  const Kernels& kernels_;
  const std::function<void()> ready_;
  std::byte* in_ = nullptr;  // where block 0 of D would begin in each slot
  std::byte* out_ = nullptr;
  OwnedBuffer scratch_;
  // Small calls stay in the object: an allocation each is a tenth of the time of the smallest.
  absl::InlinedVector<LaneRun, 2> runs_;
  absl::InlinedVector<Pending, 8> slots_;  // one per transfer of the schedule
  int next_lane_ = 0;
  int lanes_left_ = 0;
  int pending_ = 0;
  int64_t bytes_sent_ = 0, bytes_received_ = 0;
  int failed_peer_ = -1;
  bool stopped_ = false;
  absl::Status status_;
};

}  // namespace entrain
