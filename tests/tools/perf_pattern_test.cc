// The checker of entrain-perf, compared with a reference that adds element by element, and tested
// with damaged results.
#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tools/perf/pattern.h"

namespace entrain::perf {
namespace {

Case CaseOf(CallKind collective, DType dtype, ReduceOp op, int ranks, int64_t count) {
  Case measured;
  measured.collective = collective;
  measured.dtype = dtype;
  measured.op = op;
  measured.ranks = ranks;
  measured.count = count;
  return measured;
}

std::vector<float> Input(const Case& measured, int rank) {
  std::vector<float> in(static_cast<size_t>(measured.in_count()));
  Pattern(measured).FillInput(rank, in.data());
  return in;
}

TEST(Pattern, ReduceScatterPartsAreTheSumsOfTheInputs) {
  const Case measured = CaseOf(CallKind::kReduceScatter, DType::kF32, ReduceOp::kSum, 3, 5001);
  for (int rank = 0; rank < 3; ++rank) {
    std::vector<float> out(5001);
    for (int r = 0; r < 3; ++r) {
      const std::vector<float> in = Input(measured, r);
      for (size_t i = 0; i < out.size(); ++i) {
        out[i] += in[static_cast<size_t>(rank) * out.size() + i];
      }
    }
    EXPECT_EQ(Pattern(measured).CountWrong(rank, out.data()), 0);
    out[4999] += 1;
    out[3] = -1;
    EXPECT_EQ(Pattern(measured).CountWrong(rank, out.data()), 2);
  }
}

TEST(Pattern, AverageMayBeRoundedButNotWrong) {
  const Case measured = CaseOf(CallKind::kAllReduce, DType::kF32, ReduceOp::kAvg, 3, 100);
  std::vector<float> out(100);
  for (int r = 0; r < 3; ++r) {
    const std::vector<float> in = Input(measured, r);
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] += in[i];
    }
  }
  for (float& value : out) {
    value *= 1.0f / 3;  // rounds twice
  }
  EXPECT_EQ(Pattern(measured).CountWrong(0, out.data()), 0);
  out[50] *= 1.001f;
  EXPECT_EQ(Pattern(measured).CountWrong(0, out.data()), 1);
}

// Element i of the result has the extreme value at index i over three ranks' inputs, and the rank
// that it comes from.
TEST(Pattern, LocationsAreRanks) {
  struct Found {
    float value;
    int32_t location;
  };
  for (const ReduceOp op : {ReduceOp::kMinLoc, ReduceOp::kMaxLoc}) {
    const Case measured = CaseOf(CallKind::kAllReduce, DType::kF32I32, op, 3, 100);
    std::vector<Found> out(100);
    for (int32_t r = 0; r < 3; ++r) {
      std::vector<Found> in(100);
      Pattern(measured).FillInput(r, in.data());
      for (size_t i = 0; i < out.size(); ++i) {
        ASSERT_EQ(in[i].location, r);
        const bool better =
            op == ReduceOp::kMinLoc ? in[i].value < out[i].value : in[i].value > out[i].value;
        out[i] = r == 0 || better ? in[i] : out[i];
      }
    }
    EXPECT_EQ(Pattern(measured).CountWrong(0, out.data()), 0);
    out[7].location += 1;
    EXPECT_EQ(Pattern(measured).CountWrong(0, out.data()), 1);
  }
}

TEST(Pattern, LogicalResultsAreOneOrZero) {
  const Case measured = CaseOf(CallKind::kAllReduce, DType::kF32, ReduceOp::kLogicalAnd, 2, 100);
  const std::vector<float> first = Input(measured, 0), second = Input(measured, 1);
  std::vector<float> out(100);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = first[i] != 0 && second[i] != 0 ? 1 : 0;
  }
  EXPECT_EQ(Pattern(measured).CountWrong(0, out.data()), 0);
  out[11] = 5;
  EXPECT_EQ(Pattern(measured).CountWrong(0, out.data()), 1);
}

TEST(Pattern, RanksSendDifferentThings) {
  const Case measured = CaseOf(CallKind::kAllGather, DType::kF32, ReduceOp::kSum, 4, 1);
  EXPECT_NE(Input(measured, 0), Input(measured, 1));
}

TEST(Pattern, NothingDeliveredIsAllWrong) {
  for (int type = 0; type < kDTypes; ++type) {
    for (const CallKind collective :
         {CallKind::kAllReduce, CallKind::kReduceScatter, CallKind::kAllGather,
          CallKind::kBroadcast, CallKind::kSend}) {
      const auto dtype = static_cast<DType>(type);
      const ReduceOp op = IsPair(dtype) ? ReduceOp::kMinLoc : ReduceOp::kSum;
      const Case measured = CaseOf(collective, dtype, op, 2, 1000);
      std::vector<std::byte> out(static_cast<size_t>(measured.out_count() * SizeOf(dtype)));
      Pattern::Spoil(out.data(), static_cast<int64_t>(out.size()));
      EXPECT_EQ(Pattern(measured).CountWrong(1, out.data()), measured.out_count())
          << TitleOf(collective) << " " << NameOf(dtype);
    }
  }
}

TEST(Case, SizeIsTheLargerBufferRoundedToWholeParts) {
  const Case measured =
      Case::OfSize(CaseOf(CallKind::kAllGather, DType::kF32, ReduceOp::kSum, 3, 0), 1000);
  EXPECT_EQ(measured.count, 83);
  EXPECT_EQ(measured.bytes, 83 * 3 * 4);
}

TEST(Case, BusFactorsAreNcclTests) {
  const auto factor = [](CallKind collective) {
    return CaseOf(collective, DType::kF32, ReduceOp::kSum, 4, 1).bus_factor();
  };
  EXPECT_DOUBLE_EQ(factor(CallKind::kAllReduce), 1.5);
  EXPECT_DOUBLE_EQ(factor(CallKind::kReduceScatter), 0.75);
  EXPECT_DOUBLE_EQ(factor(CallKind::kAllGather), 0.75);
  EXPECT_DOUBLE_EQ(factor(CallKind::kBroadcast), 1);
  EXPECT_DOUBLE_EQ(factor(CallKind::kSend), 1);
}

}  // namespace
}  // namespace entrain::perf
