// The share of a host's CPUs that processes may use: the CPUs on which they may run, and the CPU
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
  // Returns the share of this process. The CPU set is that of the calling thread.
  static CpuShare OfThisThread() { return {CpuSet::OfThisThread(), CpuQuota::OfThisProcess()}; }
};

// The shares of several processes together. The order of additions does not matter. Any values are
// accepted, since they may come from peers.
class CpuCrowd {
 public:
  void Add(const CpuShare& one);
  // Returns the number of shares that were added.
  int size() const { return size_; }
  // Returns the number of CPUs on which any of the processes may run. If quotas allow fewer CPUs to
  // be busy all the time, returns that smaller number. A fraction of a core does not count: the
  // kernel would stop a thread that spins on it. At least 1.
  int Cores() const;

 private:
  int size_ = 0;
  CpuSet all_, unlimited_;  // unlimited_: the CPUs of processes without a quota
  // by the cgroup that sets the quota
  std::map<std::pair<uint64_t, uint64_t>, uint32_t> millicores_;
};

}  // namespace entrain
