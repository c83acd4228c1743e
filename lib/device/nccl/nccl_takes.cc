#include "lib/device/nccl/nccl_takes.h"

#include <bit>
#include <cstring>

namespace entrain::nccl {
namespace {

bool TakesReduction(const Call& call, int size) {
  if (call.options.determinism == Determinism::kRankOrder || !CombinedType(call.dtype)) {
    return false;
  }
  const bool narrow = call.dtype == DType::kF16 || call.dtype == DType::kBF16;
  switch (call.reduction.op) {
    case ReduceOp::kSum:
    case ReduceOp::kProd:
      return true;
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return IsInteger(call.dtype);
    case ReduceOp::kAvg:
      return IsFloat(call.dtype) && (!narrow || std::has_single_bit(static_cast<unsigned>(size)));
    case ReduceOp::kPreMultipliedSum:
      return !narrow;
    default:
      return false;
  }
}

template <typename T>
Scalar Pack(T value) {
  Scalar scalar{};
  std::memcpy(scalar.bytes, &value, sizeof(value));
  return scalar;
}

}  // namespace

bool Takes(const Call& call, int size) {
  if (call.options.user_tag >= 0) {
    return false;
  }
  switch (call.kind) {
    case CallKind::kBroadcast:
    case CallKind::kAllGather:
    case CallKind::kGather:
    case CallKind::kScatter:
    case CallKind::kAllToAll:
      return true;
    case CallKind::kAllReduce:
    case CallKind::kReduce:
    case CallKind::kReduceScatter:
      return TakesReduction(call, size);
    default:
      return false;
  }
}

std::optional<DataType> CombinedType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return kFloat32;
    case DType::kF64:
      return kFloat64;
    case DType::kBF16:
      return kBfloat16;
    case DType::kF16:
      return kFloat16;
    case DType::kI8:
      return kInt8;
    case DType::kU8:
      return kUint8;
    case DType::kI32:
      return kInt32;
    case DType::kU32:
      return kUint32;
    case DType::kI64:
      return kInt64;
    case DType::kU64:
      return kUint64;
    default:
      return std::nullopt;
  }
}

RedOp OperatorOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kProd:
      return kProd;
    case ReduceOp::kMin:
      return kMin;
    case ReduceOp::kMax:
      return kMax;
    case ReduceOp::kAvg:
      return kAvg;
    default:
      return kSum;
  }
}

Scalar ScalarOf(DataType type, double factor) {
  if (type == kFloat32) {
    return Pack(static_cast<float>(factor));
  }
  if (type == kFloat64) {
    return Pack(factor);
  }
  // The low bytes are the element, because x86-64 and 64-bit Arm are little-endian.
  return Pack(factor < 0 ? static_cast<uint64_t>(static_cast<int64_t>(factor))
                         : static_cast<uint64_t>(factor));
}

}  // namespace entrain::nccl
