#include "lib/base/cpu_set.h"

#include <string>
#include <thread>

#include <sched.h>

#include "gtest/gtest.h"

namespace entrain {
namespace {

TEST(CpuSet, OfAThreadIsWhatItMayUse) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  EXPECT_EQ(CpuSet::OfThisThread().Count(), CPU_COUNT(&allowed));
  int last = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    last = CPU_ISSET(cpu, &allowed) ? cpu : last;
  }
  std::thread([last] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(last, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    std::string bits(static_cast<size_t>(last / 8), '\0');
    bits.push_back(static_cast<char>(1 << last % 8));
    EXPECT_EQ(CpuSet::OfThisThread().bits(), bits);
    EXPECT_EQ(CpuSet::OfThisThread().Count(), 1);
  }).join();
}

TEST(CpuSet, CountsWhatSeveralHaveTogetherOnce) {
  CpuSet all;
  EXPECT_EQ(all.Count(), 0);
  all.Add(CpuSet::FromBits(std::string("\x05\x00\x80", 3)));
  EXPECT_EQ(all.Count(), 3);
  all.Add(CpuSet::FromBits("\x06"));
  EXPECT_EQ(all.Count(), 4);
  EXPECT_EQ(all.bits(), std::string("\x07\x00\x80", 3));
  all.Add(CpuSet::First(23));
  EXPECT_EQ(all.bits(), "\xff\xff\xff");
}

TEST(CpuSet, LeavesOutZerosBehindAndWhatIsTooMuch) {
  EXPECT_EQ(CpuSet::FromBits(std::string(100, '\0')).bits(), "");
  EXPECT_EQ(CpuSet::FromBits(std::string("\x01\x00", 2)).bits(), "\x01");
  EXPECT_EQ(CpuSet::FromBits(std::string(2000, '\x01')).bits().size(), CpuSet::kMostBytes);
  EXPECT_EQ(CpuSet::First(0).bits(), "");
  EXPECT_EQ(CpuSet::First(8).bits(), "\xff");
  EXPECT_EQ(CpuSet::First(9).Count(), 9);
}

}  // namespace
}  // namespace entrain
