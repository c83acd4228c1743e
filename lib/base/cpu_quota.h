// How much CPU time a process's cgroup lets it have: cgroup v2's cpu.max, v1's cpu.cfs_quota_us. A value.
#pragma once

#include <cstdint>
#include <string>

namespace entrain {

struct CpuQuota {
  // Of the directory of the cgroup that sets it. Processes of a host that name the same one share the
  // quota, whatever their namespaces call it.
  uint64_t device = 0, inode = 0;
  uint32_t millicores = 0;  // 1000: one core's time; 0: no limit

  // The least that a cgroup of this process sets, its own or one around it as far as they are
  // visible; of equal ones the outermost, which more processes share. No limit where that cannot be
  // found out. Reads files, each time anew, since limits change. `root`: the folder in which the
  // machine's paths begin.
  static CpuQuota OfThisProcess(const std::string& root = "");
};

}  // namespace entrain
