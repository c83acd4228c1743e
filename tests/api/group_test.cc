// The requirements of a process group: timeouts that change, numbers, works by name, late ranks.
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/api/world.h"
#include "tests/support/wait.h"

namespace entrain_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr entrain_status_t kInvalid = ENTRAIN_INVALID_ARGUMENT;

uint64_t SequenceOf(entrain_comm_t* comm) {
  entrain_comm_stats_t stats;
  entrain_comm_stats_init(&stats);
  EXPECT_OK(entrain_comm_stats(comm, &stats));
  return stats.sequence;
}

std::vector<int32_t> LateOf(entrain_comm_t* comm) {
  std::vector<int32_t> late(8, -1);
  int32_t count = 8;
  EXPECT_OK(entrain_comm_late(comm, late.data(), &count));
  late.resize(static_cast<size_t>(count));
  return late;
}

TEST(Group, SequenceIsThatOfTheLastUntaggedCollective) {
  RunWorld(2, [](const Rank& self) {
    const uint64_t before = SequenceOf(self.comm);
    entrain_work_t* work = nullptr;
    ASSERT_OK(entrain_barrier(self.comm, nullptr, &work));
    EXPECT_EQ(SequenceOf(self.comm), before + 1);
    ASSERT_OK(entrain_work_wait(work, -1));
    entrain_work_free(work);
    entrain_call_options_t options;
    entrain_call_options_init(&options);
    options.tag = 5;
    ASSERT_OK(entrain_barrier(self.comm, &options, nullptr));
    EXPECT_EQ(SequenceOf(self.comm), before + 1);
    ASSERT_OK(entrain_barrier(self.comm, nullptr, nullptr));  // inline
    EXPECT_EQ(SequenceOf(self.comm), before + 2);
  });
}

TEST(Group, WorkSaysWhatItIs) {
  RunWorld(2, [](const Rank& self) {
    entrain_comm_t* part = nullptr;
    ASSERT_OK(entrain_comm_split(self.comm, 3, 0, &part, nullptr));
    entrain_call_options_t options;
    entrain_call_options_init(&options);
    options.tag = 7;
    float value = 1;
    entrain_work_t* work = nullptr;
    entrain_work_info_t info;
    entrain_work_info_init(&info);
    for (uint64_t number = 1; number < 3; ++number) {
      ASSERT_OK(
          entrain_all_reduce(part, &value, &value, 1, ENTRAIN_F32, ENTRAIN_SUM, &options, &work));
      ASSERT_OK(entrain_work_info(work, &info));
      EXPECT_EQ(info.sequence, number);
      EXPECT_EQ(info.tag, 7);
      EXPECT_STREQ(info.operation, "all_reduce");
      EXPECT_STREQ(info.comm, "world/3");
      ASSERT_OK(entrain_work_wait(work, -1));
      ASSERT_OK(entrain_work_info(work, &info));
      EXPECT_EQ(info.done, 1);
      EXPECT_GT(info.elapsed_ns, 0);
      EXPECT_LT(info.elapsed_ns, 60'000'000'000);
      entrain_work_free(work);
    }
    ASSERT_OK(entrain_barrier(self.comm, nullptr, &work));
    ASSERT_OK(entrain_work_info(work, &info));
    EXPECT_EQ(info.sequence, SequenceOf(self.comm));
    EXPECT_EQ(info.tag, -1);
    EXPECT_STREQ(info.comm, "world");
    ASSERT_OK(entrain_work_wait(work, -1));
    EXPECT_FAILS(entrain_work_info(nullptr, &info), kInvalid, "work is NULL");
    EXPECT_FAILS(entrain_work_info(work, nullptr), kInvalid, "info is NULL");
    entrain_work_free(work);
    entrain_batch_t* batch = nullptr;
    ASSERT_OK(entrain_batch_create(self.comm, &batch));
    ASSERT_OK(entrain_batch_start(batch, &work));
    ASSERT_OK(entrain_work_info(work, &info));
    EXPECT_STREQ(info.operation, "batch");
    EXPECT_EQ(info.sequence, 0u);
    entrain_work_free(work);
    entrain_batch_destroy(batch);
    entrain_comm_destroy(part);
  });
}

TEST(Group, TimeoutChangesForCallsThatFollow) {
  RunWorld(2, [](const Rank& self) {
    EXPECT_FAILS(entrain_comm_set_timeout(nullptr, 1), kInvalid, "comm is NULL");
    EXPECT_FAILS(entrain_comm_set_timeout(self.comm, 0), kInvalid, "timeout_ns 0 is not positive");
    EXPECT_FAILS(entrain_comm_set_timeout(self.comm, -1), kInvalid, "timeout_ns -1");
    ASSERT_OK(entrain_barrier(self.comm, nullptr, nullptr));
    ASSERT_OK(entrain_comm_set_timeout(self.comm, 200'000'000));
    if (self.rank == 0) {
      EXPECT_FAILS(entrain_barrier(self.comm, nullptr, nullptr), ENTRAIN_TIMED_OUT,
                   "deadline 0.2 s");
    } else {
      EXPECT_TRUE(entrain::Becomes(
          [&] { return entrain_comm_error(self.comm, nullptr) == ENTRAIN_TIMED_OUT; }));
    }
  });
}

TEST(Group, PartsInheritTheTimeoutThatWasSet) {
  RunWorld(2, [](const Rank& self) {
    ASSERT_OK(entrain_comm_set_timeout(self.comm, 200'000'000));
    entrain_comm_t* copy = nullptr;
    ASSERT_OK(entrain_comm_duplicate(self.comm, &copy, nullptr));
    if (self.rank == 0) {
      EXPECT_FAILS(entrain_barrier(copy, nullptr, nullptr), ENTRAIN_TIMED_OUT, "deadline 0.2 s");
    } else {
      EXPECT_TRUE(
          entrain::Becomes([&] { return entrain_comm_error(copy, nullptr) == ENTRAIN_TIMED_OUT; }));
    }
    entrain_comm_destroy(copy);
  });
}

TEST(Group, BarrierNamesAllLateRanks) {
  RunWorld(4, [](const Rank& self) {
    EXPECT_THAT(LateOf(self.comm), ElementsAre());
    entrain_call_options_t options;
    entrain_call_options_init(&options);
    options.timeout_ns = 200'000'000;
    if (self.rank % 2 == 0) {
      EXPECT_FAILS(entrain_barrier(self.comm, &options, nullptr), ENTRAIN_TIMED_OUT, "ranks 1, 3");
    } else {
      EXPECT_TRUE(entrain::Becomes(
          [&] { return entrain_comm_error(self.comm, nullptr) == ENTRAIN_TIMED_OUT; }));
    }
    EXPECT_THAT(LateOf(self.comm), ElementsAre(1, 3));
    int32_t one = -1, count = 1;
    EXPECT_OK(entrain_comm_late(self.comm, &one, &count));
    EXPECT_EQ(one, 1);
    EXPECT_EQ(count, 2);
    count = 0;
    EXPECT_OK(entrain_comm_late(self.comm, nullptr, &count));
    EXPECT_EQ(count, 2);
    EXPECT_FAILS(entrain_comm_late(self.comm, nullptr, &count), kInvalid, "ranks is NULL");
    count = -1;
    EXPECT_FAILS(entrain_comm_late(self.comm, nullptr, &count), kInvalid, "*count -1");
    EXPECT_FAILS(entrain_comm_late(self.comm, &one, nullptr), kInvalid, "count is NULL");
    EXPECT_FAILS(entrain_comm_late(nullptr, &one, &count), kInvalid, "comm is NULL");
  });
}

}  // namespace
}  // namespace entrain_test
