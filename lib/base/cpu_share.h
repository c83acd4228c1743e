// The part of a host's CPUs that processes may use: the CPUs on which they may run, and the CPU
// time that their cgroups allow. Plain value types.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "lib/base/cpu_quota.h"
#include "lib/base/cpu_set.h"

namespace entrain {

// The share of one process.
struct CpuShare {
  CpuSet set;
  CpuQuota quota;

  CpuShare() = default;
  CpuShare(CpuSet may, CpuQuota gets = {}) : set(std::move(may)), quota(gets) {}
  // Returns the share of this process. Its CPU set is that of the calling thread.
  static CpuShare OfThisThread() { return {CpuSet::OfThisThread(), CpuQuota::OfThisProcess()}; }
};

// The shares of several processes together. The result does not depend on the order of Add. Add
// accepts any values, because they may come from peers.
class CpuCrowd {
 public:
  void Add(const CpuShare& one);
  // Returns the number of shares that were added.
  int size() const { return size_; }
  // Returns the number of CPUs that these processes can keep busy all the time, at least 1. This is
  // the number of CPUs on which any of them may run, or fewer if their quotas allow fewer. The sum
  // of quotas is rounded down to whole cores: the kernel would stop a thread that spins on a
  // fraction of a core.
  int Cores() const;

 private:
  int size_ = 0;
  CpuSet all_, unlimited_;  // unlimited_: the CPUs of processes without a quota
  // key: device and inode of the cgroup that sets the quota
  std::map<std::pair<uint64_t, uint64_t>, uint32_t> millicores_;
};

}  // namespace entrain
