// What processes may take of a host's CPUs: on which they may run, and how much time their cgroups
// give them. Values.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "lib/base/cpu_quota.h"
#include "lib/base/cpu_set.h"

namespace entrain {

// One process's.
struct CpuShare {
  CpuSet set;
  CpuQuota quota;

  CpuShare() = default;
  CpuShare(CpuSet may, CpuQuota gets = {}) : set(std::move(may)), quota(gets) {}
  // The set of the calling thread.
  static CpuShare OfThisThread() { return {CpuSet::OfThisThread(), CpuQuota::OfThisProcess()}; }
};

// That of several together. In whatever order they are added, and whatever they say: they may come
// from peers.
class CpuCrowd {
 public:
  void Add(const CpuShare& one);
  // How many were added.
  int size() const { return size_; }
  // The CPUs that any of them may run on, but no more than their cgroups let be busy all the time: a
  // fraction of a core is none, since who waits on it would be stopped in the middle. At least 1.
  int Cores() const;

 private:
  int size_ = 0;
  CpuSet all_, unlimited_;  // unlimited_: of those without a quota
  std::map<std::pair<uint64_t, uint64_t>, uint32_t> millicores_;  // by who sets it, each once
};

}  // namespace entrain
