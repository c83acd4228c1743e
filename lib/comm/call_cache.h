// The call cache keeps checked calls that fit the inline path, by their CallKey. A later call with
// an equal key needs no check, no planning and no lock.
//
// Thread safety: any thread may call MayHold. All other functions run on the engine's driver.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "lib/base/call.h"
#include "lib/comm/call_numbers.h"
#include "lib/engine/plan.h"

namespace entrain {

struct CachedCall {
  // Returns true if the cache may serve later calls of this shape without options.
  static bool MayRepeat(const Call& call);
  static CallKey KeyOf(const Call& call) {
    return {call.kind, call.dtype, call.reduction.op, call.root, call.count};
  }

  CachedCall(const Call& checked, const Descriptor& descriptor, const Wiring& wiring,
             uint64_t plans_made, std::shared_ptr<const Plan> plan);
  // Returns true if the cached call may run with these addresses without a new check. Nonempty
  // buffers must be aligned and not null. Input and output must be disjoint in this call and in the
  // checked call, or must have the same distance in the two calls.
  bool Serves(const void* in, const void* out) const;
  // Changes the length of a send or receive, in the cache's own copy of the plan. Returns false if
  // a call of this length does not fit the inline path, or if an executor still uses the plan.
  bool Resize(int64_t count) { return count == call.count || Cut(count); }

  std::shared_ptr<const Plan> plan;
  Call call;
  Descriptor descriptor;
  Wiring wiring;
  CallNumbers::Series series;
  uint64_t plans_made;  // CallRunner::plans_made() before the plan was made

 private:
  bool Apart(const void* in, const void* out) const;
  bool Cut(int64_t count);

  Plan* own_ = nullptr;  // send or receive: `plan`, so that Cut can change it; otherwise null
  int64_t alignment_;
  uintptr_t apart_by_;  // out - in
  bool apart_;          // in and out share no memory
};

// A cache with one call in each slot. Sends that differ only in their length share a slot. Receives
// that differ only in their length also share a slot.
class CallCache {
  static constexpr size_t kSlots = 256;

 public:
  // The key of a look-up, with its hash and its slot.
  class Query {
   public:
    Query(const CallKey& key, uint64_t plans_made)
        : shape_(ShapeOf(key)), count_(key.count), plans_made_(plans_made) {
      constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;
      const uint64_t who =
          uint64_t{static_cast<uint8_t>(key.kind)} | uint64_t{static_cast<uint32_t>(key.root)} << 8;
      const uint64_t what = uint64_t{static_cast<uint8_t>(key.dtype)} |
                            uint64_t{static_cast<uint16_t>(key.op)} << 8 | plans_made << 24;
      const uint64_t mixed = (what * kOdd ^ static_cast<uint64_t>(shape_.count)) * kOdd;
      print_ = ((mixed ^ mixed >> 32 ^ who) * kOdd) | 1;
      slot_ = (mixed >> 56 ^ (who & 15) ^ (who >> 8 << 4)) % kSlots;
    }
    // Consider two calls with equal data type, operation and count. Their slots differ if their
    // kinds differ, or if their roots differ by less than 16. So if a caller alternates between
    // sends and receives, or between several peers, all these calls stay in the cache.
    size_t slot() const { return slot_; }

   private:
    friend class CallCache;
    static CallKey ShapeOf(CallKey key) {
      const bool message = key.kind == CallKind::kSend || key.kind == CallKind::kRecv;
      key.count = message ? 0 : key.count;
      return key;
    }
    CallKey shape_;
    int64_t count_;
    uint64_t plans_made_;
    uint64_t print_;  // a hash of shape_ and plans_made_; never 0
    size_t slot_;
  };

  // Returns false if Find cannot find this call. Any thread may call it, so a caller need not
  // become the driver to learn that the call is missing.
  bool MayHold(const Query& query) const {
    return prints_[query.slot()].load(std::memory_order_relaxed) == query.print_;
  }
  // Returns null if the call is not in the cache.
  CachedCall* Find(const Query& query);
  // Adds a call. Replaces an earlier call in the same slot.
  void Keep(CachedCall call);

 private:
  struct Entry {
    CallKey shape;
    CachedCall call;
  };

  // Query::print_ of the call in each slot. This hash is only a hint, so relaxed order is enough.
  // Find compares the shape itself, in entries_. Only the driver uses entries_.
  std::array<std::atomic<uint64_t>, kSlots> prints_{};
  std::array<std::unique_ptr<Entry>, kSlots> entries_;
};

}  // namespace entrain
