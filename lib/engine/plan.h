// A schedule with sizes, bound to one call's buffers: where every region is, and the local
// operations on them. For whoever moves the messages: the executor, or the short way (express.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"

#include "collectives/schedule.h"
#include "lib/base/call.h"
#include "lib/kernels/kernels.h"
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
  bool express = false;    // may go the short way, see express.h

  static Plan Make(std::shared_ptr<const Schedule> schedule, const char* algorithm, Layout in,
                   Layout out, int64_t element_bytes, int window);

  // Elements of a region of this lane.
  int64_t Elements(const Lane& lane, const Region& region) const;
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

// The plan and the call outlive it.
class Binding {
 public:
  Binding(const Plan& plan, const Call& call, const Kernels& kernels);

  // `scratch`: of the lane's window slot. Null for a region of no blocks.
  std::byte* Address(const Lane& lane, std::byte* scratch, const Region& region) const;
  int64_t Bytes(const Lane& lane, const Region& region) const {
    return plan_.Elements(lane, region) * plan_.element_bytes;
  }
  void RunOps(const Lane& lane, std::byte* scratch, const Round& round) const;

 private:
  void Combine(const Lane& lane, std::byte* scratch, const LocalOp& op) const;
  void CombineWeighted(std::byte* dst, absl::Span<const void* const> sources, int64_t count) const;
  void CombineByCallback(std::byte* dst, absl::Span<const void* const> sources,
                         int64_t count) const;

  const Plan& plan_;
  const Schedule& schedule_;
  const Call& call_;
  const Kernels& kernels_;
  std::byte *in_, *out_;  // where block 0 of D would begin in each slot
};

}  // namespace entrain
