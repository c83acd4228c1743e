#include "lib/base/call.h"

#include "gtest/gtest.h"

#include "include/entrain/types.h"

namespace entrain {
namespace {

Call AllReduce() {
  Call call;
  call.kind = CallKind::kAllReduce;
  call.dtype = DType::kF32;
  call.count = 1024;
  call.reduction.op = ReduceOp::kSum;
  return call;
}

TEST(Descriptor, SaysWhatWasCalled) {
  EXPECT_EQ(ToString(AllReduce().descriptor()), "all_reduce sum of 1024 f32");
  Call broadcast;
  broadcast.kind = CallKind::kBroadcast;
  broadcast.dtype = DType::kU8;
  broadcast.count = 8;
  broadcast.root = 2;
  EXPECT_EQ(ToString(broadcast.descriptor()), "broadcast of 8 u8 from rank 2");
  EXPECT_EQ(ToString(Call().descriptor()), "barrier");
}

TEST(Descriptor, DiffersWhereCallsDo) {
  const Descriptor plain = AllReduce().descriptor();
  EXPECT_EQ(plain, AllReduce().descriptor());
  Call other = AllReduce();
  other.count = 1023;
  EXPECT_NE(other.descriptor(), plain);
  other = AllReduce();
  other.dtype = DType::kI32;
  EXPECT_NE(other.descriptor(), plain);
  other = AllReduce();
  other.reduction.op = ReduceOp::kMax;
  EXPECT_NE(other.descriptor(), plain);
  other = AllReduce();
  other.kind = CallKind::kReduceScatter;
  EXPECT_NE(other.descriptor(), plain);
}

TEST(Descriptor, OfCustomReductionsHasTheirSignature) {
  Call one = AllReduce();
  one.reduction.op = ReduceOp::kCustom;
  one.reduction.signature = 7;
  Call two = one;
  two.reduction.signature = 8;
  EXPECT_NE(one.descriptor(), two.descriptor());
  EXPECT_NE(ToString(one.descriptor()), ToString(two.descriptor()));
}

TEST(Descriptor, LeavesOutWhatRanksNeedNotAgreeOn) {
  Call one = AllReduce();
  Call two = AllReduce();
  two.root = 5;                      // an all_reduce has no root
  two.options.timeout_ns = kSecond;  // may differ between ranks
  EXPECT_EQ(one.descriptor(), two.descriptor());
  Call barrier, other_barrier;
  other_barrier.dtype = DType::kF64;
  other_barrier.reduction.op = ReduceOp::kMax;
  EXPECT_EQ(barrier.descriptor(), other_barrier.descriptor());
}

TEST(Descriptor, OfSendAndReceiveMatch) {
  Call send, recv;
  send.kind = CallKind::kSend;
  recv.kind = CallKind::kRecv;
  send.dtype = recv.dtype = DType::kBF16;
  send.count = recv.count = 9;
  send.root = 1;
  recv.root = 0;
  EXPECT_EQ(send.descriptor(), recv.descriptor());
}

TEST(ReduceOps, AreTheOnesOfTheAbi) {
  EXPECT_EQ(static_cast<int32_t>(ReduceOp::kSum), ENTRAIN_SUM);
  EXPECT_EQ(static_cast<int32_t>(ReduceOp::kAvg), ENTRAIN_AVG);
  EXPECT_EQ(static_cast<int32_t>(ReduceOp::kCustom), ENTRAIN_REDUCTION);
  EXPECT_EQ(static_cast<int32_t>(ReduceOp::kBitAnd), ENTRAIN_BAND);
  EXPECT_EQ(static_cast<int32_t>(ReduceOp::kLogicalAnd), ENTRAIN_LAND);
  EXPECT_EQ(static_cast<int32_t>(ReduceOp::kMaxLoc), ENTRAIN_MAXLOC);
  const char* const kNames[] = {"sum",  "prod", "min", "max",  "avg",    "band",  "bor",
                                "bxor", "land", "lor", "lxor", "minloc", "maxloc"};
  for (int op = 0; op < kBuiltinOps; ++op) {
    EXPECT_TRUE(IsBuiltin(static_cast<ReduceOp>(op)));
    EXPECT_EQ(NameOf(static_cast<ReduceOp>(op)), kNames[op]);
  }
  EXPECT_FALSE(IsBuiltin(ReduceOp::kCustom));
  EXPECT_FALSE(IsBuiltin(static_cast<ReduceOp>(-1)));
  EXPECT_FALSE(IsBuiltin(static_cast<ReduceOp>(kBuiltinOps)));
}

TEST(ReduceOps, TakeTheTypesThatTheyHaveAMeaningFor) {
  EXPECT_EQ(CheckReduction(ReduceOp::kBitXor, DType::kF16).message(),
            "op bxor reduces integers only, not dtype f16");
  EXPECT_EQ(CheckReduction(ReduceOp::kSum, DType::kF32I32).message(),
            "dtype f32_i32 is reduced by minloc and maxloc only, not op sum");
  EXPECT_EQ(CheckReduction(ReduceOp::kMinLoc, DType::kF32).message(),
            "op minloc reduces pairs of value and location (f32_i32, f64_i64, i32_i32, i64_i64), "
            "not dtype f32");
  for (int i = 0; i < kDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    const bool pair = IsPair(dtype);
    for (const ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax, ReduceOp::kLogicalOr}) {
      EXPECT_EQ(CheckReduction(op, dtype).ok(), !pair) << NameOf(op) << " " << NameOf(dtype);
    }
    EXPECT_EQ(CheckReduction(ReduceOp::kBitAnd, dtype).ok(), IsInteger(dtype)) << NameOf(dtype);
    EXPECT_EQ(CheckReduction(ReduceOp::kMaxLoc, dtype).ok(), pair) << NameOf(dtype);
    EXPECT_TRUE(CheckReduction(ReduceOp::kCustom, dtype).ok()) << NameOf(dtype);
  }
}

}  // namespace
}  // namespace entrain
