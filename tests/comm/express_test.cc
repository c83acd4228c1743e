// Small blocking calls on the inline path (lib/engine/inline_call.h). Ranks that take the path
// agree with ranks that do not, or that leave it in the middle of a call. Errors are those of the
// executor.
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/ranks.h"
#include "tests/support/trial.h"
#include "tests/support/wait.h"

namespace entrain {
namespace {

using Comm = std::shared_ptr<Communicator>;
using testing::HasSubstr;

// One all_reduce, all_gather, broadcast or all_to_all of i64 with a result that every rank can
// compute.
struct Case {
  std::vector<int64_t> in, out;
  Call call;

  // `in_place`: for kinds whose input and output have the same length.
  Case(const Comm& comm, uint64_t number, int64_t count, bool in_place = false) {
    const int size = comm->size();
    const CallKind kinds[] = {CallKind::kAllReduce, CallKind::kAllGather, CallKind::kBroadcast,
                              CallKind::kAllToAll, CallKind::kBarrier};
    call.kind = kinds[number % 5];
    call.dtype = DType::kI64;
    call.count = call.kind == CallKind::kBarrier ? 0 : count;
    const int64_t in_parts = call.kind == CallKind::kAllToAll ? size : 1;
    const int64_t out_parts = HasParts(call.kind) ? size : 1;
    in.resize(static_cast<size_t>(in_parts * call.count));
    out.assign(static_cast<size_t>(out_parts * call.count), -1);
    for (size_t i = 0; i < in.size(); ++i) {
      in[i] = Value(comm->rank(), number, static_cast<int64_t>(i));
    }
    if (call.kind == CallKind::kBroadcast) {
      call.root = static_cast<int>(number) % size;
      if (call.root == comm->rank()) {
        out = in;
      }
      call.in = View(out);
    } else {
      const bool one_buffer = in_place && in.size() == out.size();
      if (one_buffer) {
        out = in;
      }
      call.in = View(one_buffer ? out : in);
    }
    call.out = View(out);
  }
  static int64_t Value(int rank, uint64_t number, int64_t i) {
    return static_cast<int64_t>(number) * 1000 + rank * 100 + i % 89;
  }
  static BufferView View(std::vector<int64_t>& data) {
    return {data.data(), static_cast<int64_t>(data.size() * sizeof(int64_t)), MemoryKind::kHost};
  }
  void Check(const Comm& comm, uint64_t number) const {
    for (size_t at = 0; at < out.size(); ++at) {
      const int64_t i = static_cast<int64_t>(at) % call.count;
      const int part = static_cast<int>(static_cast<int64_t>(at) / call.count);
      int64_t want = 0;
      if (call.kind == CallKind::kAllReduce) {
        for (int r = 0; r < comm->size(); ++r) {
          want += Value(r, number, i);
        }
      } else if (call.kind == CallKind::kBroadcast) {
        want = Value(call.root, number, i);
      } else if (call.kind == CallKind::kAllGather) {
        want = Value(part, number, i);
      } else {
        want = Value(part, number, comm->rank() * call.count + i);
      }
      ASSERT_EQ(out[at], want) << NameOf(call.kind) << " " << number << " element " << at;
    }
  }
};

void RunOne(const Comm& comm, uint64_t number, int64_t count, bool blocking,
            bool in_place = false) {
  Case one(comm, number, count, in_place);
  if (blocking) {
    ASSERT_EQ(comm->Run(one.call), absl::OkStatus()) << number;
  } else {
    const auto work = comm->Start(one.call);
    ASSERT_TRUE(work.ok()) << work.status();
    ASSERT_TRUE((*work)->Wait(Deadline::After(20 * kSecond)));
    ASSERT_EQ((*work)->status(), absl::OkStatus()) << number;
  }
  one.Check(comm, number);
}

class Express : public testing::TestWithParam<std::string> {
 protected:
  RanksOptions Options() const {
    RanksOptions options;
    options.transports = GetParam();
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Over, Express, testing::Values("inproc", "shm", "tcp"),
                         [](const auto& test) { return test.param; });

// Every rank decides for each call whether to block. Some ranks are late, so that the calls of
// others go to an executor in the middle of a round.
TEST_P(Express, BlockingStartedAndLateRanksAreAtOne) {
  for (const int size : {2, 3, 4}) {
    RunRanks(size, Options(), [](const Comm& comm) {
      std::mt19937 random(static_cast<uint32_t>(comm->rank()) + 7);
      for (uint64_t number = 0; number < 400; ++number) {
        if (random() % 50 == 0) {  // ranks come at different times
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 700));
        }
        ASSERT_NO_FATAL_FAILURE(
            RunOne(comm, number, int64_t{1} << (number % 11), random() % 3 != 0));
      }
    });
  }
}

// Messages here are too long to be copied. A sent buffer must not be written before the other ranks
// have taken it, and data that have been combined must not be combined again.
TEST_P(Express, WhatIsLentIsTakenBackInTime) {
  for (const int size : {2, 3, 5}) {
    RunRanks(size, Options(), [](const Comm& comm) {
      std::mt19937 random(static_cast<uint32_t>(comm->rank()) + 11);
      for (uint64_t number = 0; number < 300; ++number) {
        if (random() % 20 == 0) {  // ranks come at different times
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 700));
        }
        ASSERT_NO_FATAL_FAILURE(
            RunOne(comm, number, int64_t{900} << (number % 6), random() % 8 != 0, number % 2 == 0));
      }
    });
  }
}

TEST_P(Express, CallsThatAreUnderWayGoOn) {
  RunRanks(3, Options(), [](const Comm& comm) {
    for (uint64_t number = 0; number < 50; ++number) {
      Case large(comm, number * 5, 40000), tagged(comm, number * 5 + 1, 3);
      tagged.call.options.user_tag = 9;
      const auto works = {comm->Start(large.call), comm->Start(tagged.call)};
      for (uint64_t small = 0; small < 5; ++small) {
        ASSERT_NO_FATAL_FAILURE(RunOne(comm, number + small, 4, true));
      }
      for (const auto& work : works) {
        ASSERT_TRUE(work.ok()) << work.status();
        ASSERT_TRUE((*work)->Wait(Deadline::After(20 * kSecond)));
        ASSERT_EQ((*work)->status(), absl::OkStatus());
      }
      large.Check(comm, number * 5);
      tagged.Check(comm, number * 5 + 1);
    }
  });
}

TEST_P(Express, ManyCommunicatorsAndThreadsDoNotMix) {
  RunRanks(2, Options(), [](const Comm& comm) {
    std::vector<Comm> parts;
    for (int i = 0; i < 3; ++i) {
      auto part = comm->Split(0, comm->rank());
      ASSERT_TRUE(part.ok()) << part.status();
      parts.push_back(*part);
    }
    std::vector<std::thread> threads;
    for (size_t t = 0; t < parts.size(); ++t) {
      threads.emplace_back([&, t] {
        for (uint64_t number = 0; number < 300; ++number) {
          ASSERT_NO_FATAL_FAILURE(RunOne(parts[t], number * 7 + t, 5, true));
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  });
}

// Parts are copied or lent. If ranks share cores, larger parts are lent when they are only moved.
// Some ranks start the call instead of blocking, and get the same messages.
TEST_P(Express, PartsOfAnySizeComeHoweverTheyAreSent) {
  RunRanks(4, Options(), [](const Comm& comm) {
    uint32_t number = 0;
    for (const int64_t count : {2000, 3000, 3100, 4096, 4200, 9000}) {
      for (const CallKind kind : {CallKind::kGather, CallKind::kScatter, CallKind::kAllToAll,
                                  CallKind::kAllGather, CallKind::kReduceScatter}) {
        for (const bool uneven : {false, true}) {
          ++number;
          Trial trial({kind, count, static_cast<int>(number % 4), number % 3 == 0, uneven, number},
                      comm->rank(), 4);
          if ((number + static_cast<uint32_t>(comm->rank())) % 5 == 0) {
            auto work = comm->Start(trial.call);
            ASSERT_TRUE(work.ok()) << work.status();
            ASSERT_TRUE((*work)->Wait(Deadline::After(20 * kSecond)));
            ASSERT_EQ((*work)->status(), absl::OkStatus());
          } else {
            ASSERT_EQ(comm->Run(trial.call), absl::OkStatus());
          }
          ASSERT_NO_FATAL_FAILURE(trial.Check()) << NameOf(kind) << " of " << count;
        }
      }
    }
  });
}

TEST_P(Express, DifferentCallsAreAMismatchForAll) {
  std::barrier together(3);  // the end would also end a slower rank's last call
  RunRanks(3, Options(), [&](const Comm& comm) {
    for (uint64_t number = 0; number < 20; ++number) {
      ASSERT_NO_FATAL_FAILURE(RunOne(comm, number, 4, true));
    }
    together.arrive_and_wait();
    int64_t value[2] = {1, 2}, sum[2];
    const absl::Status status =
        comm->AllReduce(value, sum, comm->rank() == 1 ? 2 : 1, DType::kI64, ReduceOp::kSum);
    // A rank that received the expected data learns of the mismatch in its next call.
    const absl::Status next = status.ok() ? comm->Barrier() : status;
    EXPECT_EQ(next.code(), absl::StatusCode::kDataLoss) << next;
    EXPECT_THAT(std::string(next.message()), HasSubstr("i64"));
  });
}

TEST_P(Express, OneThatDoesNotComeIsNamedAtTheDeadline) {
  std::atomic<int> given_up{0};
  RunRanks(3, Options(), [&](const Comm& comm) {
    ASSERT_NO_FATAL_FAILURE(RunOne(comm, 0, 4, true));
    ASSERT_EQ(comm->Barrier(), absl::OkStatus());
    if (comm->rank() == 1) {
      EXPECT_TRUE(Becomes([&] { return given_up == 2; }));
      return;
    }
    CallOptions options;
    options.timeout_ns = 200 * kMillisecond;
    options.deadline = Deadline::After(options.timeout_ns);
    int64_t value = 1, sum;
    const absl::Status status =
        comm->AllReduce(&value, &sum, 1, DType::kI64, ReduceOp::kSum, options);
    ++given_up;
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
  });
}

TEST_P(Express, AbortFromAnotherThreadEndsIt) {
  std::barrier together(2);
  absl::Notification ended;
  RunRanks(2, Options(), [&](const Comm& comm) {
    ASSERT_EQ(comm->Barrier(), absl::OkStatus());
    together.arrive_and_wait();
    if (comm->rank() == 1) {
      EXPECT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(20)));
      return;
    }
    std::thread other([&] {
      // The call has begun to wait by then.
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      comm->Abort("no more of this");
    });
    const absl::Status status = comm->Barrier();
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    other.join();
    EXPECT_EQ(comm->Barrier().code(), absl::StatusCode::kAborted);
    ended.Notify();
  });
}

TEST_P(Express, WhatIsLentToNobodyIsNotTakenAfterAnAbort) {
  std::barrier together(2);
  absl::Notification written, tried;
  RunRanks(2, Options(), [&](const Comm& comm) {
    std::vector<char> data(200'000, 1);
    const auto message = [&](CallKind kind, int other) {
      Call call;
      call.kind = kind;
      call.dtype = DType::kU8;
      call.count = static_cast<int64_t>(data.size());
      call.root = other;
      call.in = call.out = {data.data(), call.count, MemoryKind::kHost};
      return call;
    };
    ASSERT_EQ(comm->Barrier(), absl::OkStatus());
    together.arrive_and_wait();
    if (comm->rank() == 1) {
      EXPECT_TRUE(written.WaitForNotificationWithTimeout(absl::Seconds(20)));
      EXPECT_TRUE(Becomes([&] { return !comm->status().ok(); }));
      EXPECT_FALSE(comm->Run(message(CallKind::kRecv, 0)).ok());
      tried.Notify();
      return;
    }
    std::thread other([&] {
      // The call has begun to wait by then.
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      comm->Abort("no more of this");
    });
    const absl::Status status = comm->Run(message(CallKind::kSend, 1));
    other.join();
    if (!status.ok()) {  // tcp may have taken all bytes
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    }
    std::fill(data.begin(), data.end(), 2);
    written.Notify();
    EXPECT_TRUE(tried.WaitForNotificationWithTimeout(absl::Seconds(20)));
  });
}

TEST_P(Express, CountsCallsAndBytes) {
  RunRanks(2, Options(), [](const Comm& comm) {
    const CommStats before = comm->stats();
    int64_t values[4] = {}, sums[4];
    for (int i = 0; i < 10; ++i) {
      ASSERT_EQ(comm->AllReduce(values, sums, 4, DType::kI64, ReduceOp::kSum), absl::OkStatus());
    }
    const CommStats after = comm->stats();
    EXPECT_EQ(after.calls - before.calls, 10u);
    EXPECT_EQ(after.bytes_sent - before.bytes_sent, 320u);
    EXPECT_EQ(after.bytes_received - before.bytes_received, 320u);
  });
}

}  // namespace
}  // namespace entrain
