#include "lib/comm/last_call.h"

#include <utility>

namespace entrain {
namespace {

uintptr_t At(const void* address) {
  return reinterpret_cast<uintptr_t>(address);
}

}  // namespace

bool IsGoodBuffer(const void* buffer, int64_t bytes, int64_t alignment) {
  return bytes == 0 ||
         (buffer != nullptr && (At(buffer) & (static_cast<uintptr_t>(alignment) - 1)) == 0 &&
          At(buffer) + static_cast<uintptr_t>(bytes) > At(buffer));
}

bool LastCall::MayRepeat(const Call& call) {
  return !IsMessage(call.kind) && call.uneven == nullptr && IsBuiltin(call.reduction.op) &&
         call.options.determinism == Determinism::kDefault;
}

LastCall::LastCall(const Call& checked, const Descriptor& its_descriptor, const Wiring& its_wiring,
                   uint64_t made, std::shared_ptr<const Plan> its_plan)
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
}

bool LastCall::Serves(const void* in, const void* out) const {
  // Buffers that share memory do it as they did before.
  return IsGoodBuffer(in, call.in.bytes, alignment_) &&
         IsGoodBuffer(out, call.out.bytes, alignment_) &&
         (At(out) - At(in) == apart_by_ || (apart_ && Apart(in, out)));
}

bool LastCall::Apart(const void* in, const void* out) const {
  return call.in.bytes == 0 || call.out.bytes == 0 ||
         At(in) + static_cast<uintptr_t>(call.in.bytes) <= At(out) ||
         At(out) + static_cast<uintptr_t>(call.out.bytes) <= At(in);
}

}  // namespace entrain
