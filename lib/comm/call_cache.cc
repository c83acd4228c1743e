#include "lib/comm/call_cache.h"

#include <utility>

namespace entrain {
namespace {

uintptr_t At(const void* address) {
  return reinterpret_cast<uintptr_t>(address);
}

// Returns true if a call may use this buffer. An empty buffer is always good. Any other buffer must
// be aligned, must not be null, and must not wrap around the end of the address space.
bool IsGoodBuffer(const void* buffer, int64_t bytes, int64_t alignment) {
  return bytes == 0 ||
         (buffer != nullptr && (At(buffer) & (static_cast<uintptr_t>(alignment) - 1)) == 0 &&
          At(buffer) + static_cast<uintptr_t>(bytes) > At(buffer));
}

}  // namespace

bool CachedCall::MayRepeat(const Call& call) {
  return call.uneven == nullptr && IsBuiltin(call.reduction.op) &&
         call.options.determinism == Determinism::kDefault;
}

CachedCall::CachedCall(const Call& checked, const Descriptor& its_descriptor,
                       const Wiring& its_wiring, uint64_t made,
                       std::shared_ptr<const Plan> its_plan)
    : plan(std::move(its_plan)),
      call(checked),
      descriptor(its_descriptor),
      wiring(its_wiring),
      plans_made(made),
      alignment_(AlignmentOf(call.dtype)),
      apart_by_(At(call.out.data) - At(call.in.data)),
      apart_(Apart(call.in.data, call.out.data)) {
  call.options = {};
  wiring.user_tag = Tag::kUntagged;
  series = CallNumbers::Of(call);
  if (IsMessage(call.kind)) {
    auto own = std::make_shared<Plan>(*plan);
    own_ = own.get();
    plan = std::move(own);
  }
}

bool CachedCall::Cut(int64_t count) {
  if (own_ == nullptr || count < 0 || count > plan->most_inline / SizeOf(call.dtype) ||
      plan.use_count() > 1) {
    return false;
  }
  const int64_t bytes = count * SizeOf(call.dtype);
  own_->places.transfers[0].bytes = bytes;
  (call.kind == CallKind::kSend ? call.in : call.out).bytes = bytes;
  call.count = descriptor.count = count;
  return true;
}

bool CachedCall::Serves(const void* in, const void* out) const {
  // If input and output share memory, they must have the same distance as in the checked call.
  return IsGoodBuffer(in, call.in.bytes, alignment_) &&
         IsGoodBuffer(out, call.out.bytes, alignment_) &&
         (At(out) - At(in) == apart_by_ || (apart_ && Apart(in, out)));
}

bool CachedCall::Apart(const void* in, const void* out) const {
  return call.in.bytes == 0 || call.out.bytes == 0 ||
         At(in) + static_cast<uintptr_t>(call.in.bytes) <= At(out) ||
         At(out) + static_cast<uintptr_t>(call.out.bytes) <= At(in);
}

CachedCall* CallCache::Find(const Query& query) {
  Entry* const found = entries_[query.slot()].get();
  const bool same = found != nullptr && found->call.plans_made == query.plans_made_ &&
                    found->shape == query.shape_ && found->call.Resize(query.count_);
  return same ? &found->call : nullptr;
}

void CallCache::Keep(CachedCall call) {
  const Query query(CachedCall::KeyOf(call.call), call.plans_made);
  std::unique_ptr<Entry>& entry = entries_[query.slot()];
  if (entry == nullptr) {
    entry = std::make_unique<Entry>(Entry{query.shape_, std::move(call)});
  } else {
    *entry = {query.shape_, std::move(call)};
  }
  prints_[query.slot()].store(query.print_, std::memory_order_relaxed);
}

}  // namespace entrain
