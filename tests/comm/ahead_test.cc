// A rank that needs no data of others for its part of a call (a broadcast's root, a gather's leaf)
// may be far ahead of them. Its messages wait in bounded memory and arrive even if the rank has
// exited. A call that differs from the calls of other ranks is found.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <malloc.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/base/status.h"
#include "tests/support/ranks.h"
#include "tests/support/transports.h"

namespace entrain {
namespace {

using Comm = std::shared_ptr<Communicator>;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

// Sleeps, to delay a late rank or between polls.
void Sleep(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

// Returns the bytes that this process has allocated by malloc.
int64_t HeapBytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

class Ahead : public testing::TestWithParam<std::string> {
 protected:
  RanksOptions Options() const {
    RanksOptions options;
    options.transports = GetParam();
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Over, Ahead, testing::ValuesIn(WithUcx({"inproc", "shm", "tcp"})),
                         [](const auto& test) { return test.param; });

// There are more messages than any credit covers, so the root has to wait until a peer takes some.
TEST_P(Ahead, RootOfManyBroadcastsWaitsWithinBoundedMemory) {
  constexpr int64_t kCalls = 100000;
  constexpr int64_t kCount = 128;
  constexpr int64_t kLimit = 20 << 20;  // for three ranks; all messages have 100 MB
  std::atomic<int64_t> before{0}, most{0};
  std::atomic<int> done{0};
  RunRanks(3, Options(), [&](const Comm& comm) {
    ASSERT_EQ(comm->Barrier(), absl::OkStatus());
    if (comm->rank() == 0) {
      before = HeapBytes();
    }
    if (comm->rank() == 1) {
      // The root gets as far ahead as it can.
      Sleep(500);
    }
    std::vector<int64_t> values(kCount);
    for (int64_t i = 0; i < kCalls; ++i) {
      values.front() = values.back() = comm->rank() == 0 ? i * 7 : -1;
      const absl::Status status = comm->Broadcast(values.data(), kCount, DType::kI64, 0);
      ASSERT_EQ(status, absl::OkStatus()) << i;
      ASSERT_EQ(values.front(), i * 7);
      ASSERT_EQ(values.back(), i * 7);
      if (i % 1000 == 0 && comm->rank() == 0) {
        most = std::max(most.load(), HeapBytes());
      }
    }
    ++done;
    ASSERT_EQ(comm->Barrier(), absl::OkStatus());
  });
  EXPECT_EQ(done, 3);
  EXPECT_LT(most - before, kLimit);
  RecordProperty("most_bytes", std::to_string(most - before));
}

// No thread waits for the root's started calls until the end.
TEST_P(Ahead, LeafOfStartedBroadcastsFindsAllOfThem) {
  constexpr int64_t kCalls = 3000;
  RunRanks(2, Options(), [](const Comm& comm) {
    std::vector<int64_t> values(kCalls, -1);
    std::vector<RefPtr<Work>> works;
    if (comm->rank() == 1) {
      // The root gets ahead.
      Sleep(50);
    }
    for (int64_t i = 0; i < kCalls; ++i) {
      int64_t& value = values[static_cast<size_t>(i)];
      value = comm->rank() == 0 ? i : -1;
      Call call;
      call.kind = CallKind::kBroadcast;
      call.dtype = DType::kI64;
      call.in = call.out = {&value, 8, MemoryKind::kHost};
      call.count = 1;
      auto work = comm->Start(call);
      ASSERT_TRUE(work.ok()) << work.status();
      works.push_back(*std::move(work));
    }
    for (int64_t i = 0; i < kCalls; ++i) {
      ASSERT_TRUE(works[static_cast<size_t>(i)]->Wait(Deadline::After(20 * kSecond)));
      ASSERT_EQ(works[static_cast<size_t>(i)]->status(), absl::OkStatus());
      ASSERT_EQ(values[static_cast<size_t>(i)], i);
    }
  });
}

// The end of the body destroys the communicator and its runtime.
TEST_P(Ahead, WhatARootSentArrivesWhenItHasGone) {
  for (const size_t count : {size_t{1}, size_t{1000}, size_t{100000}}) {
    RunRanks(3, Options(), [&](const Comm& comm) {
      std::vector<int64_t> data(count, comm->rank() == 0 ? 42 : 0);
      if (comm->rank() == 2 && count < 1000) {
        // The root has exited by then.
        Sleep(100);
      }
      ASSERT_EQ(comm->Broadcast(data.data(), static_cast<int64_t>(count), DType::kI64, 0),
                absl::OkStatus());
      EXPECT_THAT(data, testing::Each(42));
    });
  }
}

enum class Odd { kCount, kRoot, kKind, kGather };
constexpr Odd kOdds[] = {Odd::kCount, Odd::kRoot, Odd::kKind, Odd::kGather};

// Returns true if a root that makes this call waits for other ranks, while they wait for the root.
// Then no rank sends anything.
bool WaitsForLeaves(Odd odd) {
  return odd == Odd::kGather || odd == Odd::kRoot;
}

// Makes a broadcast of `count` values from rank 0. The odd rank makes another call.
absl::Status CallOddly(const Comm& comm, Odd odd, bool is_odd, std::vector<int64_t>& data) {
  Call call;
  call.kind = CallKind::kBroadcast;
  call.dtype = DType::kI64;
  call.count = static_cast<int64_t>(data.size()) - 1;
  if (is_odd && odd == Odd::kCount) {
    ++call.count;
  }
  if (is_odd && odd == Odd::kRoot) {
    call.root = comm->rank() == 0 ? 1 : comm->rank();
  }
  if (is_odd && odd == Odd::kKind) {
    return comm->Barrier();
  }
  call.in = call.out = {data.data(), call.count * 8, MemoryKind::kHost};
  std::vector<int64_t> gathered;
  if (is_odd && odd == Odd::kGather) {  // sends to the root, then is done
    call.kind = CallKind::kGather;
    gathered.resize(static_cast<size_t>(call.count) * static_cast<size_t>(comm->size()));
    call.out = {gathered.data(), static_cast<int64_t>(gathered.size()) * 8, MemoryKind::kHost};
    if (comm->rank() != 0) {
      call.out = {};
    }
  }
  return comm->Run(call);
}

// A rank whose call has finished learns of the mismatch in a later call.
absl::Status UntilItEnds(const Comm& comm, absl::Status status) {
  const int64_t give_up = Clock::Real().Now() + 10 * kSecond;
  while (status.ok() && Clock::Real().Now() < give_up) {
    Sleep(1);
    status = comm->status();
  }
  return status;
}

TEST_P(Ahead, CallsThatDisagreeEndOnEveryRankNamingBoth) {
  for (const int ranks : {2, 3, 5}) {
    for (const Odd odd : kOdds) {
      for (int odd_rank = WaitsForLeaves(odd) ? 1 : 0; odd_rank < ranks; ++odd_rank) {
        SCOPED_TRACE(
            absl::StrCat(ranks, " ranks, odd one ", odd_rank, ", way ", static_cast<int>(odd)));
        RunRanks(ranks, Options(), [&](const Comm& comm) {
          std::vector<int64_t> data(4, comm->rank());
          ASSERT_EQ(comm->Broadcast(data.data(), 4, DType::kI64, 0), absl::OkStatus());
          // The end of the communicator may end a slower rank's barrier.
          absl::Status status = comm->Barrier();
          if (status.ok()) {
            status = CallOddly(comm, odd, comm->rank() == odd_rank, data);
          }
          status = UntilItEnds(comm, status);
          EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
          EXPECT_THAT(std::string(status.message()),
                      AllOf(HasSubstr("broadcast of 3 i64 from rank 0"),
                            AnyOf(HasSubstr("broadcast of 4 i64"), HasSubstr("from rank 1"),
                                  HasSubstr("from rank 2"), HasSubstr("from rank 3"),
                                  HasSubstr("from rank 4"), HasSubstr("barrier"),
                                  HasSubstr("gather of 3 i64"))));
          EXPECT_EQ(comm->Barrier().code(), absl::StatusCode::kDataLoss);
        });
      }
    }
  }
}

TEST_P(Ahead, CallsThatWaitForEachOtherAreToldApartAtTheDeadline) {
  RanksOptions options = Options();
  options.timeout_ns = 300 * kMillisecond;
  for (const Odd odd : {Odd::kGather, Odd::kRoot}) {
    RunRanks(3, options, [&](const Comm& comm) {
      std::vector<int64_t> data(4, comm->rank());
      const int64_t begin = Clock::Real().Now();
      const absl::Status status = CallOddly(comm, odd, comm->rank() == 0, data);
      EXPECT_LT(Clock::Real().Now() - begin, 5 * kSecond) << "not at its deadline";
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
      EXPECT_THAT(
          std::string(status.message()),
          AllOf(HasSubstr("broadcast of 3 i64 from rank 0"),
                HasSubstr(odd == Odd::kGather ? "gather of 3 i64" : "of 3 i64 from rank 1")));
    });
  }
}

// A slow rank finds messages of calls that it has not made yet, and takes the right ones.
TEST_P(Ahead, LateRankSeesTheOddCallAmongManyGoodOnes) {
  RunRanks(2, Options(), [](const Comm& comm) {
    std::vector<int64_t> data(4, 3);
    absl::Status status;
    if (comm->rank() == 1) {
      // The root gets ahead.
      Sleep(30);
    }
    int calls = 0;
    for (; status.ok() && calls < 300; ++calls) {
      const bool last = calls == 299;
      status = comm->Broadcast(data.data(), last && comm->rank() == 0 ? 4 : 3, DType::kI64, 0);
    }
    status = UntilItEnds(comm, status);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("#301"), HasSubstr("of 4 i64"), HasSubstr("of 3 i64")));
    if (comm->rank() == 1) {
      EXPECT_EQ(calls, 300);
    }
  });
}

}  // namespace
}  // namespace entrain
