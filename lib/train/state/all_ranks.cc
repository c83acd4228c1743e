#include "lib/train/state/all_ranks.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "lib/base/status.h"
#include "lib/train/worker/timed_call.h"

namespace entrain {
namespace {

// Messages are sent in pieces of at most this many bytes.
constexpr int64_t kPiece = 4 << 20;
constexpr int64_t kEnd = -1;  // sent in place of a length
// An encoded status is shorter than this.
constexpr size_t kStatusBytes = 4096;

int64_t TimeOf(const std::shared_ptr<Communicator>& comm) {
  return comm == nullptr ? 0 : comm->timeout_ns();
}

template <typename T>
int64_t At(const void* values, size_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(values) + i * sizeof(T), sizeof(T));
  return static_cast<int64_t>(value);
}

// Returns element i of an array of integers.
__int128 IntegerAt(const void* values, DType dtype, size_t i) {
  switch (dtype) {
    case DType::kI8:
      return At<int8_t>(values, i);
    case DType::kU8:
      return At<uint8_t>(values, i);
    case DType::kI16:
      return At<int16_t>(values, i);
    case DType::kU16:
      return At<uint16_t>(values, i);
    case DType::kI32:
      return At<int32_t>(values, i);
    case DType::kU32:
      return At<uint32_t>(values, i);
    case DType::kU64:
      return static_cast<uint64_t>(At<uint64_t>(values, i));
    default:
      return At<int64_t>(values, i);
  }
}

}  // namespace

absl::Status CheckReduction(const JointReduction& reduction) {
  if (reduction.count < 0 || reduction.count > kMostReducedBytes / SizeOf(reduction.dtype)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "count: ", reduction.count, " is not within 0 to ", kMostReducedBytes, " bytes"));
  }
  return CheckReduction(reduction.op, reduction.dtype);
}

AllRanks::AllRanks(std::shared_ptr<Communicator> model, std::shared_ptr<Communicator> sync,
                   int64_t timeout_ns)
    : model_(std::move(model)),
      sync_(std::move(sync)),
      place_(model_ == nullptr ? 0 : model_->rank()),
      places_(model_ == nullptr ? 1 : model_->size()),
      replica_(sync_ == nullptr ? 0 : sync_->rank()),
      replicas_(sync_ == nullptr ? 1 : sync_->size()),
      options_(TimedCall(timeout_ns > 0 ? timeout_ns : std::max(TimeOf(model_), TimeOf(sync_)), -1,
                         true)) {}

absl::Status AllRanks::Note(absl::Status status) {
  broken_ = broken_ || !status.ok();
  return status;
}

absl::Status AllRanks::Min(int64_t* value) {
  for (const auto& comm : {model_, sync_}) {
    if (comm != nullptr) {
      ENTRAIN_RETURN_IF_ERROR(
          Note(comm->AllReduce(value, value, 1, DType::kI64, ReduceOp::kMin, options_)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> AllRanks::FirstDifference(const std::vector<int64_t>& values,
                                                  bool in_replica, bool across_replicas) {
  const auto count = static_cast<int64_t>(values.size());
  // The values, followed by their complements. The minimum of the complements is the complement of
  // the maximum.
  std::vector<int64_t> least = values;
  std::transform(values.begin(), values.end(), std::back_inserter(least),
                 [](int64_t value) { return ~value; });
  for (const auto& comm : {in_replica ? model_ : nullptr, across_replicas ? sync_ : nullptr}) {
    if (comm != nullptr && count > 0) {
      ENTRAIN_RETURN_IF_ERROR(Note(comm->AllReduce(least.data(), least.data(), 2 * count,
                                                   DType::kI64, ReduceOp::kMin, options_)));
    }
  }
  for (size_t i = 0; i < values.size(); ++i) {
    if (least[i] != ~least[values.size() + i]) {
      return static_cast<int64_t>(i);
    }
  }
  return -1;
}

// The root sends to the ranks that have the same place in other replicas. Then each of these ranks,
// and the root, sends to the other ranks of its own replica.
absl::Status AllRanks::Spread(int root, void* data, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += kPiece) {
    void* const piece = static_cast<std::byte*>(data) + at;
    const int64_t count = std::min(kPiece, bytes - at);
    if (sync_ != nullptr && place_ == root % places_) {
      ENTRAIN_RETURN_IF_ERROR(
          Note(sync_->Broadcast(piece, count, DType::kU8, root / places_, options_)));
    }
    if (model_ != nullptr) {
      ENTRAIN_RETURN_IF_ERROR(
          Note(model_->Broadcast(piece, count, DType::kU8, root % places_, options_)));
    }
  }
  return absl::OkStatus();
}

absl::Status AllRanks::Agree(const absl::Status& mine) {
  int64_t lowest = mine.ok() ? size() : rank();
  ENTRAIN_RETURN_IF_ERROR(Min(&lowest));
  if (lowest == size()) {
    return absl::OkStatus();
  }
  std::string text = Writer().PutText(EncodeStatus(mine)).Take();
  text.resize(kStatusBytes);
  ENTRAIN_RETURN_IF_ERROR(Spread(static_cast<int>(lowest), text.data(), kStatusBytes));
  const auto status = DecodeStatus(Reader(text).GetText(kStatusBytes));
  return Annotate(status.value_or(absl::InternalError("its error was not understood")),
                  absl::StrCat("rank ", lowest));
}

// Each replica reduces its values. The first ranks of the replicas reduce these, and send the result
// to the other ranks of their replicas: groups of different slots could choose different algorithms.
// A rank that has the result knows that all ranks have come to this call.
absl::Status AllRanks::Reduce(const absl::Status& mine, const JointReduction& reduction,
                              std::string* result) {
  if (reduction.rank != nullptr) {
    *reduction.rank = rank();
  }
  if (reduction.ranks != nullptr) {
    *reduction.ranks = size();
  }
  ENTRAIN_RETURN_IF_ERROR(Agree(mine));
  const auto bytes = static_cast<size_t>(reduction.count * SizeOf(reduction.dtype));
  // The counts were checked on this rank only.
  ENTRAIN_ASSIGN_OR_RETURN(const int64_t differs,
                           FirstDifference({reduction.count, static_cast<int64_t>(reduction.dtype),
                                            static_cast<int64_t>(reduction.op)},
                                           /*in_replica=*/true, /*across_replicas=*/true));
  if (differs >= 0) {
    constexpr const char* kNames[] = {"count", "dtype", "op"};
    return absl::InvalidArgumentError(absl::StrCat(kNames[differs], ": differs between the ranks"));
  }
  if (reduction.count == 0) {
    return absl::OkStatus();
  }
  if (reduction.op == ReduceOp::kAvg && IsInteger(reduction.dtype)) {
    return AverageIntegers(reduction, result);
  }
  result->assign(static_cast<const char*>(reduction.in), bytes);
  return AllReduce(result->data(), reduction.count, reduction.dtype, reduction.op);
}

absl::Status AllRanks::AllReduce(void* data, int64_t count, DType dtype, ReduceOp op) {
  const auto all_reduce = [&](Communicator& comm) {
    return Note(comm.AllReduce(data, data, count, dtype, op, options_));
  };
  if (model_ != nullptr) {
    ENTRAIN_RETURN_IF_ERROR(all_reduce(*model_));
  }
  if (sync_ != nullptr && place_ == 0) {
    ENTRAIN_RETURN_IF_ERROR(all_reduce(*sync_));
  }
  return model_ == nullptr
             ? absl::OkStatus()
             : Note(model_->Broadcast(data, count * SizeOf(dtype), DType::kU8, 0, options_));
}

// Averages of the replicas are truncated already, and their average would be wrong. A sum in the
// element type would wrap around. So the ranks add the upper parts and the lower 32 bits of all
// values, each as an i64, and divide at the end.
absl::Status AllRanks::AverageIntegers(const JointReduction& reduction, std::string* result) {
  const auto count = static_cast<size_t>(reduction.count);
  std::vector<int64_t> parts(2 * count);
  for (size_t i = 0; i < count; ++i) {
    const __int128 value = IntegerAt(reduction.in, reduction.dtype, i);
    parts[i] = static_cast<int64_t>(value >> 32);
    parts[count + i] = static_cast<int64_t>(value & 0xffffffff);
  }
  ENTRAIN_RETURN_IF_ERROR(
      AllReduce(parts.data(), 2 * reduction.count, DType::kI64, ReduceOp::kSum));
  const auto element = static_cast<size_t>(SizeOf(reduction.dtype));
  result->resize(count * element);
  for (size_t i = 0; i < count; ++i) {
    const __int128 sum = (static_cast<__int128>(parts[i]) << 32) + parts[count + i];
    const auto average = static_cast<uint64_t>(sum / size());
    // The low bytes are the element, because x86-64 and 64-bit Arm are little-endian.
    std::memcpy(result->data() + i * element, &average, element);
  }
  return absl::OkStatus();
}

absl::Status TakeReduced(const std::string& result, const JointReduction& reduction) {
  const auto bytes = static_cast<size_t>(reduction.count * SizeOf(reduction.dtype));
  if (result.size() != bytes) {
    return absl::InternalError("reduce: another rank has sent another number of values");
  }
  if (bytes > 0) {
    std::memcpy(reduction.out, result.data(), bytes);
  }
  return absl::OkStatus();
}

absl::Status AllRanks::Tell(std::string* text) {
  auto size = static_cast<int64_t>(text->size());
  ENTRAIN_RETURN_IF_ERROR(Spread(0, &size, sizeof(size)));
  text->resize(static_cast<size_t>(size));
  return Spread(0, text->data(), size);
}

absl::Status AllRanks::Tell(Bytes bytes) {
  return Spread(0, bytes.data(), static_cast<int64_t>(bytes.size()));
}

absl::Status AllRanks::Move(Communicator& comm, CallKind kind, int peer, void* data,
                            int64_t bytes) {
  Call call;
  call.kind = kind;
  call.count = bytes;
  (kind == CallKind::kSend ? call.in : call.out) = {data, bytes};
  call.root = peer;
  call.options = options_;
  return Note(comm.Run(call));
}

absl::Status AllRanks::Send(ConstBytes message) {
  auto left = static_cast<int64_t>(message.size());
  ENTRAIN_RETURN_IF_ERROR(Move(Out(), CallKind::kSend, 0, &left, sizeof(left)));
  auto* from = const_cast<std::byte*>(message.data());  // the call only reads it
  while (left > 0) {
    const int64_t count = std::min(kPiece, left);
    ENTRAIN_RETURN_IF_ERROR(Move(Out(), CallKind::kSend, 0, from, count));
    from += count;
    left -= count;
  }
  return absl::OkStatus();
}

absl::Status AllRanks::EndSend() {
  int64_t end = kEnd;
  ENTRAIN_RETURN_IF_ERROR(Move(Out(), CallKind::kSend, 0, &end, sizeof(end)));
  return replica_ == 0 ? CarryOn() : absl::OkStatus();
}

absl::Status AllRanks::CarryOn() {
  std::vector<std::byte> piece(replicas_ > 1 ? static_cast<size_t>(kPiece) : 0);
  for (int replica = 1; replica < replicas_; ++replica) {
    int64_t left = 0;
    while (left != kEnd) {
      ENTRAIN_RETURN_IF_ERROR(Move(*sync_, CallKind::kRecv, replica, &left, sizeof(left)));
      ENTRAIN_RETURN_IF_ERROR(Move(*model_, CallKind::kSend, 0, &left, sizeof(left)));
      for (; left > 0; left -= std::min(kPiece, left)) {
        const int64_t count = std::min(kPiece, left);
        ENTRAIN_RETURN_IF_ERROR(Move(*sync_, CallKind::kRecv, replica, piece.data(), count));
        ENTRAIN_RETURN_IF_ERROR(Move(*model_, CallKind::kSend, 0, piece.data(), count));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status AllRanks::Receive(int from, absl::FunctionRef<void(ConstBytes piece)> take) {
  int64_t left = 0;
  ENTRAIN_RETURN_IF_ERROR(Move(In(from), CallKind::kRecv, PeerOf(from), &left, sizeof(left)));
  std::vector<std::byte> piece(static_cast<size_t>(std::clamp<int64_t>(left, 0, kPiece)));
  while (left > 0) {
    const int64_t count = std::min(kPiece, left);
    ENTRAIN_RETURN_IF_ERROR(Move(In(from), CallKind::kRecv, PeerOf(from), piece.data(), count));
    take({piece.data(), static_cast<size_t>(count)});
    left -= count;
  }
  return left == 0 ? absl::OkStatus()
                   : Note(absl::InternalError(absl::StrCat("rank ", from, " sends no more")));
}

absl::Status AllRanks::ReceiveEnd(int from) {
  int64_t end = 0;
  ENTRAIN_RETURN_IF_ERROR(Move(In(from), CallKind::kRecv, PeerOf(from), &end, sizeof(end)));
  return end == kEnd ? absl::OkStatus()
                     : Note(absl::InternalError(absl::StrCat("rank ", from, " sends too much")));
}

}  // namespace entrain
