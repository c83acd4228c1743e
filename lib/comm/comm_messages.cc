// The short way of a small blocking send or receive: CommCore's part of it.
#include "lib/comm/comm_core.h"

namespace entrain {

// Unlike a collective it needs no plan, so no call like it need have come before.
std::optional<absl::Status> CommCore::RunMessage(const Likeness& like, const void* in, void* out) {
  if (like.root < 0 || like.root >= size() || like.root == rank() || !IsValid(like.dtype) ||
      like.count < 0 || like.count > kMaxExpressBytes / SizeOf(like.dtype)) {
    return std::nullopt;
  }
  const bool sends = like.kind == CallKind::kSend;
  const int64_t bytes = like.count * SizeOf(like.dtype);
  Call call;
  call.kind = like.kind;
  call.dtype = like.dtype;
  call.count = like.count;
  call.root = like.root;
  BufferView& buffer = sends ? call.in : call.out;
  buffer = {sends ? const_cast<void*>(in) : out, bytes, MemoryKind::kHost};
  if (!IsGoodBuffer(buffer.data, bytes, AlignmentOf(like.dtype)) ||
      !short_way_.load(std::memory_order_relaxed) || !engine_.TakeIfQuiet()) {
    return std::nullopt;
  }
  if (ended_.load(std::memory_order_acquire)) {
    engine_.Leave();
    return std::nullopt;
  }
  Wiring wiring{endpoints_, contexts_, config_.context};
  wiring.point_to_point = true;
  Number(CallNumbers::Messages(Tag::kUntagged, like.kind, like.root), &wiring);
  const Descriptor descriptor = call.descriptor();
  const Bytes data(static_cast<std::byte*>(buffer.data), static_cast<size_t>(bytes));
  Progress progress;
  if (!(sends ? ExpressSend(engine_, wiring, descriptor, like.root, data, &progress)
              : ExpressRecv(engine_, wiring, descriptor, like.root, data, &progress))) {
    return HandOverMessage(call, wiring, progress);
  }
  return TakeNote(descriptor, wiring, progress);
}

absl::Status CommCore::HandOverMessage(const Call& call, const Wiring& wiring,
                                       const Progress& progress) {
  Admitted admitted;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    status = Furnish(planner_, call, &admitted);
  }
  if (!status.ok()) {
    // The communicator has ended: a plan of one transfer without scratch fails by nothing else. So
    // it does no harm that the number is used up. What is lent is taken back from the peer first.
    if (!progress.lent.empty()) {
      Fail(status);
    }
    engine_.Leave();
    return status;
  }
  admitted.wiring = wiring;
  return HandOver(call, std::move(admitted), progress);
}

}  // namespace entrain
