// memory.h through the C ABI: memory that the peers map, with every transport.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <sys/mman.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/api/world.h"
#include "tests/support/mappings.h"
#include "tests/support/wait.h"

namespace entrain_test {
namespace {

using entrain::Becomes;

size_t Descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

void* Allocate(entrain_comm_t* comm, size_t bytes, uint32_t flags = 0) {
  void* memory = nullptr;
  EXPECT_OK(entrain_mem_alloc(comm, bytes, flags, &memory));
  return memory;
}

class Memory : public testing::TestWithParam<const char*> {
 protected:
  static void Run(int size, const std::function<void(const Rank&)>& body) {
    RunWorld(size, body, {.transports = GetParam()});
  }
};
INSTANTIATE_TEST_SUITE_P(Over, Memory, testing::Values("inproc", "shm", "tcp"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(Memory, IsZeroAlignedAndFreed) {
  Run(2, [](const Rank& self) {
    for (const uint32_t flags : {0u, uint32_t{ENTRAIN_MEM_HUGE_PAGES}}) {
      for (const size_t bytes : {size_t{1}, size_t{4096}, size_t{5'000'001}}) {
        auto* const memory = static_cast<unsigned char*>(Allocate(self.comm, bytes, flags));
        ASSERT_NE(memory, nullptr);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 4096, 0u);
        EXPECT_EQ(memory[0] | memory[bytes / 2] | memory[bytes - 1], 0);
        std::memset(memory, 1, bytes);
        EXPECT_OK(entrain_mem_free(self.comm, memory));
        EXPECT_FAILS(entrain_mem_free(self.comm, memory), ENTRAIN_INVALID_ARGUMENT, "freed");
      }
    }
    EXPECT_OK(entrain_mem_free(self.comm, nullptr));
  });
}

// Every collective that only combines received data, and some others. Buffers begin anywhere in a
// region. In place and not, with sizes below and above the limit up to which messages are copied at
// once.
class MemoryOfCalls : public testing::TestWithParam<std::tuple<const char*, bool>> {};
INSTANTIATE_TEST_SUITE_P(Over, MemoryOfCalls,
                         testing::Combine(testing::Values("inproc", "shm", "tcp"), testing::Bool()),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) +
                                  (std::get<1>(test.param) ? "Registered" : "Allocated");
                         });

TEST_P(MemoryOfCalls, CollectivesGiveWhatTheyGiveOfOrdinaryMemory) {
  const auto [transport, registered] = GetParam();
  for (const int ranks : {2, 3, 4}) {
    const auto body = [&, registered = registered](const Rank& self) {
      const auto n = static_cast<size_t>(self.size), r = static_cast<size_t>(self.rank);
      constexpr size_t kMost = 600'000;
      std::vector<int64_t> own(registered ? kMost * n * 2 + 64 : 0);
      auto* const memory =
          registered ? own.data()
                     : static_cast<int64_t*>(Allocate(self.comm, (kMost * n * 2 + 64) * 8));
      ASSERT_NE(memory, nullptr);
      if (registered) {  // two parts, which begin and end anywhere in a page
        for (int64_t* const part : {memory + 3, memory + 5 + kMost * n}) {
          size_t mapped = 0;
          EXPECT_OK(entrain_mem_register(self.comm, part, kMost * n * 8, &mapped));
          EXPECT_LE(mapped, kMost * n * 8);
          EXPECT_GT(mapped, kMost * n * 8 - 2 * 4096);
        }
      }
      for (const size_t count : {size_t{1}, size_t{1000}, size_t{20'011}, kMost}) {
        int64_t* const in = memory + 3;
        int64_t* const out = memory + 5 + kMost * n;
        const auto fill = [&](int64_t* at, size_t elements) {
          for (size_t i = 0; i < elements; ++i) {
            at[i] = static_cast<int64_t>(i * 3 + r);
          }
        };
        const auto sum = [&](size_t i) {
          return static_cast<int64_t>(n * i * 3 + n * (n - 1) / 2);
        };
        fill(in, count);
        ASSERT_OK(entrain_all_reduce(self.comm, in, out, count, ENTRAIN_I64, ENTRAIN_SUM, nullptr,
                                     nullptr));
        ASSERT_OK(entrain_all_reduce(self.comm, in, in, count, ENTRAIN_I64, ENTRAIN_SUM, nullptr,
                                     nullptr));
        for (size_t i = 0; i < count; ++i) {
          ASSERT_EQ(out[i], sum(i)) << i;
          ASSERT_EQ(in[i], sum(i)) << i;
        }
        fill(in, count * n);
        ASSERT_OK(entrain_reduce_scatter(self.comm, in, out, count, ENTRAIN_I64, ENTRAIN_SUM,
                                         nullptr, nullptr));
        for (size_t i = 0; i < count; ++i) {
          ASSERT_EQ(out[i], sum(r * count + i)) << i;
        }
        fill(in, count);
        ASSERT_OK(entrain_all_gather(self.comm, in, out, count, ENTRAIN_I64, nullptr, nullptr));
        for (size_t i = 0; i < count * n; ++i) {
          ASSERT_EQ(out[i], static_cast<int64_t>(i % count * 3 + i / count)) << i;
        }
        ASSERT_OK(
            entrain_scan(self.comm, in, out, count, ENTRAIN_I64, ENTRAIN_SUM, nullptr, nullptr));
        for (size_t i = 0; i < count; ++i) {
          ASSERT_EQ(out[i], static_cast<int64_t>((r + 1) * i * 3 + r * (r + 1) / 2)) << i;
        }
        // One rank's memory is ordinary: each message is mapped or copied independently.
        std::vector<int64_t> ordinary(in, in + count);
        ASSERT_OK(entrain_broadcast(self.comm, self.rank == 0 ? in : ordinary.data(), count,
                                    ENTRAIN_I64, 0, nullptr, nullptr));
        for (size_t i = 0; i < count; ++i) {
          ASSERT_EQ((self.rank == 0 ? in : ordinary.data())[i], static_cast<int64_t>(i * 3)) << i;
        }
      }
      if (registered) {
        const std::vector<int64_t> before(own);
        EXPECT_OK(entrain_mem_deregister(self.comm, memory + 3));
        EXPECT_OK(entrain_mem_deregister(self.comm, memory + 5 + kMost * n));
        EXPECT_EQ(own, before);
      } else {
        EXPECT_OK(entrain_mem_free(self.comm, memory));
      }
    };
    RunWorld(ranks, body, {.transports = transport});
  }
}

TEST_P(Memory, ServesEveryCommunicatorOfTheRuntime) {
  Run(2, [](const Rank& self) {
    entrain_comm_t* part = nullptr;
    ASSERT_OK(entrain_comm_duplicate(self.comm, &part, nullptr));
    constexpr size_t kCount = 100'000;
    auto* const memory = static_cast<float*>(Allocate(part, kCount * sizeof(float)));
    for (entrain_comm_t* const comm : {self.comm, part}) {
      std::fill(memory, memory + kCount, 1.0f);
      ASSERT_OK(entrain_all_reduce(comm, memory, memory, kCount, ENTRAIN_F32, ENTRAIN_SUM, nullptr,
                                   nullptr));
      EXPECT_EQ(memory[kCount - 1], 2.0f);
    }
    entrain_comm_destroy(part);
    EXPECT_OK(entrain_mem_free(self.comm, memory));
  });
}

TEST_P(Memory, ManyAllocationsAreUsedFreedAndLeaveNothing) {
  const int mappings = entrain::SharedMappings();
  const size_t descriptors = Descriptors();
  Run(2, [&](const Rank& self) {
    constexpr size_t kCount = 20'000;
    std::vector<float*> all;
    for (int i = 0; i < 200; ++i) {
      all.push_back(static_cast<float*>(Allocate(self.comm, kCount * sizeof(float))));
      ASSERT_NE(all.back(), nullptr);
      std::fill(all.back(), all.back() + kCount, static_cast<float>(i));
      ASSERT_OK(entrain_all_reduce(self.comm, all.back(), all.back(), kCount, ENTRAIN_F32,
                                   ENTRAIN_SUM, nullptr, nullptr));
      EXPECT_EQ(all.back()[kCount - 1], static_cast<float>(2 * i));
      if (all.size() > 50) {
        EXPECT_OK(entrain_mem_free(self.comm, all.front()));
        all.erase(all.begin());
      }
    }
    // Memory that is not freed here is freed with the runtime.
  });
  EXPECT_EQ(entrain::SharedMappings(), mappings);
  EXPECT_EQ(Descriptors(), descriptors);
}

bool IsMapped(const void* memory) {
  return msync(const_cast<void*>(memory), 4096, MS_ASYNC) == 0;
}

TEST_P(Memory, FreedWhileACallUsesItGoesWithTheCall) {
  Run(2, [](const Rank& self) {
    constexpr size_t kCount = 300'000;
    auto* const memory = static_cast<float*>(Allocate(self.comm, kCount * sizeof(float)));
    auto* const other = static_cast<float*>(Allocate(self.comm, kCount * sizeof(float)));
    std::vector<float> out(kCount);
    std::fill_n(memory, kCount, 3.0f);
    int32_t go = 0;
    if (self.rank == 0) {
      entrain_work_t* work = nullptr;
      ASSERT_OK(entrain_all_reduce(self.comm, memory, out.data(), kCount, ENTRAIN_F32, ENTRAIN_SUM,
                                   nullptr, &work));
      EXPECT_OK(entrain_mem_free(self.comm, memory));
      EXPECT_FAILS(entrain_mem_free(self.comm, memory), ENTRAIN_INVALID_ARGUMENT, "freed");
      EXPECT_OK(entrain_mem_free(self.comm, other)) << "which no call uses";
      EXPECT_TRUE(IsMapped(memory));
      ASSERT_OK(entrain_send(self.comm, &go, 1, ENTRAIN_I32, 1, nullptr, nullptr));
      ASSERT_OK(entrain_work_wait(work, -1));
      entrain_work_free(work);
    } else {
      ASSERT_OK(entrain_recv(self.comm, &go, 1, ENTRAIN_I32, 0, nullptr, nullptr));
      ASSERT_OK(entrain_all_reduce(self.comm, memory, out.data(), kCount, ENTRAIN_F32, ENTRAIN_SUM,
                                   nullptr, nullptr));
      EXPECT_OK(entrain_mem_free(self.comm, memory));
    }
    EXPECT_THAT(out, testing::Each(6.0f));
    EXPECT_OK(entrain_barrier(self.comm, nullptr, nullptr));
    EXPECT_TRUE(Becomes([&] { return !IsMapped(memory); }));
  });
}

// A blocking call stays on the inline path as long as it need not wait. A thread that frees memory
// meanwhile waits for the call. If the call has left the path, the thread finds the call
// unfinished.
TEST_P(Memory, FreedWhileASmallBlockingCallUsesItGoesWithTheCall) {
  // The operator of the call. On rank 0 it blocks until the other thread frees memory, on rank 1
  // until rank 0 waits for rank 1's part.
  struct Slow {
    int rank;
    std::atomic<bool> combining{false}, freeing{false};
  };
  const auto combine = [](void* dst, const void* src, size_t count, entrain_dtype_t, void* user) {
    auto& slow = *static_cast<Slow*>(user);
    for (size_t i = 0; i < count; ++i) {
      static_cast<int32_t*>(dst)[i] += static_cast<const int32_t*>(src)[i];
    }
    slow.combining = true;
    while (slow.rank == 0 && !slow.freeing) {
      std::this_thread::yield();
    }
    // A slow operator: the call is under way for this time.
    std::this_thread::sleep_for(std::chrono::milliseconds(slow.rank == 0 ? 50 : 300));
    return 0;
  };
  WorldOptions options{.transports = GetParam(), .algorithms = "all_reduce:two_step"};
  RunWorld(
      2,
      [&](const Rank& self) {
        Slow slow{.rank = self.rank};
        entrain_call_options_t with;
        entrain_call_options_init(&with);
        ASSERT_OK(entrain_reduction_user(combine, &slow, 1, 1, &with.reduction));
        auto* const memory = static_cast<int32_t*>(Allocate(self.comm, 8));
        memory[0] = memory[1] = 5;
        std::thread freer([&] {
          while (self.rank == 0 && !slow.combining) {
            std::this_thread::yield();
          }
          if (self.rank == 0) {
            slow.freeing = true;
            EXPECT_OK(entrain_mem_free(self.comm, memory));
          }
        });
        int32_t out[2] = {};
        EXPECT_OK(entrain_all_reduce(self.comm, memory, out, 2, ENTRAIN_I32, ENTRAIN_REDUCTION,
                                     &with, nullptr));
        freer.join();
        EXPECT_EQ(out[0] + out[1], 20);
        if (self.rank == 1) {
          EXPECT_OK(entrain_mem_free(self.comm, memory));
        }
        entrain_reduction_destroy(with.reduction);
      },
      options);
}

TEST_P(Memory, IsNeitherRegisteredNorDeregisteredWhileACallUsesIt) {
  Run(2, [](const Rank& self) {
    std::vector<float> memory(300'000, 1.0f);
    const size_t bytes = memory.size() * sizeof(float);
    int32_t go = 0;
    const auto call = [&](entrain_work_t** work) {
      return entrain_all_reduce(self.comm, memory.data(), memory.data(), memory.size(), ENTRAIN_F32,
                                ENTRAIN_SUM, nullptr, work);
    };
    for (const bool registered : {false, true}) {
      if (self.rank == 0) {
        entrain_work_t* work = nullptr;
        ASSERT_OK(call(&work));
        if (registered) {
          EXPECT_FAILS(entrain_mem_deregister(self.comm, memory.data()),
                       ENTRAIN_FAILED_PRECONDITION, "still used by all_reduce");
        } else {
          EXPECT_FAILS(entrain_mem_register(self.comm, memory.data() + 5, 8, nullptr),
                       ENTRAIN_FAILED_PRECONDITION, "still used by all_reduce");
        }
        ASSERT_OK(entrain_send(self.comm, &go, 1, ENTRAIN_I32, 1, nullptr, nullptr));
        ASSERT_OK(entrain_work_wait(work, -1));
        entrain_work_free(work);
      } else {
        ASSERT_OK(entrain_recv(self.comm, &go, 1, ENTRAIN_I32, 0, nullptr, nullptr));
        ASSERT_OK(call(nullptr));
      }
      if (!registered) {
        EXPECT_OK(entrain_mem_register(self.comm, memory.data(), bytes, nullptr));
      }
    }
    EXPECT_EQ(memory[299'999], 4.0f);
    EXPECT_OK(entrain_mem_deregister(self.comm, memory.data()));
    EXPECT_EQ(memory[299'999], 4.0f);
  });
}

TEST_P(Memory, ManyRegistrationsLeaveNothing) {
  const int mappings = entrain::SharedMappings();
  const size_t descriptors = Descriptors();
  Run(2, [&](const Rank& self) {
    for (int i = 0; i < 50; ++i) {
      std::vector<float> memory(20'000 + static_cast<size_t>(i), 1.0f);
      ASSERT_OK(
          entrain_mem_register(self.comm, memory.data(), memory.size() * sizeof(float), nullptr));
      ASSERT_OK(entrain_all_reduce(self.comm, memory.data(), memory.data(), memory.size(),
                                   ENTRAIN_F32, ENTRAIN_SUM, nullptr, nullptr));
      EXPECT_EQ(memory.back(), 2.0f);
      EXPECT_OK(entrain_mem_deregister(self.comm, memory.data()));
      EXPECT_EQ(memory.front(), 2.0f);
    }
  });
  EXPECT_EQ(entrain::SharedMappings(), mappings);
  EXPECT_EQ(Descriptors(), descriptors);
}

// Registered memory belongs to the caller, who decides how long it lives.
TEST_P(Memory, WhatIsStillRegisteredOutlivesTheRuntime) {
  const size_t descriptors = Descriptors();
  std::vector<std::vector<float>> memory(2, std::vector<float>(50'000, 1.0f));
  Run(2, [&](const Rank& self) {
    auto& mine = memory[static_cast<size_t>(self.rank)];
    ASSERT_OK(entrain_mem_register(self.comm, mine.data(), mine.size() * sizeof(float), nullptr));
    ASSERT_OK(entrain_all_reduce(self.comm, mine.data(), mine.data(), mine.size(), ENTRAIN_F32,
                                 ENTRAIN_SUM, nullptr, nullptr));
  });
  EXPECT_EQ(memory[0], std::vector<float>(50'000, 2.0f));
  EXPECT_EQ(memory[1], memory[0]);
  EXPECT_EQ(Descriptors(), descriptors);
}

TEST_P(Memory, IsFreedAfterAnAbortInTheMiddle) {
  for (int round = 0; round < 5; ++round) {
    std::atomic<int> calls{0};
    Run(2, [&](const Rank& self) {
      constexpr size_t kCount = 2'000'000;
      auto* const memory = static_cast<float*>(Allocate(self.comm, kCount * sizeof(float)));
      std::thread aborter;
      if (self.rank == 1) {
        aborter = std::thread([&] {
          while (calls.load() < 3 + round) {
            std::this_thread::yield();
          }
          EXPECT_OK(entrain_comm_abort(self.comm, "enough"));
        });
      }
      entrain_status_t status = ENTRAIN_OK;
      while (status == ENTRAIN_OK) {
        status = entrain_all_reduce(self.comm, memory, memory, kCount, ENTRAIN_F32, ENTRAIN_MAX,
                                    nullptr, nullptr);
        calls.fetch_add(self.rank);
      }
      EXPECT_EQ(status, ENTRAIN_ABORTED) << LastError();
      EXPECT_OK(entrain_mem_free(self.comm, memory)) << "of a communicator that has ended";
      if (aborter.joinable()) {
        aborter.join();
      }
    });
  }
}

TEST(MemoryArguments, EachIsNamed) {
  RunWorld(1, [](const Rank& self) {
    void* memory = nullptr;
    EXPECT_FAILS(entrain_mem_alloc(nullptr, 1, 0, &memory), ENTRAIN_INVALID_ARGUMENT,
                 "comm is NULL");
    EXPECT_FAILS(entrain_mem_alloc(self.comm, 1, 0, nullptr), ENTRAIN_INVALID_ARGUMENT,
                 "memory is NULL");
    EXPECT_FAILS(entrain_mem_alloc(self.comm, 0, 0, &memory), ENTRAIN_INVALID_ARGUMENT, "bytes: 0");
    EXPECT_FAILS(entrain_mem_alloc(self.comm, SIZE_MAX, 0, &memory), ENTRAIN_INVALID_ARGUMENT,
                 "bytes: 18446744073709551615");
    EXPECT_FAILS(entrain_mem_alloc(self.comm, 1, 6, &memory), ENTRAIN_INVALID_ARGUMENT, "flags: 6");
    EXPECT_FAILS(entrain_mem_alloc(self.comm, size_t{1} << 50, 0, &memory),
                 ENTRAIN_RESOURCE_EXHAUSTED, "1125899906842624 bytes");
    EXPECT_EQ(memory, nullptr);
    EXPECT_FAILS(entrain_mem_free(nullptr, &memory), ENTRAIN_INVALID_ARGUMENT, "comm is NULL");
    EXPECT_FAILS(entrain_mem_free(self.comm, &memory), ENTRAIN_INVALID_ARGUMENT,
                 "was not allocated");
    void* const good = Allocate(self.comm, 8192);
    EXPECT_FAILS(entrain_mem_free(self.comm, static_cast<char*>(good) + 64),
                 ENTRAIN_INVALID_ARGUMENT, "was not allocated");
    EXPECT_FAILS(entrain_mem_register(self.comm, static_cast<char*>(good) + 64, 64, nullptr),
                 ENTRAIN_INVALID_ARGUMENT, "are allocated or registered already");
    EXPECT_FAILS(entrain_mem_deregister(self.comm, good), ENTRAIN_INVALID_ARGUMENT,
                 "is not registered");
    EXPECT_OK(entrain_mem_free(self.comm, good));
  });
}

TEST(MemoryArguments, OfRegistrationEachIsNamed) {
  RunWorld(1, [](const Rank& self) {
    std::vector<char> own(10 * 4096);
    EXPECT_FAILS(entrain_mem_register(nullptr, own.data(), 1, nullptr), ENTRAIN_INVALID_ARGUMENT,
                 "comm is NULL");
    EXPECT_FAILS(entrain_mem_register(self.comm, nullptr, 1, nullptr), ENTRAIN_INVALID_ARGUMENT,
                 "memory is NULL");
    EXPECT_FAILS(entrain_mem_register(self.comm, own.data(), 0, nullptr), ENTRAIN_INVALID_ARGUMENT,
                 "bytes: 0");
    EXPECT_FAILS(entrain_mem_register(self.comm, own.data(), SIZE_MAX / 2 - 1, nullptr),
                 ENTRAIN_INVALID_ARGUMENT, "bytes: 9223372036854775806");
    EXPECT_FAILS(entrain_mem_deregister(nullptr, own.data()), ENTRAIN_INVALID_ARGUMENT,
                 "comm is NULL");
    EXPECT_OK(entrain_mem_deregister(self.comm, nullptr));
    EXPECT_FAILS(entrain_mem_deregister(self.comm, own.data()), ENTRAIN_INVALID_ARGUMENT,
                 "is not registered");
    size_t mapped = 1;
    EXPECT_OK(entrain_mem_register(self.comm, own.data(), own.size(), &mapped));
    EXPECT_GE(mapped, 9u * 4096);
    EXPECT_FAILS(entrain_mem_register(self.comm, own.data() + 4096, 4096, nullptr),
                 ENTRAIN_INVALID_ARGUMENT, "are allocated or registered already");
    EXPECT_FAILS(entrain_mem_free(self.comm, own.data()), ENTRAIN_INVALID_ARGUMENT,
                 "was not allocated");
    EXPECT_OK(entrain_mem_deregister(self.comm, own.data()));
    EXPECT_FAILS(entrain_mem_deregister(self.comm, own.data()), ENTRAIN_INVALID_ARGUMENT,
                 "is not registered");
    // Less than a page cannot be mapped. Memory that maps a file is left unchanged.
    EXPECT_OK(entrain_mem_register(self.comm, own.data(), 100, &mapped));
    EXPECT_EQ(mapped, 0u);
    EXPECT_OK(entrain_mem_deregister(self.comm, own.data()));
    static char in_a_file[3 * 4096] = "initialised, so it is mapped from the program's file";
    EXPECT_OK(entrain_mem_register(self.comm, in_a_file, sizeof(in_a_file), &mapped));
    EXPECT_EQ(mapped, 0u);
    EXPECT_OK(entrain_mem_deregister(self.comm, in_a_file));
  });
}

}  // namespace
}  // namespace entrain_test
