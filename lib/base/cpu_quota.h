// The CPU time that its cgroup allows a process: cpu.max of cgroup v2, cpu.cfs_quota_us of v1. A
// plain value type.
#pragma once

#include <cstdint>
#include <string>

namespace entrain {

struct CpuQuota {
  // Device and inode of the directory of the cgroup that sets the quota. Processes of a host with
  // the same device and inode share the quota, whatever path their namespaces show.
  uint64_t device = 0, inode = 0;
  uint32_t millicores = 0;  // 1000: one core's time; 0: no limit

  // Returns the smallest quota among this process's cgroup and the visible cgroups that contain it.
  // If several quotas are smallest, returns that of the outermost cgroup, because more processes
  // share it. Returns no limit if the quota cannot be read. Reads the files on every call, since
  // limits change. `root`: a prefix for the paths of /proc and of the cgroups.
  static CpuQuota OfThisProcess(const std::string& root = "");
};

}  // namespace entrain
