#include "lib/base/cpu_share.h"

#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace entrain {
namespace {

CpuQuota Quota(uint64_t inode, uint32_t millicores) {
  return {1, inode, millicores};
}

int CoresOf(const std::vector<CpuShare>& shares) {
  CpuCrowd crowd;
  for (const CpuShare& share : shares) {
    crowd.Add(share);
  }
  EXPECT_EQ(crowd.size(), static_cast<int>(shares.size()));
  return crowd.Cores();
}

TEST(CpuCrowd, WithoutQuotasHasWhatAnyMayRunOn) {
  EXPECT_EQ(CoresOf({}), 1);
  EXPECT_EQ(CoresOf({CpuSet()}), 1);
  EXPECT_EQ(CoresOf({CpuSet::First(3), CpuSet::FromBits("\x18")}), 5);
}

TEST(CpuCrowd, ThoseOfOneCgroupShareItsQuota) {
  const CpuSet host = CpuSet::First(64);
  const CpuShare two{host, Quota(7, 2000)};
  EXPECT_EQ(CoresOf({two, two, two, two}), 2);
  EXPECT_EQ(CoresOf({two, {host, Quota(8, 2000)}, two}), 4);
  EXPECT_EQ(CoresOf({two, {host, {2, 7, 2000}}}), 4) << "another device";
  EXPECT_EQ(CoresOf({two, {host, Quota(7, 1000)}}), 1) << "it was changed in between";
  EXPECT_EQ(CoresOf({{host, Quota(7, 1000)}, two}), 1);
}

TEST(CpuCrowd, CountsFractionsTogetherAndOnlyWholeCores) {
  const CpuSet host = CpuSet::First(64);
  EXPECT_EQ(CoresOf({{host, Quota(1, 500)}}), 1);
  EXPECT_EQ(CoresOf({{host, Quota(1, 1999)}}), 1);
  EXPECT_EQ(CoresOf({{host, Quota(1, 1500)}, {host, Quota(2, 1500)}}), 3);
}

TEST(CpuCrowd, HasNoMoreThanItsCpus) {
  constexpr uint32_t kMost = std::numeric_limits<uint32_t>::max();
  EXPECT_EQ(CoresOf({{CpuSet::First(2), Quota(1, 8000)}}), 2);
  EXPECT_EQ(CoresOf({{CpuSet::First(2), Quota(1, kMost)}, {CpuSet::First(2), Quota(2, kMost)}}), 2);
  // CPUs of ranks without a quota are added to the time of the others.
  EXPECT_EQ(CoresOf({{CpuSet::First(8), Quota(1, 2000)}, CpuSet::First(1)}), 3);
  EXPECT_EQ(CoresOf({{CpuSet::First(8), Quota(1, 2000)}, CpuSet::First(8)}), 8);
}

}  // namespace
}  // namespace entrain
