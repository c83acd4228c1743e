// Checked calls that fit the inline path, by their key: the next call with the same key needs no check, no plan, no
// lock and no conversion.
//
// Thread safety: MayHold from any thread; the rest on the engine's driver.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "lib/base/call.h"
#include "lib/comm/call_key.h"
#include "lib/engine/plan.h"

namespace entrain {

struct CachedCall {
  // Whether calls of this shape, without options, may be repeated from the cache.
  static bool MayRepeat(const Call& call);
  static CallKey KeyOf(const Call& call) {
    return {call.kind, call.dtype, call.reduction.op, call.root, call.count};
  }

  CachedCall(const Call& checked, const Descriptor& descriptor, const Wiring& wiring,
             uint64_t plans_made, std::shared_ptr<const Plan> plan);
  // Whether these addresses are as good as those of the call that was checked: neither null nor misaligned, and the
  // buffers overlap as they did.
  bool Serves(const void* in, const void* out) const;
  // Gives a send or receive another length; the plan is this cache's own. False: no call of this length goes inline, or
  // an executor still has the plan.
  bool Resize(int64_t count);

  std::shared_ptr<const Plan> plan;
  Call call;
  Descriptor descriptor;
  Wiring wiring;
  uint64_t plans_made;  // InlinePath's, when the plan was made

 private:
  bool Apart(const void* in, const void* out) const;

  Plan* own_ = nullptr;  // `plan`, of a send or receive
  int64_t alignment_;
  uintptr_t apart_by_;  // out - in
  bool apart_;          // in and out share no memory
};

// Sends and receives of every length share an entry.
class PlanCache {
 public:
  // Whether Find may find this key. One look, so that a miss does not take the engine's word.
  bool MayHold(const CallKey& key, uint64_t plans_made) const {
    const uint64_t print = PrintOf(ShapeOf(key), plans_made);
    return prints_[SlotOf(print)].load(std::memory_order_relaxed) == print;
  }
  // Null: it is not here.
  CachedCall* Find(const CallKey& key, uint64_t plans_made);
  // In the place of a call whose key falls in the same slot.
  void Keep(CachedCall call);

 private:
  static constexpr int kSlotBits = 6;

  static CallKey ShapeOf(CallKey key) {
    key.count = IsMessage(key.kind) ? 0 : key.count;
    return key;
  }
  // Of a shape; never 0.
  static uint64_t PrintOf(const CallKey& key, uint64_t plans_made) {
    constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;
    const uint64_t shape = uint64_t{static_cast<uint8_t>(key.kind)} |
                           uint64_t{static_cast<uint8_t>(key.dtype)} << 8 |
                           uint64_t{static_cast<uint16_t>(key.op)} << 16 |
                           uint64_t{static_cast<uint32_t>(key.root)} << 32;
    uint64_t print = (shape ^ plans_made << 24) * kOdd;
    print = (print ^ print >> 32 ^ static_cast<uint64_t>(key.count)) * kOdd;
    return print | 1;
  }
  static size_t SlotOf(uint64_t print) { return print >> (64 - kSlotBits); }

  // Relaxed: a hint. The driver compares the key itself, in memory that only drivers touch.
  std::array<std::atomic<uint64_t>, 1 << kSlotBits> prints_{};
  std::array<std::unique_ptr<CachedCall>, 1 << kSlotBits> calls_;
};

}  // namespace entrain
