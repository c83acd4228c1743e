// Started calls: handles, tags, waits, user reductions, and the thread that makes progress.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/api/world.h"

namespace entrain_test {
namespace {

entrain_call_options_t Tagged(int64_t tag) {
  entrain_call_options_t options;
  entrain_call_options_init(&options);
  options.tag = tag;
  return options;
}

TEST(Work, TestReportsDoneOnceTheCallIsOver) {
  RunWorld(3, [](const Rank& self) {
    std::vector<float> data(1000, 1.0f);
    entrain_work_t* work = nullptr;
    ASSERT_OK(entrain_all_reduce(self.comm, data.data(), data.data(), data.size(), ENTRAIN_F32,
                                 ENTRAIN_SUM, nullptr, &work));
    int32_t done = 0;
    while (done == 0) {
      ASSERT_OK(entrain_work_test(work, &done));
      std::this_thread::yield();
    }
    EXPECT_EQ(data.front(), 3.0f);
    EXPECT_EQ(data.back(), 3.0f);
    EXPECT_OK(entrain_work_wait(work, 0));
    EXPECT_OK(entrain_work_wait(work, -1));
    entrain_error_t error;
    entrain_error_init(&error);
    EXPECT_OK(entrain_work_error(work, &error));
    EXPECT_EQ(error.code, ENTRAIN_OK);
    entrain_work_free(work);
  });
}

TEST(Work, AWaitThatGivesUpChangesNothing) {
  RunWorld(2, [](const Rank& self) {
    int32_t token = self.rank, got = -1;
    if (self.rank == 0) {
      entrain_work_t* work = nullptr;
      ASSERT_OK(entrain_recv(self.comm, &got, 1, ENTRAIN_I32, 1, nullptr, &work));
      EXPECT_EQ(entrain_work_wait(work, 0), ENTRAIN_IN_PROGRESS);
      EXPECT_EQ(entrain_work_wait(work, 1'000'000), ENTRAIN_IN_PROGRESS);
      entrain_error_t error;
      entrain_error_init(&error);
      EXPECT_EQ(entrain_work_error(work, &error), ENTRAIN_IN_PROGRESS);
      EXPECT_EQ(entrain_comm_drain(self.comm, 0), ENTRAIN_IN_PROGRESS);
      ASSERT_OK(entrain_send(self.comm, &token, 1, ENTRAIN_I32, 1, nullptr, nullptr));
      EXPECT_OK(entrain_work_wait(work, -1));
      EXPECT_OK(entrain_comm_drain(self.comm, 0));
      EXPECT_EQ(got, 1);
      entrain_work_free(work);
    } else {
      ASSERT_OK(entrain_recv(self.comm, &got, 1, ENTRAIN_I32, 0, nullptr, nullptr));
      ASSERT_OK(entrain_send(self.comm, &token, 1, ENTRAIN_I32, 0, nullptr, nullptr));
    }
  });
}

TEST(Work, TaggedCallsMeetInAnyOrder) {
  RunWorld(4, [](const Rank& self) {
    constexpr int kCalls = 16;
    std::vector<std::vector<int64_t>> data(kCalls, std::vector<int64_t>(500));
    std::vector<entrain_work_t*> works(kCalls);
    for (int step = 0; step < kCalls; ++step) {
      // Every rank starts them in a different order.
      const int call = (step * (2 * self.rank + 1) + 5 * self.rank) % kCalls;
      data[static_cast<size_t>(call)].assign(500, (self.rank + 1) * (call + 1));
      const entrain_call_options_t options = Tagged(call);
      auto& buffer = data[static_cast<size_t>(call)];
      ASSERT_OK(entrain_all_reduce(self.comm, buffer.data(), buffer.data(), buffer.size(),
                                   ENTRAIN_I64, ENTRAIN_SUM, &options,
                                   &works[static_cast<size_t>(call)]));
    }
    for (int call = kCalls - 1; call >= 0; --call) {
      ASSERT_OK(entrain_work_wait(works[static_cast<size_t>(call)], -1));
      EXPECT_EQ(data[static_cast<size_t>(call)][499], 10 * (call + 1)) << "tag " << call;
      entrain_work_free(works[static_cast<size_t>(call)]);
    }
  });
}

TEST(Work, AReceiveFromAnyRankTellsItsSource) {
  RunWorld(3, [](const Rank& self) {
    entrain_call_options_t options;
    entrain_call_options_init(&options);
    options.tag = 8;
    if (self.rank > 0) {
      int32_t go = 0;
      ASSERT_OK(entrain_recv(self.comm, &go, 1, ENTRAIN_I32, 0, nullptr, nullptr));
      for (int32_t number = 0; number < 4; ++number) {
        const int32_t value = 10 * self.rank + number;
        ASSERT_OK(entrain_send(self.comm, &value, 1, ENTRAIN_I32, 0, &options, nullptr));
      }
      return;
    }
    // A work, two receives of a batch, and a blocking receive that does not ask for the source. All
    // messages are of rank 2, because no other rank sends yet.
    int32_t got[4] = {-1, -1, -1, -1}, source[3] = {-1, -1, -1};
    entrain_work_t* work = nullptr;
    ASSERT_OK(entrain_recv_any(self.comm, &got[0], 1, ENTRAIN_I32, &source[0], &options, &work));
    entrain_work_info_t info;
    entrain_work_info_init(&info);
    ASSERT_OK(entrain_work_info(work, &info));
    EXPECT_STREQ(info.operation, "recv_any");
    EXPECT_EQ(info.sequence, 0u);
    EXPECT_EQ(info.source, -1);
    EXPECT_EQ(source[0], -1);
    const int32_t go = 1;
    ASSERT_OK(entrain_send(self.comm, &go, 1, ENTRAIN_I32, 2, nullptr, nullptr));
    ASSERT_OK(entrain_work_wait(work, -1));
    ASSERT_OK(entrain_work_info(work, &info));
    EXPECT_EQ(info.sequence, 1u);
    EXPECT_EQ(info.source, 2);
    entrain_work_free(work);
    entrain_batch_t* batch = nullptr;
    ASSERT_OK(entrain_batch_create(self.comm, &batch));
    options.batch = batch;
    ASSERT_OK(entrain_recv_any(self.comm, &got[1], 1, ENTRAIN_I32, &source[1], &options, nullptr));
    ASSERT_OK(entrain_recv_any(self.comm, &got[2], 1, ENTRAIN_I32, &source[2], &options, nullptr));
    ASSERT_OK(entrain_batch_start(batch, nullptr));
    entrain_batch_destroy(batch);
    options.batch = nullptr;
    ASSERT_OK(entrain_recv_any(self.comm, &got[3], 1, ENTRAIN_I32, nullptr, &options, nullptr));
    for (int32_t number = 0; number < 4; ++number) {
      EXPECT_EQ(got[number], 20 + number);
      EXPECT_EQ(source[std::min(number, 2)], 2);
    }
    ASSERT_OK(entrain_send(self.comm, &go, 1, ENTRAIN_I32, 1, nullptr, nullptr));
    for (int32_t number = 0; number < 4; ++number) {
      ASSERT_OK(
          entrain_recv_any(self.comm, &got[0], 1, ENTRAIN_I32, &source[0], &options, nullptr));
      EXPECT_EQ(got[0], 10 + number);
      EXPECT_EQ(source[0], 1);
    }
    options.memory = ENTRAIN_MEMORY_DEVICE;
    EXPECT_FAILS(
        entrain_recv_any(self.comm, &got[0], 1, ENTRAIN_I32, &source[0], &options, nullptr),
        ENTRAIN_UNIMPLEMENTED,
        "options.memory 1: a message from any rank is received in host memory");
  });
  RunWorld(1, [](const Rank& self) {
    int32_t got = 0, source = 0;
    EXPECT_FAILS(entrain_recv_any(self.comm, &got, 1, ENTRAIN_I32, &source, nullptr, nullptr),
                 ENTRAIN_INVALID_ARGUMENT, "comm: it has no other rank to receive from");
  });
}

TEST(Work, AFreedHandleDoesNotStopItsCall) {
  RunWorld(3, [](const Rank& self) {
    std::vector<double> data(10'000, 2.0);
    entrain_work_t* work = nullptr;
    ASSERT_OK(entrain_all_reduce(self.comm, data.data(), data.data(), data.size(), ENTRAIN_F64,
                                 ENTRAIN_PROD, nullptr, &work));
    entrain_work_free(work);
    ASSERT_OK(entrain_comm_drain(self.comm, 10'000'000'000));
    EXPECT_EQ(data.front(), 8.0);
    EXPECT_EQ(data.back(), 8.0);
  });
}

TEST(Work, SeveralThreadsMayWaitForOneCall) {
  RunWorld(2, [](const Rank& self) {
    float data = 1;
    entrain_work_t* work = nullptr;
    entrain_call_options_t options;
    entrain_call_options_init(&options);
    options.wait = ENTRAIN_WAIT_BACKGROUND;
    ASSERT_OK(
        entrain_all_reduce(self.comm, &data, &data, 1, ENTRAIN_F32, ENTRAIN_SUM, &options, &work));
    std::vector<std::thread> waiters;
    for (int i = 0; i < 3; ++i) {
      waiters.emplace_back([&] { EXPECT_OK(entrain_work_wait(work, -1)); });
    }
    for (std::thread& waiter : waiters) {
      waiter.join();
    }
    EXPECT_EQ(data, 2.0f);
    entrain_work_free(work);
  });
}

// If a caller makes no calls for a while, the library's thread takes over: the caller's part is
// done when it comes back.
TEST(Work, ProgressNeedsNoCaller) {
  RunWorld(2, [](const Rank& self) {
    std::vector<float> data(100'000, 1.0f);
    entrain_work_t* work = nullptr;
    ASSERT_OK(entrain_all_reduce(self.comm, data.data(), data.data(), data.size(), ENTRAIN_F32,
                                 ENTRAIN_SUM, nullptr, &work));
    if (self.rank == 0) {
      EXPECT_OK(entrain_work_wait(work, -1));
    } else {
      // This loop makes no progress itself.
      entrain_error_t error;
      entrain_error_init(&error);
      const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (entrain_work_error(work, &error) == ENTRAIN_IN_PROGRESS &&
             std::chrono::steady_clock::now() < give_up) {
        std::this_thread::yield();
      }
      EXPECT_OK(entrain_work_error(work, &error));
    }
    entrain_work_free(work);
  });
}

TEST(Work, CallersAloneCanMakeProgress) {
  RunWorld(3,
           [](const Rank& self) {
             for (int i = 0; i < 20; ++i) {
               int32_t data = self.rank;
               ASSERT_OK(entrain_all_reduce(self.comm, &data, &data, 1, ENTRAIN_I32, ENTRAIN_SUM,
                                            nullptr, nullptr));
               ASSERT_EQ(data, 3);
             }
           },
           {.progress = ENTRAIN_PROGRESS_CALLER});
}

// An element is a map x -> a x + b modulo a prime. Combining them is associative, but not
// commutative.
constexpr uint64_t kPrime = 65521;
uint64_t Map(uint64_t a, uint64_t b) {
  return (a % kPrime) << 32 | (b % kPrime);
}
uint64_t Then(uint64_t first, uint64_t second) {
  const uint64_t a = second >> 32, b = second & 0xffffffff;
  return Map(a * (first >> 32), a * (first & 0xffffffff) + b);
}
int32_t Compose(void* dst, const void* src, size_t count, entrain_dtype_t dtype, void* user) {
  EXPECT_EQ(dtype, ENTRAIN_U64);
  *static_cast<std::atomic<size_t>*>(user) += count;
  for (size_t i = 0; i < count; ++i) {
    auto* to = static_cast<uint64_t*>(dst) + i;
    *to = Then(*to, static_cast<const uint64_t*>(src)[i]);
  }
  return 0;
}

TEST(Work, AUserReductionIsAppliedInRankOrder) {
  RunWorld(5, [](const Rank& self) {
    std::atomic<size_t> combined{0};
    entrain_reduction_t* reduction = nullptr;
    ASSERT_OK(entrain_reduction_user(Compose, &combined, 1234, 0, &reduction));
    entrain_call_options_t options;
    entrain_call_options_init(&options);
    options.reduction = reduction;
    constexpr size_t kMaps = 101;
    const auto map_of = [](int rank, size_t i) {
      return Map(i + 3 * static_cast<uint64_t>(rank) + 2, 7 * i + static_cast<uint64_t>(rank));
    };
    std::vector<uint64_t> mine(kMaps), got(kMaps);
    for (size_t i = 0; i < kMaps; ++i) {
      mine[i] = map_of(self.rank, i);
    }
    entrain_work_t* work = nullptr;
    ASSERT_OK(entrain_all_reduce(self.comm, mine.data(), got.data(), kMaps, ENTRAIN_U64,
                                 ENTRAIN_REDUCTION, &options, &work));
    entrain_reduction_destroy(reduction);  // the call keeps its own copy
    ASSERT_OK(entrain_work_wait(work, -1));
    entrain_work_free(work);
    for (size_t i = 0; i < kMaps; ++i) {
      uint64_t expected = map_of(0, i);
      for (int rank = 1; rank < 5; ++rank) {
        expected = Then(expected, map_of(rank, i));
      }
      ASSERT_EQ(got[i], expected) << "element " << i;
    }
    uint64_t total = combined;
    ASSERT_OK(entrain_all_reduce(self.comm, &total, &total, 1, ENTRAIN_U64, ENTRAIN_SUM, nullptr,
                                 nullptr));
    EXPECT_GE(total, 4 * kMaps);  // only the function can have combined them
  });
}

TEST(Work, ABuiltinReductionAsAnObjectIsTheOperator) {
  RunWorld(3, [](const Rank& self) {
    entrain_reduction_t* reduction = nullptr;
    ASSERT_OK(entrain_reduction_builtin(ENTRAIN_MAX, &reduction));
    entrain_call_options_t options;
    entrain_call_options_init(&options);
    options.reduction = reduction;
    int32_t data = self.rank;
    EXPECT_OK(entrain_all_reduce(self.comm, &data, &data, 1, ENTRAIN_I32, ENTRAIN_REDUCTION,
                                 &options, nullptr));
    EXPECT_EQ(data, 2);
    entrain_reduction_destroy(reduction);
    EXPECT_FAILS(entrain_reduction_builtin(ENTRAIN_REDUCTION, &reduction), ENTRAIN_INVALID_ARGUMENT,
                 "op 100");
    EXPECT_FAILS(entrain_reduction_user(nullptr, nullptr, 0, 1, &reduction),
                 ENTRAIN_INVALID_ARGUMENT, "combine is NULL");
  });
}

}  // namespace
}  // namespace entrain_test
