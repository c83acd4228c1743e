// The CPU time that a process's cgroup allows it: cpu.max of cgroup v2, cpu.cfs_quota_us of v1. A
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

  // Returns the smallest quota of this process's cgroup and of the visible cgroups around it. Of
  // equal quotas returns the outermost, which more processes share. Returns no limit if the quota
  // cannot be read. Reads the files on every call, since limits change. `root`: the folder that
  // contains the machine's paths.
  static CpuQuota OfThisProcess(const std::string& root = "");
};

}  // namespace entrain
