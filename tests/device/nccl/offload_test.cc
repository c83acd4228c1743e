// The calls that the adapter makes of NCCL, recorded by a table of functions.
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/device/nccl/nccl_offload.h"
#include "tests/device/nccl/begun.h"
#include "tests/device/nccl/recording_nccl.h"

namespace entrain::nccl {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uintptr_t kIn = 0x1000, kOut = 0x2000;
void* const kScratch = reinterpret_cast<void*>(uintptr_t{0xa000});
const StreamHandle kStream = reinterpret_cast<StreamHandle>(uintptr_t{0x5});

Call Of(CallKind kind, int64_t count, DType dtype = DType::kF32) {
  Call call;
  call.kind = kind;
  call.dtype = dtype;
  call.count = count;
  const int64_t bytes = count * SizeOf(dtype);
  call.in = {reinterpret_cast<void*>(kIn), bytes, MemoryKind::kDevice};
  call.out = {reinterpret_cast<void*>(kOut), bytes, MemoryKind::kDevice};
  call.options.deadline = Deadline::After(5 * kSecond);
  return call;
}
Call Uneven(CallKind kind, std::vector<int64_t> in, std::vector<int64_t> out = {}) {
  Call call = Of(kind, 0);
  call.uneven = std::make_shared<const PartCounts>(PartCounts{in, out.empty() ? in : out});
  return call;
}

// The adapter is rank 1 of 3.
class OffloadCalls : public testing::Test {
 protected:
  void TearDown() override {
    offload_.reset();
    EXPECT_TRUE(CommunicatorHandle::AwaitEnds(Deadline::After(20 * kSecond)));
    EXPECT_EQ(recorded_.communicators, 0);
    EXPECT_EQ(recorded_.entered, 0);
    EXPECT_FALSE(recorded_.outside);
  }

  absl::Status Join(Deadline give_up = Deadline::After(5 * kSecond)) {
    UniqueId id = {"unique"};
    const auto handle = CommunicatorHandle::Join(RecordingFunctions(), id, 1, 3, device_);
    if (!handle.ok()) {
      return handle.status();
    }
    offload_ = std::make_unique<NcclOffload>(RecordingFunctions(), *handle, 1, 3, device_);
    return AwaitBegun(*offload_, give_up);
  }
  // Returns the recorded lines of one call.
  std::vector<std::string> Lines(const Call& call) {
    if (offload_ == nullptr) {
      EXPECT_TRUE(Join().ok());
    }
    recorded_.lines.clear();
    const absl::Status status = offload_->Enqueue(call, kStream, kScratch);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(AwaitBegun(*offload_), absl::OkStatus());
    return recorded_.lines;
  }
  void AwaitEnds() { EXPECT_TRUE(CommunicatorHandle::AwaitEnds(Deadline::After(20 * kSecond))); }

  Recorded& recorded_ = StartRecording();
  RecordingDevice device_;
  std::unique_ptr<NcclOffload> offload_;
};

TEST_F(OffloadCalls, CommunicatorsDoNotBlock) {
  recorded_.polls_in_progress = 3;
  ASSERT_TRUE(Join().ok());
  EXPECT_THAT(recorded_.lines, ElementsAre("Init 3 1 unique blocking 0"));
  EXPECT_EQ(recorded_.polls_in_progress, 0);
}

TEST_F(OffloadCalls, Reductions) {
  Call all = Of(CallKind::kAllReduce, 4);
  EXPECT_THAT(Lines(all), ElementsAre("AllReduce 1000 2000 4 f32 sum"));
  all.reduction.op = ReduceOp::kAvg;
  all.out = all.in;
  EXPECT_THAT(Lines(all), ElementsAre("AllReduce 1000 1000 4 f32 avg"));
  Call one = Of(CallKind::kReduce, 5, DType::kI64);
  one.reduction.op = ReduceOp::kMin;
  one.root = 2;
  one.out = {};
  EXPECT_THAT(Lines(one), ElementsAre("Reduce 1000 0 5 i64 min to 2"));
  Call part = Of(CallKind::kReduceScatter, 6, DType::kBF16);
  part.reduction.op = ReduceOp::kProd;
  EXPECT_THAT(Lines(part), ElementsAre("ReduceScatter 1000 2000 6 bf16 prod"));
  all.reduction.op = ReduceOp::kMax;
  all.dtype = DType::kU8;
  EXPECT_THAT(Lines(all), ElementsAre("AllReduce 1000 1000 4 u8 max"));
}

TEST_F(OffloadCalls, AFactorIsAnOperatorForOneCall) {
  Call call = Of(CallKind::kAllReduce, 4);
  call.reduction.op = ReduceOp::kPreMultipliedSum;
  call.reduction.factor = 0.5;
  EXPECT_THAT(Lines(call), ElementsAre("PreMulSum 3f000000 f32 now",
                                       "AllReduce 1000 2000 4 f32 made17", "DestroyOp made17"));
  call.dtype = DType::kI8;
  call.reduction.factor = -2;
  EXPECT_THAT(Lines(call), ElementsAre("PreMulSum fe i8 now", "AllReduce 1000 2000 4 i8 made17",
                                       "DestroyOp made17"));
}

TEST_F(OffloadCalls, WhatOnlyMovesIsBytes) {
  Call call = Of(CallKind::kBroadcast, 4, DType::kF64I64);
  call.root = 2;
  EXPECT_THAT(Lines(call), ElementsAre("Broadcast 1000 2000 64 u8 from 2"));
  EXPECT_THAT(Lines(Of(CallKind::kAllGather, 3, DType::kF8E4M3)),
              ElementsAre("AllGather 1000 2000 3 u8"));
}

TEST_F(OffloadCalls, UnevenPartsAreAGroup) {
  EXPECT_THAT(
      Lines(Uneven(CallKind::kAllGather, {2, 0, 3})),
      ElementsAre("{", "Broadcast 1000 2000 8 u8 from 0", "Broadcast 1000 2008 12 u8 from 2", "}"));
  EXPECT_THAT(
      Lines(Uneven(CallKind::kReduceScatter, {2, 1, 0})),
      ElementsAre("{", "Reduce 1000 2000 2 f32 sum to 0", "Reduce 1008 2000 1 f32 sum to 1", "}"));
}

TEST_F(OffloadCalls, GatherAndScatterOfTheRoot) {
  Call gather = Of(CallKind::kGather, 2);
  gather.root = 1;
  EXPECT_THAT(Lines(gather), ElementsAre("Copy 2008 1000 8", "{", "Recv 2000 8 u8 from 0",
                                         "Recv 2010 8 u8 from 2", "}"));
  gather.in.data = reinterpret_cast<void*>(kOut + 8);  // in place
  EXPECT_THAT(Lines(gather),
              ElementsAre("{", "Recv 2000 8 u8 from 0", "Recv 2010 8 u8 from 2", "}"));
  Call scatter = Uneven(CallKind::kScatter, {3, 1, 0});
  scatter.root = 1;
  scatter.out.bytes = 4;
  EXPECT_THAT(Lines(scatter), ElementsAre("Copy 2000 100c 4", "{", "Send 1000 12 u8 to 0", "}"));
}

TEST_F(OffloadCalls, GatherAndScatterOfTheOthers) {
  Call gather = Of(CallKind::kGather, 2);
  EXPECT_THAT(Lines(gather), ElementsAre("Send 1000 8 u8 to 0"));
  Call scatter = Of(CallKind::kScatter, 2);
  EXPECT_THAT(Lines(scatter), ElementsAre("Recv 2000 8 u8 from 0"));
  Call nothing = Uneven(CallKind::kGather, {0, 0, 0});
  nothing.in.bytes = 0;
  EXPECT_THAT(Lines(nothing), ElementsAre());
}

TEST_F(OffloadCalls, AllToAll) {
  EXPECT_THAT(Lines(Of(CallKind::kAllToAll, 2)),
              ElementsAre("Copy 2008 1008 8", "{", "Send 1000 8 u8 to 0", "Recv 2000 8 u8 from 0",
                          "Send 1010 8 u8 to 2", "Recv 2010 8 u8 from 2", "}"));
  EXPECT_THAT(
      Lines(Uneven(CallKind::kAllToAll, {1, 2, 0}, {0, 2, 3})),
      ElementsAre("Copy 2000 1004 8", "{", "Send 1000 4 u8 to 0", "Recv 2008 12 u8 from 2", "}"));
}

TEST_F(OffloadCalls, AllToAllInPlaceSendsFromACopy) {
  Call call = Of(CallKind::kAllToAll, 1);
  call.in.bytes = call.out.bytes = 12;
  call.out.data = call.in.data;
  EXPECT_EQ(ScratchBytes(call), 12);
  EXPECT_THAT(Lines(call), ElementsAre("Copy a000 1000 12", "Copy 1004 a004 4", "{",
                                       "Send a000 4 u8 to 0", "Recv 1000 4 u8 from 0",
                                       "Send a008 4 u8 to 2", "Recv 1008 4 u8 from 2", "}"));
  call.out.data = reinterpret_cast<void*>(kOut);
  EXPECT_EQ(ScratchBytes(call), 0);
}

// Objects that were made for a call are freed when it has begun, and not before, because NCCL still
// reads them.
TEST_F(OffloadCalls, SayWhenNcclHasBegun) {
  ASSERT_TRUE(Join().ok());
  Call call = Of(CallKind::kAllReduce, 1);
  call.reduction.op = ReduceOp::kPreMultipliedSum;
  call.reduction.factor = 0.5;
  recorded_.polls_in_progress = 5;
  ASSERT_TRUE(offload_->Enqueue(call, kStream, kScratch).ok());
  EXPECT_EQ(recorded_.polls_in_progress, 5);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(offload_->Begun().value(), false);
    EXPECT_THAT(recorded_.lines, Not(Contains(HasSubstr("DestroyOp"))));
  }
  EXPECT_EQ(offload_->Begun().value(), true);
  EXPECT_THAT(recorded_.lines, Contains(HasSubstr("DestroyOp")));
}

TEST_F(OffloadCalls, ErrorsHaveOurCodes) {
  ASSERT_TRUE(Join().ok());
  const std::pair<Result, absl::StatusCode> codes[] = {
      {kRemoteError, absl::StatusCode::kUnavailable},
      {kSystemError, absl::StatusCode::kUnavailable},
      {kInvalidUsage, absl::StatusCode::kFailedPrecondition},
      {kInvalidArgument, absl::StatusCode::kInvalidArgument},
      {kUnhandledCudaError, absl::StatusCode::kInternal},
      {kInternalError, absl::StatusCode::kInternal}};
  for (const auto& [result, code] : codes) {
    recorded_.call = result;
    const absl::Status called = offload_->Enqueue(Of(CallKind::kAllReduce, 1), kStream, nullptr);
    EXPECT_EQ(called.code(), code) << called;
    EXPECT_EQ(called.message(), "ncclAllReduce: an error (its reason)");
    recorded_.call = kSuccess;
    EXPECT_TRUE(offload_->AsyncStatus().ok());
    recorded_.async = result;
    EXPECT_EQ(offload_->AsyncStatus().code(), code);
    recorded_.async = kSuccess;
  }
}

TEST_F(OffloadCalls, AGroupThatFailsIsEnded) {
  ASSERT_TRUE(Join().ok());
  recorded_.lines.clear();
  recorded_.call = kInternalError;
  EXPECT_FALSE(offload_->Enqueue(Of(CallKind::kAllToAll, 2), kStream, nullptr).ok());
  EXPECT_THAT(recorded_.lines, ElementsAre("Copy 2008 1008 8", "{", "Send 1000 8 u8 to 0", "}"));
}

TEST_F(OffloadCalls, WhatIsNotTakenIsRefused) {
  ASSERT_TRUE(Join().ok());
  const absl::Status status = offload_->Enqueue(Of(CallKind::kScan, 2), kStream, nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("scan"));
}

TEST_F(OffloadCalls, JoiningMayBeAborted) {
  recorded_.polls_in_progress = 1 << 30;
  EXPECT_TRUE(absl::IsDeadlineExceeded(Join(Deadline::After(50 * kMillisecond))));
  offload_->Abort();
  AwaitEnds();
  EXPECT_THAT(recorded_.lines, Contains("Abort"));
}

TEST_F(OffloadCalls, JoiningThatFailsIsAborted) {
  recorded_.async = kInvalidUsage;
  EXPECT_TRUE(absl::IsFailedPrecondition(Join()));
  offload_.reset();
  AwaitEnds();
  EXPECT_EQ(recorded_.communicators, 0);
}

TEST_F(OffloadCalls, AbortIsOnceAndEndsEverythingElse) {
  ASSERT_TRUE(Join().ok());
  recorded_.lines.clear();
  offload_->Abort();
  offload_->Abort();
  EXPECT_TRUE(absl::IsAborted(offload_->Enqueue(Of(CallKind::kAllReduce, 1), kStream, nullptr)));
  EXPECT_TRUE(absl::IsAborted(offload_->AsyncStatus()));
  offload_.reset();
  AwaitEnds();
  EXPECT_THAT(recorded_.lines, ElementsAre("Abort"));
}

TEST_F(OffloadCalls, AnotherThreadMayAbortACallThatWaits) {
  ASSERT_TRUE(Join().ok());
  recorded_.polls_in_progress = 1 << 30;
  std::thread aborter([&] {
    // The call has begun to wait by then.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    offload_->Abort();
  });
  ASSERT_TRUE(offload_->Enqueue(Of(CallKind::kAllReduce, 1), kStream, nullptr).ok());
  EXPECT_TRUE(absl::IsAborted(AwaitBegun(*offload_)));
  aborter.join();
}

TEST_F(OffloadCalls, DestructionLetsGoOutWhatWasSentAndWaitsForNothing) {
  ASSERT_TRUE(Join().ok());
  recorded_.lines.clear();
  recorded_.polls_in_progress = 40;
  const int64_t begun = Clock::Real().Now();
  offload_.reset();
  EXPECT_LT(Clock::Real().Now() - begun, kSecond);
  AwaitEnds();
  EXPECT_THAT(recorded_.lines, ElementsAre("Finalize", "Destroy"));
}

TEST_F(OffloadCalls, WhatCannotBeFinalizedIsAborted) {
  ASSERT_TRUE(Join().ok());
  recorded_.lines.clear();
  recorded_.async = kRemoteError;
  offload_.reset();
  AwaitEnds();
  EXPECT_THAT(recorded_.lines, ElementsAre("Finalize", "Abort"));
}

TEST_F(OffloadCalls, WhatWasDestroyedIsNotTouchedAgain) {
  for (const Result result : {kInProgress, kInternalError}) {
    ASSERT_TRUE(Join().ok());
    recorded_.lines.clear();
    recorded_.destroy = result;
    offload_.reset();
    AwaitEnds();
    EXPECT_THAT(recorded_.lines, ElementsAre("Finalize", "Destroy"));
  }
}

}  // namespace
}  // namespace entrain::nccl
