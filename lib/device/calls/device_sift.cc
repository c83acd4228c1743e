#include "lib/device/calls/device_sift.h"

#include "lib/base/merging.h"
#include "lib/base/status.h"
#include "lib/comm/comm_core.h"
#include "lib/comm/merge_state.h"
#include "lib/kernels/packing.h"

namespace entrain {
namespace {

int64_t ElementsOf(const Call& call) {
  return call.in.bytes / SizeOf(call.dtype);
}
int64_t MostKept(const Call& call) {
  const Merging& merging = *call.reduction.merging;
  return merging.sparsification == Sparsification::kMagnitude ? merging.Kept(ElementsOf(call))
                                                              : ElementsOf(call);
}
int64_t WordBytes(const Call& call) {
  return (ElementsOf(call) + 63) / 64 * 8;
}
// Where the next array may begin.
int64_t Aligned(int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

}  // namespace

bool DeviceSift::Serves(const Call& call, int rank) {
  if (!call.options.device || !PackedCall::Is(call) || call.in.bytes == 0) {
    return false;
  }
  const Merging& merging = *call.reduction.merging;
  return merging.sparsification != Sparsification::kNone && !merging.error_feedback &&
         merging.sparsify_chunk == 0 &&
         (merging.weights.empty() || merging.weights[static_cast<size_t>(rank)] != 0);
}

// The vector with zeros for what is not kept, the words, the values.
int64_t DeviceSift::ScratchBytes(const Call& call) {
  return Aligned(call.in.bytes) + Aligned(WordBytes(call)) + MostKept(call) * SizeOf(call.dtype);
}
int64_t DeviceSift::HostBytes(const Call& call) {
  return Aligned(WordBytes(call)) + MostKept(call) * SizeOf(call.dtype);
}

DeviceSift::DeviceSift(DeviceCall& call)
    : way_(call), call_(call.call()), searched_(call.device()) {}

absl::Status DeviceSift::Begin(std::byte* host) {
  absl::Status found = Find(host);
  found.Update(searched_.Record(way_.side().sift()));
  return found;
}

absl::Status DeviceSift::Find(std::byte* host) {
  std::byte* const kept = way_.scratch();
  std::byte* const words = kept + Aligned(call_.in.bytes);
  std::byte* const values = words + Aligned(WordBytes(call_));
  sifted_.draw = call_.reduction.merge_state->NextCall();
  ENTRAIN_RETURN_IF_ERROR(Keep(kept));
  const StreamHandle stream = way_.side().sift();
  ENTRAIN_ASSIGN_OR_RETURN(const int64_t count,
                           way_.device().PackNonzero(call_.dtype, kept, ElementsOf(call_),
                                                     reinterpret_cast<uint64_t*>(words), values,
                                                     stream, way_.deadline()));
  const StreamHandle copies = way_.side().copy_in();
  ENTRAIN_RETURN_IF_ERROR(way_.device().Copy(host, words, WordBytes(call_), copies));
  sifted_.words = reinterpret_cast<const uint64_t*>(host);
  sifted_.values = host + Aligned(WordBytes(call_));
  return count == 0 ? absl::OkStatus()
                    : way_.device().Copy(host + Aligned(WordBytes(call_)), values,
                                         count * SizeOf(call_.dtype), copies);
}

absl::Status DeviceSift::Keep(void* kept) {
  const Merging& merging = *call_.reduction.merging;
  const int64_t count = ElementsOf(call_);
  const StreamHandle stream = way_.side().sift();
  return merging.sparsification == Sparsification::kMagnitude
             ? way_.device().KeepLargest(call_.dtype, kept, call_.in.data, count,
                                         merging.Kept(count), stream, way_.deadline())
             : way_.device().KeepRandom(call_.dtype, kept, call_.in.data, 0, count,
                                        MaskDraws(merging, way_.core().rank(), sifted_.draw),
                                        merging.DrawsBelow(), stream);
}

}  // namespace entrain
