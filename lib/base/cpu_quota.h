// The CPU time that a process may use, as limited by its cgroup: cpu.max of cgroup v2, or
// cpu.cfs_quota_us of v1. A plain value type.
#pragma once

#include <cstdint>
#include <string>

namespace entrain {

struct CpuQuota {
  // Device and inode of the directory of the cgroup that sets the quota. Processes of one host
  // share the quota if their values are equal. (Their namespaces may show different paths of one
  // cgroup.)
  uint64_t device = 0, inode = 0;
  uint32_t millicores = 0;  // 1000: the time of one core; 0: no limit

  // Returns the smallest quota of this process's cgroup and of the visible cgroups that contain it.
  // If several cgroups have the smallest quota, returns that of the outermost one, because more
  // processes share it. If the quota cannot be read, returns no limit. Reads the files on every
  // call, because limits change. `root` is a prefix for the paths of /proc and of the cgroups.
  static CpuQuota OfThisProcess(const std::string& root = "");
};

}  // namespace entrain
