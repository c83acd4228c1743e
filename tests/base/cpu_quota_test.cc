#include "lib/base/cpu_quota.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <stdlib.h>
#include <sys/stat.h>

#include "gtest/gtest.h"

namespace entrain {
namespace {

constexpr char kUnified[] =
    "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

// A folder that stands for the root of a machine's file system.
class CpuQuotaOfProcess : public testing::Test {
 protected:
  CpuQuotaOfProcess() {
    std::string name = (std::filesystem::temp_directory_path() / "entrain_XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  ~CpuQuotaOfProcess() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void Process(const std::string& cgroups, const std::string& mounts) {
    Write("/proc/self/cgroup", cgroups);
    Write("/proc/self/mountinfo", mounts);
  }
  CpuQuota Read() const { return CpuQuota::OfThisProcess(root_); }
  uint32_t Millicores() const { return Read().millicores; }
  uint64_t InodeOf(const std::string& path) const {
    struct stat info {};
    EXPECT_EQ(stat((root_ + path).c_str(), &info), 0) << path;
    return info.st_ino;
  }

 private:
  std::string root_;
};

TEST_F(CpuQuotaOfProcess, IsNoneWhereNothingSaysOne) {
  EXPECT_EQ(Millicores(), 0u);
  Process("0::/\n", kUnified);
  EXPECT_EQ(Millicores(), 0u);
  Write("/sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(Millicores(), 0u);
  Process("", kUnified);
  EXPECT_EQ(Millicores(), 0u);
}

TEST_F(CpuQuotaOfProcess, IsThatOfItsOwnCgroup) {
  Process("0::/\n", kUnified);
  Write("/sys/fs/cgroup/cpu.max", "250000 100000\n");
  const CpuQuota quota = Read();
  EXPECT_EQ(quota.millicores, 2500u);
  EXPECT_EQ(quota.inode, InodeOf("/sys/fs/cgroup"));
  EXPECT_NE(quota.device, 0u);
  Write("/sys/fs/cgroup/cpu.max", "1 100000\n");
  EXPECT_EQ(Millicores(), 1u) << "not none";
}

TEST_F(CpuQuotaOfProcess, IsTheLeastOfThoseAround) {
  Process("1:name=systemd:/x\n0::/job/step/task\n", kUnified);
  Write("/sys/fs/cgroup/job/step/task/cpu.max", "max 100000\n");
  Write("/sys/fs/cgroup/job/step/cpu.max", "400000 100000\n");
  Write("/sys/fs/cgroup/job/cpu.max", "600000 100000\n");
  Write("/sys/fs/cgroup/cpu.max", "700000 100000\n");
  EXPECT_EQ(Millicores(), 4000u);
  EXPECT_EQ(Read().inode, InodeOf("/sys/fs/cgroup/job/step"));
  Write("/sys/fs/cgroup/job/cpu.max", "200000 50000\n");
  EXPECT_EQ(Read().inode, InodeOf("/sys/fs/cgroup/job")) << "the outermost that sets it";
  Write("/sys/fs/cgroup/cpu.max", "300000 100000\n");
  EXPECT_EQ(Millicores(), 3000u);
  Process("0::/job/gone (deleted)\n", kUnified);
  EXPECT_EQ(Millicores(), 3000u);
}

TEST_F(CpuQuotaOfProcess, IsFoundWhereTheFirstVersionIsMounted) {
  Process("4:memory:/docker/a\n3:cpu,cpuacct:/docker/a:b/in\n0::/\n",
          "20 1 8:1 / / rw - ext4 /dev/sda rw\n"
          "30 20 0:26 /docker/a:b /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
          "31 20 0:27 /docker/a:b /sys/fs/cgroup/a\\040mount ro - cgroup cgroup rw,cpu,cpuacct\n");
  Write("/sys/fs/cgroup/memory/cpu.cfs_quota_us", "100000\n");
  Write("/sys/fs/cgroup/memory/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Millicores(), 0u);
  Write("/sys/fs/cgroup/a mount/cpu.cfs_quota_us", "150000\n");
  Write("/sys/fs/cgroup/a mount/cpu.cfs_period_us", "100000\n");
  Write("/sys/fs/cgroup/a mount/in/cpu.cfs_quota_us", "-1\n");
  Write("/sys/fs/cgroup/a mount/in/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Millicores(), 1500u);
  EXPECT_EQ(Read().inode, InodeOf("/sys/fs/cgroup/a mount"));
}

TEST_F(CpuQuotaOfProcess, IsNotThatOfAnotherCgroup) {
  Write("/sys/fs/cgroup/cpu.max", "100000 100000\n");
  for (const char* const path : {"/../other", "/..", "/docker/ab", "docker"}) {
    const bool outside = path[1] == '.';
    Process(std::string("0::") + path + "\n", std::string("31 23 0:28 ") +
                                                  (outside ? "/" : "/docker/a") +
                                                  " /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    EXPECT_EQ(Millicores(), 0u) << path;
  }
}

TEST_F(CpuQuotaOfProcess, IsNoneWhereItCannotBeRead) {
  for (const char* const text : {"", "\n", "100000\n", "100000 0\n", "0 100000\n", "-1 100000\n",
                                 "100000 100000 1\n", "1e5 100000\n"}) {
    Process("0::/\n", kUnified);
    Write("/sys/fs/cgroup/cpu.max", text);
    EXPECT_EQ(Millicores(), 0u) << text;
  }
  Write("/sys/fs/cgroup/cpu.max", "9223372036854775807 1\n");
  EXPECT_EQ(Millicores(), ~uint32_t{0});
  for (const char* const mounts :
       {"", "\n", "31 23 0:28 / /sys/fs/cgroup rw\n", "31 23 0:28 / /sys/fs/cgroup rw -\n",
        "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2\n", "- cgroup2 cgroup2 rw\n",
        "31 23 0:28 / /sys/fs/cgroup\\9 rw - cgroup2 cgroup2 rw\n"}) {
    Process("0::/\n", mounts);
    EXPECT_EQ(Millicores(), 0u) << mounts;
  }
  for (const char* const cgroups : {"\n", ":\n", "0:\n", "0:cpu:/\n"}) {
    Process(cgroups, kUnified);
    EXPECT_EQ(Millicores(), 0u) << cgroups;
  }
}

TEST(CpuQuota, OfThisProcessIsTheSameTwice) {
  const CpuQuota first = CpuQuota::OfThisProcess(), second = CpuQuota::OfThisProcess();
  EXPECT_EQ(first.millicores, second.millicores);
  EXPECT_EQ(first.inode, second.inode);
}

}  // namespace
}  // namespace entrain
