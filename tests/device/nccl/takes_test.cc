#include <cstring>
#include <vector>

#include "gtest/gtest.h"

#include "lib/device/nccl/nccl_takes.h"

namespace entrain::nccl {
namespace {

Call Of(CallKind kind, DType dtype = DType::kF32, ReduceOp op = ReduceOp::kSum) {
  Call call;
  call.kind = kind;
  call.dtype = dtype;
  call.reduction.op = op;
  return call;
}
bool TakesOp(ReduceOp op, DType dtype, int size = 4) {
  return Takes(Of(CallKind::kAllReduce, dtype, op), size);
}

constexpr DType kCombined[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kI8,
                               DType::kU8,  DType::kI32, DType::kU32,  DType::kI64, DType::kU64};
constexpr DType kOthers[] = {DType::kF8E4M3, DType::kF8E5M2, DType::kI16,    DType::kU16,
                             DType::kF32I32, DType::kF64I64, DType::kI32I32, DType::kI64I64};

TEST(Takes, WhatMovesDataOfEveryType) {
  for (int i = 0; i < kDTypes; ++i) {
    for (const CallKind kind : {CallKind::kBroadcast, CallKind::kAllGather, CallKind::kGather,
                                CallKind::kScatter, CallKind::kAllToAll}) {
      EXPECT_TRUE(Takes(Of(kind, DType{i}), 4)) << NameOf(kind) << " " << NameOf(DType{i});
    }
  }
}

TEST(Takes, SumsAndProductsOfWhatItCanCombine) {
  for (const CallKind kind : {CallKind::kAllReduce, CallKind::kReduce, CallKind::kReduceScatter}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd}) {
      for (const DType dtype : kCombined) {
        EXPECT_TRUE(Takes(Of(kind, dtype, op), 4)) << NameOf(dtype);
      }
      for (const DType dtype : kOthers) {
        EXPECT_FALSE(Takes(Of(kind, dtype, op), 4)) << NameOf(dtype);
      }
    }
  }
}

TEST(Takes, WhereItsResultsWouldBeOthersItIsNotAsked) {
  for (const DType dtype : kCombined) {
    const bool narrow = dtype == DType::kF16 || dtype == DType::kBF16;
    // NCCL ignores NaN.
    EXPECT_EQ(TakesOp(ReduceOp::kMin, dtype), IsInteger(dtype)) << NameOf(dtype);
    EXPECT_EQ(TakesOp(ReduceOp::kMax, dtype), IsInteger(dtype)) << NameOf(dtype);
    // NCCL multiplies by 1 / n, rounded to the type.
    EXPECT_EQ(TakesOp(ReduceOp::kAvg, dtype, 4), IsFloat(dtype)) << NameOf(dtype);
    EXPECT_EQ(TakesOp(ReduceOp::kAvg, dtype, 3), IsFloat(dtype) && !narrow) << NameOf(dtype);
    EXPECT_EQ(TakesOp(ReduceOp::kPreMultipliedSum, dtype), !narrow) << NameOf(dtype);
  }
}

TEST(Takes, NothingElse) {
  for (const ReduceOp op :
       {ReduceOp::kBitAnd, ReduceOp::kBitOr, ReduceOp::kBitXor, ReduceOp::kLogicalAnd,
        ReduceOp::kLogicalOr, ReduceOp::kLogicalXor, ReduceOp::kMinLoc, ReduceOp::kMaxLoc,
        ReduceOp::kCustom, ReduceOp::kWeightedMean, ReduceOp::kGta}) {
    for (int i = 0; i < kDTypes; ++i) {
      EXPECT_FALSE(TakesOp(op, DType{i})) << NameOf(op) << " " << NameOf(DType{i});
    }
  }
  for (const CallKind kind :
       {CallKind::kBarrier, CallKind::kScan, CallKind::kExclusiveScan, CallKind::kSend,
        CallKind::kRecv, CallKind::kSplit, CallKind::kCreate}) {
    EXPECT_FALSE(Takes(Of(kind), 4)) << NameOf(kind);
  }
}

TEST(Takes, NoOrderOfRanksAndNoTags) {
  Call ordered = Of(CallKind::kAllReduce), tagged = Of(CallKind::kAllGather);
  ordered.options.determinism = Determinism::kRankOrder;
  tagged.options.user_tag = 0;
  EXPECT_FALSE(Takes(ordered, 4));
  EXPECT_FALSE(Takes(tagged, 4));
  ordered.options.determinism = Determinism::kAlgorithm;
  EXPECT_TRUE(Takes(ordered, 4));
}

template <typename T>
T Packed(DataType type, double factor) {
  T value;
  std::memcpy(&value, ScalarOf(type, factor).bytes, sizeof(value));
  return value;
}

TEST(Scalar, IsAnElementOfTheType) {
  EXPECT_EQ(Packed<float>(kFloat32, 0.1), 0.1f);
  EXPECT_EQ(Packed<double>(kFloat64, 0.1), 0.1);
  EXPECT_EQ(Packed<int8_t>(kInt8, -3), -3);
  EXPECT_EQ(Packed<uint8_t>(kUint8, 259), 3);
  EXPECT_EQ(Packed<int32_t>(kInt32, -70000), -70000);
  EXPECT_EQ(Packed<uint64_t>(kUint64, 0x1p63), uint64_t{1} << 63);
  EXPECT_EQ(Packed<int64_t>(kInt64, -0x1p63), INT64_MIN);
}

}  // namespace
}  // namespace entrain::nccl
