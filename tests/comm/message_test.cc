// Small sends and receives on the inline path (lib/comm/call_runner.h). They match messages as
// those of the executor do, whichever path each side takes, and report the same errors.
#include <barrier>
#include <chrono>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "lib/engine/plan.h"
#include "tests/support/ranks.h"
#include "tests/support/wait.h"

namespace entrain {
namespace {

using Comm = std::shared_ptr<Communicator>;
using testing::HasSubstr;

// The forms of a call for a message: as the C API makes it without options, by Run alone, or
// started.
enum Way { kShort, kRun, kStart };

Call CallOf(CallKind kind, std::vector<int64_t>& data, int peer) {
  const BufferView view{data.data(), static_cast<int64_t>(data.size() * sizeof(int64_t)),
                        MemoryKind::kHost};
  Call call;
  call.kind = kind;
  (kind == CallKind::kSend ? call.in : call.out) = view;
  call.dtype = DType::kI64;
  call.count = static_cast<int64_t>(data.size());
  call.root = peer;
  return call;
}

std::optional<absl::Status> RunShort(const Comm& comm, const Call& call) {
  return comm->RunAgain({call.kind, call.dtype, ReduceOp::kSum, call.root, call.count},
                        call.in.data, call.out.data);
}

absl::Status Go(const Comm& comm, const Call& call, Way way) {
  if (way == kShort) {
    if (const auto status = RunShort(comm, call)) {
      return *status;
    }
  }
  if (way != kStart) {
    return comm->Run(call);
  }
  const auto work = comm->Start(call);
  if (!work.ok()) {
    return work.status();
  }
  (*work)->Wait(Deadline::Never());
  return (*work)->status();
}

absl::Status Go(const Comm& comm, CallKind kind, std::vector<int64_t>& data, int peer,
                Way way = kShort) {
  return Go(comm, CallOf(kind, data, peer), way);
}

int64_t Value(int from, int to, int64_t number, size_t i) {
  return number * 1000000 + from * 10000 + to * 1000 + static_cast<int64_t>(i % 997);
}

class Message : public testing::TestWithParam<std::string> {
 protected:
  RanksOptions Options(int64_t timeout_ns = 20 * kSecond) const {
    RanksOptions options;
    options.transports = GetParam();
    options.timeout_ns = timeout_ns;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Over, Message, testing::Values("inproc", "shm", "tcp"),
                         [](const auto& test) { return test.param; });

// Number of elements of a message: none, few, up to the limit of the inline path, and beyond.
size_t SizeOfMessage(int64_t number) {
  constexpr size_t kSizes[] = {0, 1, 3, 1, 500, 4096, 4097, 7, 9000, 1};
  return kSizes[number % 10];
}

// A ring of messages from each rank to the next. Each side of every message draws its form of the
// call, and some sides are late.
TEST_P(Message, EveryWayMeetsEveryOther) {
  for (const int size : {2, 3}) {
    RunRanks(size, Options(), [](const Comm& comm) {
      const int rank = comm->rank(), ranks = comm->size();
      const int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
      std::mt19937 random(static_cast<uint32_t>(rank) + 3);
      for (int64_t number = 0; number < 600; ++number) {
        if (random() % 50 == 0) {  // ranks come at different times
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 700));
        }
        std::vector<int64_t> mine(SizeOfMessage(number)), theirs(mine.size(), -1);
        for (size_t i = 0; i < mine.size(); ++i) {
          mine[i] = Value(rank, next, number, i);
        }
        const auto way = static_cast<Way>(random() % 3), other = static_cast<Way>(random() % 3);
        // A large send ends when it is received, so not all ranks may send first.
        for (const bool send : {rank % 2 == 0, rank % 2 != 0}) {
          ASSERT_EQ(send ? Go(comm, CallKind::kSend, mine, next, way)
                         : Go(comm, CallKind::kRecv, theirs, last, other),
                    absl::OkStatus())
              << number;
        }
        for (size_t i = 0; i < theirs.size(); ++i) {
          ASSERT_EQ(theirs[i], Value(last, rank, number, i)) << number << " element " << i;
        }
      }
    });
  }
}

TEST_P(Message, SmallOnesTakeTheShortWayAndAreCounted) {
  RunRanks(2, Options(), [](const Comm& comm) {
    const int peer = 1 - comm->rank();
    const CommStats before = comm->stats();
    int taken = 0;
    for (int64_t number = 0; number < 1000; ++number) {
      std::vector<int64_t> data(3, number);
      const bool send = (number % 2 == 0) == (comm->rank() == 0);
      const Call call = CallOf(send ? CallKind::kSend : CallKind::kRecv, data, peer);
      const auto status = RunShort(comm, call);
      taken += status ? 1 : 0;
      ASSERT_EQ(status ? *status : comm->Run(call), absl::OkStatus());
    }
    EXPECT_GT(taken, 500);  // for the others, the engine's own thread was polling
    const CommStats after = comm->stats();
    EXPECT_EQ(after.calls - before.calls, 1000u);
    EXPECT_EQ(after.bytes_sent - before.bytes_sent, 500u * 24);
    EXPECT_EQ(after.bytes_received - before.bytes_received, 500u * 24);
  });
}

// More messages than a transport takes without a receive, with other tags and collectives in
// between.
TEST_P(Message, ManyAheadOfTheirReceivesKeepTheirOrder) {
  RunRanks(2, Options(), [](const Comm& comm) {
    constexpr int64_t kMessages = 400;
    const int peer = 1 - comm->rank();
    std::vector<int64_t> tagged(2, 77);
    Call aside = CallOf(comm->rank() == 0 ? CallKind::kSend : CallKind::kRecv, tagged, peer);
    aside.options.user_tag = 5;
    if (comm->rank() == 0) {
      const auto work = comm->Start(aside);
      ASSERT_TRUE(work.ok()) << work.status();
      for (int64_t number = 0; number < kMessages; ++number) {
        std::vector<int64_t> data(1000, number);
        ASSERT_EQ(Go(comm, CallKind::kSend, data, peer), absl::OkStatus());
      }
      ASSERT_TRUE((*work)->Wait(Deadline::After(20 * kSecond)));
    } else {
      // The sender gets as far ahead as it can.
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      for (int64_t number = 0; number < kMessages; ++number) {
        std::vector<int64_t> data(1000, -1);
        ASSERT_EQ(Go(comm, CallKind::kRecv, data, peer), absl::OkStatus());
        ASSERT_EQ(data, std::vector<int64_t>(1000, number));
      }
      tagged.assign(2, 0);
      ASSERT_EQ(comm->Run(aside), absl::OkStatus());
      ASSERT_EQ(tagged, std::vector<int64_t>(2, 77));
    }
    ASSERT_EQ(comm->Barrier(), absl::OkStatus());
  });
}

TEST_P(Message, ThreadsThatSendAndReceiveAtOnceDoNotMix) {
  RunRanks(2, Options(), [](const Comm& comm) {
    const int peer = 1 - comm->rank();
    std::thread sender([&] {
      for (int64_t number = 0; number < 2000; ++number) {
        std::vector<int64_t> data(5, number);
        ASSERT_EQ(Go(comm, CallKind::kSend, data, peer), absl::OkStatus());
      }
    });
    for (int64_t number = 0; number < 2000; ++number) {
      std::vector<int64_t> data(5, -1);
      ASSERT_EQ(Go(comm, CallKind::kRecv, data, peer), absl::OkStatus());
      ASSERT_EQ(data, std::vector<int64_t>(5, number));
    }
    sender.join();
  });
}

// Bad calls take the slow path, which finds the error. They use up no number.
TEST_P(Message, WhatIsNotGoodIsLeftToTheLongWay) {
  RunRanks(2, Options(), [](const Comm& comm) {
    const int peer = 1 - comm->rank();
    std::vector<int64_t> data(4, comm->rank()), first(4);
    // Puts these calls into the cache.
    ASSERT_EQ(Go(comm, CallKind::kSend, data, peer), absl::OkStatus());
    ASSERT_EQ(Go(comm, CallKind::kRecv, first, peer), absl::OkStatus());
    for (const CallKind kind : {CallKind::kSend, CallKind::kRecv}) {
      const CallKey good{kind, DType::kI64, ReduceOp::kSum, peer, 4};
      const auto refused = [&](CallKey key, void* buffer) {
        return !comm->RunAgain(key, buffer, buffer).has_value();
      };
      CallKey bad = good;
      for (const int root : {-1, comm->rank(), 2}) {
        bad.root = root;
        EXPECT_TRUE(refused(bad, data.data())) << root;
      }
      bad = good;
      for (const int64_t count : {int64_t{-1}, kMaxInlineBytes / 8 + 1, INT64_MAX, INT64_MIN}) {
        bad.count = count;
        EXPECT_TRUE(refused(bad, data.data())) << count;
      }
      bad = good;
      for (const int dtype : {-1, kDTypes}) {
        bad.dtype = static_cast<DType>(dtype);
        EXPECT_TRUE(refused(bad, data.data())) << dtype;
      }
      EXPECT_TRUE(refused(good, nullptr));
      EXPECT_TRUE(refused(good, reinterpret_cast<char*>(data.data()) + 4));
      EXPECT_TRUE(refused(good, reinterpret_cast<void*>(~uintptr_t{0} - 7)));
    }
    std::vector<int64_t> theirs(4, -1);
    ASSERT_EQ(Go(comm, CallKind::kSend, data, peer), absl::OkStatus());
    ASSERT_EQ(Go(comm, CallKind::kRecv, theirs, peer), absl::OkStatus());
    EXPECT_EQ(theirs, std::vector<int64_t>(4, peer));
  });
}

TEST_P(Message, AnotherLengthIsAMismatchThatNamesBoth) {
  RunRanks(2, Options(), [](const Comm& comm) {
    std::vector<int64_t> data(comm->rank() == 0 ? 4 : 5, 1);
    if (comm->rank() == 0) {
      const absl::Status sent = Go(comm, CallKind::kSend, data, 1);
      // The message was small and is gone. If it took the slow path, rank 1's error may have come
      // first.
      EXPECT_TRUE(sent.ok() || sent.code() == absl::StatusCode::kDataLoss) << sent;
      EXPECT_EQ(Go(comm, CallKind::kRecv, data, 1).code(), absl::StatusCode::kDataLoss);
      return;
    }
    const absl::Status status = Go(comm, CallKind::kRecv, data, 0);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("4 i64"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("5 i64"));
    EXPECT_EQ(data, std::vector<int64_t>(5, 1));
    EXPECT_EQ(Go(comm, CallKind::kSend, data, 0).code(), absl::StatusCode::kDataLoss);
  });
}

TEST_P(Message, OneThatDoesNotSendIsNamedAtTheDeadline) {
  absl::Notification given_up;
  RunRanks(2, Options(300 * kMillisecond), [&](const Comm& comm) {
    std::vector<int64_t> data(4, comm->rank());
    for (int i = 0; i < 10; ++i) {
      ASSERT_EQ(
          Go(comm, comm->rank() == 0 ? CallKind::kRecv : CallKind::kSend, data, 1 - comm->rank()),
          absl::OkStatus());
    }
    if (comm->rank() == 1) {
      EXPECT_TRUE(given_up.WaitForNotificationWithTimeout(absl::Seconds(20)));
      return;
    }
    const auto before = std::chrono::steady_clock::now();
    const absl::Status status = Go(comm, CallKind::kRecv, data, 1);
    const auto took = std::chrono::steady_clock::now() - before;
    given_up.Notify();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("recv #11: timed out"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
    EXPECT_GE(took, std::chrono::milliseconds(300));
    EXPECT_LT(took, std::chrono::milliseconds(900));
  });
}

// After the error, the buffer of the message belongs to the sender again.
TEST_P(Message, OneThatDoesNotReceiveIsNamedAtTheDeadline) {
  if (GetParam() == "tcp") {
    GTEST_SKIP() << "tcp sends what nobody receives yet";
  }
  RunRanks(2, Options(300 * kMillisecond), [](const Comm& comm) {
    std::vector<int64_t> data(25000, comm->rank());
    ASSERT_EQ(comm->Barrier(), absl::OkStatus());
    if (comm->rank() == 1) {
      EXPECT_TRUE(Becomes([&] { return !comm->status().ok(); }));
      EXPECT_FALSE(Go(comm, CallKind::kRecv, data, 0).ok());
      EXPECT_EQ(data, std::vector<int64_t>(25000, 1));
      return;
    }
    const auto before = std::chrono::steady_clock::now();
    const absl::Status status = Go(comm, CallKind::kSend, data, 1);
    const auto took = std::chrono::steady_clock::now() - before;
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("send #1: timed out"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
    EXPECT_GE(took, std::chrono::milliseconds(300));
    EXPECT_LT(took, std::chrono::milliseconds(900));
  });
}

TEST_P(Message, AbortFromAnotherThreadEndsAReceive) {
  std::barrier together(2);  // the abort would also end a slower rank's barrier
  RunRanks(2, Options(), [&](const Comm& comm) {
    std::vector<int64_t> data(4, 0);
    ASSERT_EQ(comm->Barrier(), absl::OkStatus());
    together.arrive_and_wait();
    std::thread other([&] {
      // The receive has begun to wait by then.
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      if (comm->rank() == 0) {
        comm->Abort("no more of this");
      }
    });
    const absl::Status status = Go(comm, CallKind::kRecv, data, 1 - comm->rank());
    other.join();
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("no more of this"));
    EXPECT_EQ(Go(comm, CallKind::kSend, data, 1 - comm->rank()).code(), absl::StatusCode::kAborted);
  });
}

// A buffer that a call has lent is the caller's again when the call returns, also after an abort. A
// receive that returns OK has the bytes from before.
TEST_P(Message, AnAbortNeverLetsAReceiveSeeWhatIsWrittenAfterwards) {
  RunRanks(2, Options(), [](const Comm& world) {
    std::mt19937 random(17);  // equal on both ranks, because sizes are drawn
    for (int round = 0; round < 60; ++round) {
      const auto part = world->Split(0, world->rank());
      ASSERT_TRUE(part.ok()) << part.status();
      const Comm& comm = *part;
      const size_t elements = 600 + random() % 31000;
      const auto pause = std::chrono::microseconds(random() % 2500);
      std::thread other([&] {
        // The abort meets the calls in any of their states.
        std::this_thread::sleep_for(pause);
        if (comm->rank() == round % 2) {
          comm->Abort("no more of this");
        }
      });
      std::vector<int64_t> data(elements);
      absl::Status status;
      for (int64_t number = 0; status.ok(); ++number) {
        const bool send = (comm->rank() == 0) == (number % 5 != 0);
        std::fill(data.begin(), data.end(), send ? number : -1);
        status = Go(comm, send ? CallKind::kSend : CallKind::kRecv, data, 1 - comm->rank());
        if (status.ok()) {
          ASSERT_EQ(data, std::vector<int64_t>(elements, number)) << "in round " << round;
        }
      }
      std::fill(data.begin(), data.end(), -2);
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
      other.join();
    }
  });
}

}  // namespace
}  // namespace entrain
