#include "lib/device/nccl/nccl_offload.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/device/nccl/nccl_takes.h"

namespace entrain::nccl {
namespace {

// Calls NCCL's function and translates its result.
#define ENTRAIN_NCCL(function, ...) functions_.Check(functions_.function(__VA_ARGS__), #function)

char* At(const BufferView& buffer, int64_t offset = 0) {
  return static_cast<char*>(buffer.data) + offset;
}

bool Scales(const Call& call) {
  return Reduces(call.kind) && call.reduction.op == ReduceOp::kPreMultipliedSum;
}

}  // namespace

int64_t ScratchBytes(const Call& call) {
  return call.kind == CallKind::kAllToAll && call.in.data == call.out.data ? call.in.bytes : 0;
}

NcclOffload::~NcclOffload() {
  handle_->Close();
}

bool NcclOffload::Takes(const Call& call) const {
  return nccl::Takes(call, size_);
}

absl::Status NcclOffload::Enqueue(const Call& call, StreamHandle stream, void* scratch) {
  if (!Takes(call)) {
    return absl::InternalError(
        absl::StrCat("NCCL was given what it does not take: ", ToString(call.descriptor())));
  }
  Order order{call, nullptr, stream, OperatorOf(call.reduction.op), At(call.in)};
  if (ScratchBytes(call) > 0) {
    ENTRAIN_RETURN_IF_ERROR(device_.Copy(scratch, call.in.data, call.in.bytes, stream));
    order.in = static_cast<const char*>(scratch);
  }
  ENTRAIN_RETURN_IF_ERROR(handle_->With([&](Comm comm) {
    order.comm = comm;
    return Begin(order);
  }));
  if (Scales(call)) {
    made_ = order.op;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> NcclOffload::Begun() {
  ENTRAIN_ASSIGN_OR_RETURN(const bool begun, handle_->Begun());
  if (begun && made_) {
    const RedOp op = *std::exchange(made_, std::nullopt);
    ENTRAIN_RETURN_IF_ERROR(
        handle_->With([&](Comm comm) { return ENTRAIN_NCCL(ncclRedOpDestroy, op, comm); }));
  }
  return begun;
}

absl::Status NcclOffload::Begin(Order& order) {
  const Call& call = order.call;
  if (Scales(call)) {
    const DataType type = *CombinedType(call.dtype);
    Scalar factor = ScalarOf(type, call.reduction.factor);
    ENTRAIN_RETURN_IF_ERROR(ENTRAIN_NCCL(ncclRedOpCreatePreMulSum, &order.op, factor.bytes, type,
                                         kScalarHostImmediate, order.comm));
  }
  const auto bytes = static_cast<size_t>(call.count * SizeOf(call.dtype));
  switch (call.kind) {
    case CallKind::kBroadcast:
      return ENTRAIN_NCCL(ncclBroadcast, order.in, call.out.data, bytes, kUint8, call.root,
                          order.comm, order.stream);
    case CallKind::kAllGather:
      return call.uneven != nullptr ? BroadcastEach(order)
                                    : ENTRAIN_NCCL(ncclAllGather, order.in, call.out.data, bytes,
                                                   kUint8, order.comm, order.stream);
    case CallKind::kReduceScatter:
      return call.uneven != nullptr ? ReduceEach(order) : Reduce(order);
    case CallKind::kGather:
      return Gather(order);
    case CallKind::kScatter:
      return Scatter(order);
    case CallKind::kAllToAll:
      return AllToAll(order);
    default:
      return Reduce(order);
  }
}

// Runs `calls` in a group of NCCL, and ends the group even after an error. Returns the first error.
absl::Status NcclOffload::Group(absl::FunctionRef<absl::Status()> calls) {
  ENTRAIN_RETURN_IF_ERROR(ENTRAIN_NCCL(ncclGroupStart));
  absl::Status status = calls();
  status.Update(ENTRAIN_NCCL(ncclGroupEnd));
  return status;
}

absl::Status NcclOffload::Reduce(const Order& order) {
  const Call& call = order.call;
  const auto count = static_cast<size_t>(call.count);
  const DataType type = *CombinedType(call.dtype);
  switch (call.kind) {
    case CallKind::kAllReduce:
      return ENTRAIN_NCCL(ncclAllReduce, order.in, call.out.data, count, type, order.op, order.comm,
                          order.stream);
    case CallKind::kReduce:
      return ENTRAIN_NCCL(ncclReduce, order.in, call.out.data, count, type, order.op, call.root,
                          order.comm, order.stream);
    default:
      return ENTRAIN_NCCL(ncclReduceScatter, order.in, call.out.data, count, type, order.op,
                          order.comm, order.stream);
  }
}

// All ranks know all counts, so all of them omit the same empty parts.
absl::Status NcclOffload::BroadcastEach(const Order& order) {
  const Offsets first = OffsetsOf(order.call, &PartCounts::in);
  return Group([&] {
    for (size_t r = 0; r + 1 < first.size(); ++r) {
      if (first[r + 1] > first[r]) {
        ENTRAIN_RETURN_IF_ERROR(ENTRAIN_NCCL(ncclBroadcast, order.in, At(order.call.out, first[r]),
                                             static_cast<size_t>(first[r + 1] - first[r]), kUint8,
                                             static_cast<int>(r), order.comm, order.stream));
      }
    }
    return absl::OkStatus();
  });
}

absl::Status NcclOffload::ReduceEach(const Order& order) {
  const Call& call = order.call;
  const Offsets first = OffsetsOf(call, &PartCounts::in);
  return Group([&] {
    for (size_t r = 0; r + 1 < first.size(); ++r) {
      if (first[r + 1] > first[r]) {
        ENTRAIN_RETURN_IF_ERROR(ENTRAIN_NCCL(
            ncclReduce, order.in + first[r], call.out.data, static_cast<size_t>(call.uneven->in[r]),
            *CombinedType(call.dtype), order.op, static_cast<int>(r), order.comm, order.stream));
      }
    }
    return absl::OkStatus();
  });
}

absl::Status NcclOffload::Gather(const Order& order) {
  const Call& call = order.call;
  if (call.root != rank_) {
    return Send(order, order.in, call.in.bytes, call.root);
  }
  const Offsets first = OffsetsOf(call, &PartCounts::out);
  ENTRAIN_RETURN_IF_ERROR(CopyOwn(At(call.out, first[static_cast<size_t>(rank_)]), order.in,
                                  call.in.bytes, order.stream));
  return GroupOverPeers([&](int peer) {
    const auto r = static_cast<size_t>(peer);
    return Receive(order, At(call.out, first[r]), first[r + 1] - first[r], peer);
  });
}

absl::Status NcclOffload::Scatter(const Order& order) {
  const Call& call = order.call;
  if (call.root != rank_) {
    return Receive(order, call.out.data, call.out.bytes, call.root);
  }
  const Offsets first = OffsetsOf(call, &PartCounts::in);
  ENTRAIN_RETURN_IF_ERROR(CopyOwn(call.out.data, order.in + first[static_cast<size_t>(rank_)],
                                  call.out.bytes, order.stream));
  return GroupOverPeers([&](int peer) {
    const auto r = static_cast<size_t>(peer);
    return Send(order, order.in + first[r], first[r + 1] - first[r], peer);
  });
}

absl::Status NcclOffload::AllToAll(const Order& order) {
  const Call& call = order.call;
  const Offsets ins = OffsetsOf(call, &PartCounts::in), outs = OffsetsOf(call, &PartCounts::out);
  const auto own = static_cast<size_t>(rank_);
  ENTRAIN_RETURN_IF_ERROR(
      CopyOwn(At(call.out, outs[own]), order.in + ins[own], ins[own + 1] - ins[own], order.stream));
  return GroupOverPeers([&](int peer) {
    const auto r = static_cast<size_t>(peer);
    ENTRAIN_RETURN_IF_ERROR(Send(order, order.in + ins[r], ins[r + 1] - ins[r], peer));
    return Receive(order, At(call.out, outs[r]), outs[r + 1] - outs[r], peer);
  });
}

absl::Status NcclOffload::GroupOverPeers(absl::FunctionRef<absl::Status(int)> with) {
  return Group([&] {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) {
        ENTRAIN_RETURN_IF_ERROR(with(peer));
      }
    }
    return absl::OkStatus();
  });
}

absl::Status NcclOffload::CopyOwn(void* dst, const void* src, int64_t bytes, StreamHandle stream) {
  return dst == src || bytes == 0 ? absl::OkStatus() : device_.Copy(dst, src, bytes, stream);
}

// Sender and receiver both omit empty messages.
absl::Status NcclOffload::Send(const Order& order, const void* in, int64_t bytes, int peer) {
  return bytes == 0 ? absl::OkStatus()
                    : ENTRAIN_NCCL(ncclSend, in, static_cast<size_t>(bytes), kUint8, peer,
                                   order.comm, order.stream);
}

absl::Status NcclOffload::Receive(const Order& order, void* out, int64_t bytes, int peer) {
  return bytes == 0 ? absl::OkStatus()
                    : ENTRAIN_NCCL(ncclRecv, out, static_cast<size_t>(bytes), kUint8, peer,
                                   order.comm, order.stream);
}

NcclOffload::Offsets NcclOffload::OffsetsOf(const Call& call,
                                            std::vector<int64_t> PartCounts::*of) const {
  const int64_t width = SizeOf(call.dtype);
  Offsets first{0};
  for (int r = 0; r < size_; ++r) {
    const int64_t count =
        call.uneven == nullptr ? call.count : ((*call.uneven).*of)[static_cast<size_t>(r)];
    first.push_back(first.back() + count * width);
  }
  return first;
}

}  // namespace entrain::nccl
